"""The start script of each role."""

from __future__ import annotations

import json
import re
import shlex
from string import Template
from typing import Any

import catalog
from models.deployment import ROLES, Deployment, RoleName
from render.arguments import ENGINE_ID, kv_transfer_config, vllm_arguments

_SCRIPT = Template("""\
#!/usr/bin/env bash
# Starts the $role engine of $name. Rendered from the stack file: change it there.
set -euo pipefail

WEIGHTS=$weights
for needed in $needed; do
  if [ ! -f "$$WEIGHTS/$$needed" ]; then
    echo "$$WEIGHTS/$$needed is missing: the weights are not (wholly) on this node" >&2
    exit 1
  fi
done

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

# Not quoted, so that the engine id is unique to this role replica.
KV_TRANSFER_CONFIG=$$(cat <<JSON
$kv_transfer_config
JSON
)

exec vllm serve "$$WEIGHTS" \\
$arguments
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
# Releases before $until take the devices' numbers from here; the device plugin leaves their names on the pod.
if [ -z "$${ASCEND_REAL_DEVICES:-}" ]; then
  echo "the device plugin left no annotation $annotation on this pod" >&2
  exit 1
fi
PHYSICAL_DEVICES=$$(tr ',' '\\n' <<<"$$ASCEND_REAL_DEVICES" | sed 's/.*-//' | sort -n | paste -sd, -)
export PHYSICAL_DEVICES
"""


def needs_physical_devices(deployment: Deployment) -> bool:
    """Whether the engine release reads PHYSICAL_DEVICES."""
    return catalog.before(deployment.engine.version, catalog.engine().physical_devices.until)


def start_scripts(deployment: Deployment) -> dict[str, str]:
    """File name -> bash script, one for each role."""
    return {script_name(role): _script(deployment, role) for role in ROLES}


def script_name(role_name: RoleName) -> str:
    """File name of a role's start script."""
    return f"{role_name}.sh"


def _script(deployment: Deployment, role_name: RoleName) -> str:
    model = deployment.model
    extra = map(shlex.quote, (*deployment.engine.extra_args, *deployment.role(role_name).extra_args))
    arguments = [*vllm_arguments(deployment, role_name), *extra]
    needed = ("config.json", *((model.chat_template,) if model.chat_template else ()))
    devices = catalog.engine().physical_devices
    return _SCRIPT.substitute(
        role=role_name,
        name=deployment.name,
        weights=shlex.quote(model.weights.path),
        needed=" ".join(map(shlex.quote, needed)),
        interface=shlex.quote(deployment.network_interface) if deployment.network_interface else _FIND_INTERFACE,
        physical_devices=Template(_PHYSICAL_DEVICES).substitute(until=devices.until, annotation=devices.annotation)
        if needs_physical_devices(deployment)
        else "",
        kv_transfer_config=_here_document(kv_transfer_config(deployment, role_name)),
        arguments=" \\\n".join(f"  {argument}" for argument in arguments),
    )


def _here_document(config: dict[str, Any]) -> str:
    """``config`` as JSON inside an unquoted here-document: the shell expands the engine id and nothing else."""
    return ENGINE_ID.join(re.sub(r"([\\`$])", r"\\\1", part) for part in json.dumps(config, indent=2).split(ENGINE_ID))
