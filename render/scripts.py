"""What the ConfigMap of a role holds: scripts that start and drain its pods, and the pool's configuration."""

from __future__ import annotations

import json
import math
import posixpath
import re
import shlex
from string import Template
from typing import Any

import catalog
from catalog.types import DeviceNumbers, NpuFamily
from models.cluster import Cluster
from models.deployment import Deployment
from models.quantities import seconds
from models.role import RoleName
from render.arguments import (
    ENGINE_ID,
    adapter_directories,
    draft_model_directory,
    kv_transfer_config,
    pool_config,
    vllm_arguments,
)

POOL_CONFIG = "mooncake.json"
DRAIN = "drain.py"
REAL_DEVICES = "ASCEND_REAL_DEVICES"
"""variable that a pod gets from the annotation with the names of its devices"""
_RESOLVE_PERIOD = 2
"""seconds between two looks for the entry pod's address"""

_SCRIPT = Template("""\
#!/usr/bin/env bash
# Starts the $kind of $name. Rendered from the stack file: change it there.
set -euo pipefail

WEIGHTS=$weights
$weights_check
# The address that this engine hands to its peers for KV transfer and collective communication.
export HCCL_IF_IP="$$POD_IP" VLLM_HOST_IP="$$POD_IP"
NETWORK_INTERFACE=$interface
export GLOO_SOCKET_IFNAME="$$NETWORK_INTERFACE" TP_SOCKET_IFNAME="$$NETWORK_INTERFACE" HCCL_SOCKET_IFNAME="$$NETWORK_INTERFACE"
$physical_devices
# The image has jemalloc under the directory of its architecture.
for jemalloc in /usr/lib/*-linux-gnu/libjemalloc.so.2; do
  if [ -e "$$jemalloc" ]; then
    export LD_PRELOAD="$$jemalloc$${LD_PRELOAD:+:$$LD_PRELOAD}"
  fi
done
$entry_address
# Not quoted, so that the engine id is unique to this pod.
KV_TRANSFER_CONFIG=$$(cat <<JSON
$kv_transfer_config
JSON
)

exec vllm serve "$$WEIGHTS" \\
$arguments
""")

# A directory may hold the index of another form of the same weights: they are whole if the files of one index are there.
_WEIGHTS_CHECK = Template("""\
# All that the engine will read, before it spends minutes on a part of it.
python3 - "$$WEIGHTS" $needed <<'PYTHON'
import glob, json, os, sys
weights, *needed = sys.argv[1:]
def find(pattern):
    return glob.glob(os.path.join(glob.escape(weights), pattern))
def missing(files):
    return [file for file in files if not os.path.isfile(os.path.join(weights, file))]
def shards(index):
    try:
        with open(index) as opened:
            return sorted(set(json.load(opened)["weight_map"].values()))
    except (ValueError, KeyError) as error:
        sys.exit(f"{index} can't be read as an index of weights: {error!r}")
absent = missing(needed)
indexes = [missing(shards(index)) for index in find("*.safetensors.index.json")]
if least := min(indexes, key=len, default=None):
    absent.append(f"{len(least)} weight files: " + ", ".join(least[:5]) + (", ..." if len(least) > 5 else ""))
elif not indexes and not find("*.safetensors") and not find("*.bin"):
    absent.append("weight files (*.safetensors)")
if absent:
    sys.exit(f"{weights} is not whole on this node, it lacks " + "; ".join(absent))
PYTHON
""")

# The interface that carries the pod's address, or else the one whose network it lies in: with the host's network
# interface names differ from server to server.
_FIND_INTERFACE = """\
$(python3 - "$POD_IP" <<'PYTHON'
import fcntl, ipaddress, socket, struct, sys
def query(name, request):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, request, struct.pack("256s", name.encode()))
    return socket.inet_ntoa(answer[20:24])
pod, found = ipaddress.ip_address(sys.argv[1]), {}
for _, name in socket.if_nameindex():
    try:
        address, mask = query(name, 0x8915), query(name, 0x891B)  # SIOCGIFADDR, SIOCGIFNETMASK
    except OSError:
        continue  # an interface without an IPv4 address
    network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
    if pod in network:
        found[str(pod) == address, network.prefixlen] = name
if not found:
    sys.exit(f"no network interface carries {pod}: declare networkInterface")
print(found[max(found)])
PYTHON
)"""

_PHYSICAL_DEVICES = """
# Releases before $until take the devices' numbers from here; the device plugin leaves them on the pod.
if [ -z "$devices" ]; then
  echo "the device plugin left no $place on this pod" >&2
  exit 1
fi
PHYSICAL_DEVICES=$$(tr ',' '\\n' <<<"$devices" | sed 's/.*-//' | sort -n | paste -sd, -)
export PHYSICAL_DEVICES
"""

# vLLM takes an address. The name is that of the headless Service which Kthena makes for the entry pod.
_ENTRY_ADDRESS = Template("""
# The entry pod has an address once a node has it: wait for that no longer than a model may load.
until read -r ENTRY_IP _ < <(getent ahostsv4 "$$ENTRY_ADDRESS"); do
  if [ "$$SECONDS" -ge $limit ]; then
    echo "$$ENTRY_ADDRESS has no address after $$SECONDS s: the entry pod of this instance does not start" >&2
    exit 1
  fi
  echo "waiting for the address of $$ENTRY_ADDRESS, $$SECONDS s so far"
  sleep $period
done
""")


# Kubernetes calls it before it stops the engine, and waits for its end. From then on the router sends nothing new to the pod.
_DRAIN = """\
# Ends once the engine at ADDRESS had no request for PERIOD seconds, or is gone. A decode engine without a request may
# still get one that is in prefill, and a prefill engine's blocks may still be read: hence the period.
import re, sys, time, urllib.request

address, period = sys.argv[1], float(sys.argv[2])
idle_since = time.monotonic()
while time.monotonic() - idle_since < period:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            metrics = answer.read().decode()
    except TimeoutError:  # it has taken the question and is busy; one that is gone refuses it
        idle_since = time.monotonic()
        continue
    except OSError:
        break
    counts = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:{.*})? (\\S+)", metrics, re.MULTILINE)
    if any(map(float, counts)):
        idle_since = time.monotonic()
    time.sleep(min(1, period / 4))
"""


def needs_physical_devices(deployment: Deployment) -> bool:
    """Whether the engine release reads PHYSICAL_DEVICES."""
    return catalog.before(deployment.engine.version, catalog.engine().physical_devices_until)


def device_numbers(cluster: Cluster) -> DeviceNumbers:
    """Where a pod of this cluster finds the numbers that its dies have on the server."""
    return catalog.npu_families()[cluster.npu.family].device_plugins[cluster.npu.device_plugin].device_numbers


def scripts(deployment: Deployment, cluster: Cluster, role: RoleName) -> dict[str, str]:
    """File name -> content: what starts and drains the pods of a role, and the pool's configuration where there is a pool."""
    pool, family = pool_config(deployment), catalog.npu_families()[cluster.npu.family]
    return {
        **{
            script_name(role, worker=worker): _script(deployment, role, family, device_numbers(cluster), worker=worker)
            for worker in ((False, True) if deployment.role(role).pods > 1 else (False,))
        },
        DRAIN: _DRAIN,
        **({POOL_CONFIG: json.dumps(pool, indent=2) + "\n"} if pool else {}),
    }


def script_name(role_name: RoleName, *, worker: bool = False) -> str:
    """File name of the start script of a role's entry pods, or of its workers."""
    return f"{role_name}-worker.sh" if worker else f"{role_name}.sh"


def script_environment(deployment: Deployment, role_name: RoleName) -> frozenset[str]:
    """Variables that a role's scripts set."""
    names = {
        "GLOO_SOCKET_IFNAME",
        "HCCL_IF_IP",
        "HCCL_SOCKET_IFNAME",
        "KV_TRANSFER_CONFIG",
        "NETWORK_INTERFACE",
        "TP_SOCKET_IFNAME",
        "VLLM_HOST_IP",
        "WEIGHTS",
    }
    if needs_physical_devices(deployment):
        names.add("PHYSICAL_DEVICES")
    if deployment.role(role_name).pods > 1:
        names.add("ENTRY_IP")
    return frozenset(names)


def _script(deployment: Deployment, role_name: RoleName, family: NpuFamily, numbers: DeviceNumbers, *, worker: bool) -> str:
    extra = map(shlex.quote, (*deployment.engine.extra_args, *deployment.role(role_name).extra_args))
    arguments = [*vllm_arguments(deployment, role_name, worker=worker), *extra]
    limit = math.ceil(seconds(deployment.readiness.load_timeout))
    return _SCRIPT.substitute(
        kind=f"{role_name} workers" if worker else f"{role_name} engine",
        name=deployment.name,
        weights=shlex.quote(deployment.model.weights.path),
        weights_check=_WEIGHTS_CHECK.substitute(needed=" ".join(map(shlex.quote, _needed_files(deployment, role_name)))),
        interface=shlex.quote(deployment.network_interface) if deployment.network_interface else _FIND_INTERFACE,
        physical_devices=_physical_devices(numbers) if needs_physical_devices(deployment) else "",
        entry_address=_ENTRY_ADDRESS.substitute(period=_RESOLVE_PERIOD, limit=limit) if worker else "",
        kv_transfer_config=_here_document(kv_transfer_config(deployment, role_name, family)),
        arguments=" \\\n".join(f"  {argument}" for argument in arguments),
    )


def _physical_devices(numbers: DeviceNumbers) -> str:
    # in the order in which they are looked at: the annotation where there is one, then the container's own environment
    places = [(REAL_DEVICES, f"annotation {numbers.annotation}")] if numbers.annotation else []
    places += [(numbers.variable, f"variable {numbers.variable}")] if numbers.variable else []
    devices = ""
    for variable, _ in reversed(places):
        devices = f"${{{variable}:-{devices}}}"
    return Template(_PHYSICAL_DEVICES).substitute(
        until=catalog.engine().physical_devices_until, devices=devices, place=" and no ".join(place for _, place in places)
    )


def _needed_files(deployment: Deployment, role_name: RoleName) -> list[str]:
    """Files without which the engine does not start, besides the weights; relative to the weights' directory."""
    model, draft = deployment.model, draft_model_directory(deployment, role_name)
    files = ["config.json"]
    if model.quantization:
        files.append("quant_model_description.json")
    if model.chat_template:
        files.append(model.chat_template)
    files += [posixpath.join(directory, "adapter_config.json") for directory in adapter_directories(deployment).values()]
    if draft:
        files.append(posixpath.join(draft, "config.json"))
    return files


def _here_document(config: dict[str, Any]) -> str:
    """``config`` as JSON inside an unquoted here-document: the shell expands the engine id and nothing else."""
    return ENGINE_ID.join(re.sub(r"([\\`$])", r"\\\1", part) for part in json.dumps(config, indent=2).split(ENGINE_ID))
