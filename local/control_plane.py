"""The local cluster as a whole: bring it up, say what runs, take it down.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones, kwok keeps the simulated nodes alive,
and ``local.kubelet`` runs the containers. What runs as it should stays as it is; what has died, or was started with other
flags, is started again. So ``up`` is also the repair.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import yaml

from local import container, processes, toolchain, volcano
from local.api import STRATEGIC, Api, ApiError, Object, holds
from local.cluster import Cluster, Node
from local.errors import LocalError
from local.pki import Pki
from local.processes import Program
from local.state import CHECKOUT, SERVICES, State, locate, network, ports

CONTEXT = "kthena-pd-local"
MANAGER = "kthena-pd-local"
"""field manager of what is applied here, and the label of the nodes that are"""
CHART = CHECKOUT / "local" / "charts" / "kthena"
"""where the stack files find Kthena's chart: a link to that of the toolchain"""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SERVICE_RANGE = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes"
NODE_LABEL = "kthena-pd.local/node"
PORTS = ("etcd", "etcd-peer", "kube-apiserver")
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kubelet", *volcano.PROGRAMS)
"""in the order of their start; Volcano's only where the description asks for it"""
READY_SECONDS = 90
"""a loaded two-core machine needs 15 s"""
MOST_PATIENCE = {"etcd": 2.0, "kube-apiserver": 2.0, "kubelet": 15.0}
"""seconds between SIGTERM and SIGKILL. The API server waits for watches to end, which nobody needs: etcd has it all.
The kubelet ends its containers first."""
HELD_BACK_MEMORY = {"GOGC": "60"}
"""control planes of a laptop are idle most of the time: more garbage collection for a third less memory"""


@dataclass(frozen=True)
class Component:
    """What ``status`` says of one program."""

    name: str
    state: Literal["running", "stopped"]
    pid: int | None = None
    uptime: float = 0.0
    """seconds"""
    memory: int = 0
    """resident, in bytes"""
    port: int | None = None


def up(description: Cluster, say: Callable[[str], None]) -> State:
    """Bring the cluster up, or repair it: return when the API server and the nodes are ready.

    Args:
        description: what the cluster should be; ``say`` is told what is done

    Raises:
        LocalError: something can't be built or started; the text names it, with the end of its log.
    """
    state = locate()
    folders = toolchain.ensure(tools(description), say)
    container.isolation()
    link(CHART, folders["kthena"] / "charts" / "kthena")
    with state.lock():
        state.create()
        begin = time.monotonic()
        try:
            started = asyncio.run(_up(description.with_programs(folders), folders, state, say))
        except (httpx.HTTPError, ApiError) as error:
            raise LocalError(
                f"the API server of the local cluster does not answer as it should: {type(error).__name__} {error}",
                f"run make up again; its log is {state.logs / 'kube-apiserver.log'}",
            ) from error
        took = f"{time.monotonic() - begin:.1f} s"
        say(f"local cluster ready in {took}: started {', '.join(started) or 'nothing, all of it runs'}")
    return state


def tools(description: Cluster) -> list[toolchain.Tool]:
    """Programs of the toolchain that a cluster needs."""
    return [*toolchain.CLUSTER_TOOLS, *([toolchain.VOLCANO] if description.volcano else [])]


def down(say: Callable[[str], None], state: State | None = None) -> None:
    """Stop every program of the cluster. Its objects stay in etcd, and come back with the next ``up``."""
    state = state or locate()
    if not state.directory.exists():
        say("there is no local cluster")
        return
    with state.lock():
        stopped = [name for name in reversed(COMPONENTS) if _stop(state, name)]
        state.kubelet_ready.unlink(missing_ok=True)
        say(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def status(state: State | None = None) -> list[Component]:
    """What runs of the cluster, in the order of start."""
    state = state or locate()
    try:
        known: Mapping[str, int] = json.loads((state.directory / "ports.json").read_text())
    except (FileNotFoundError, ValueError):
        known = {}
    found = [_component(state, name, known.get(name)) for name in COMPONENTS]
    return [one for one in found if one.pid or one.name not in volcano.PROGRAMS]


def _component(state: State, name: str, port: int | None) -> Component:
    found = processes.running(state.pids, name)
    if not found:
        return Component(name, "stopped", port=port)
    return Component(name, "running", found.pid, found.uptime, found.memory, port)


def _stop(state: State, name: str) -> bool:
    return processes.stop(state.pids, name, MOST_PATIENCE.get(name, 5.0))


async def _up(description: Cluster, folders: Mapping[str, Path], state: State, say: Callable[[str], None]) -> list[str]:
    pki = Pki(state.pki)
    pki.create()
    held = [name for name in COMPONENTS if processes.running(state.pids, name)]
    # the peers' port belongs to etcd, too
    held += ["etcd-peer"] if "etcd" in held else []
    number = network(state.directory / "network", held="kubelet" in held)
    description = description.model_copy(update={"network": number})
    chosen = ports(state.directory / "ports.json", PORTS, held)
    server = f"https://127.0.0.1:{chosen['kube-apiserver']}"
    _write_private(state.kubeconfig, kubeconfig(server, pki))
    _write_private(state.scheduler, scheduler_configuration(state.kubeconfig, description.npu_resources))
    _write_private(state.volcano, volcano.configuration(description.npu_resources))
    _write_private(state.description, description.model_dump_json(by_alias=True, indent=2))
    _fill_hosts(state.hosts, description.nodes)
    wanted = {program.name: program for program in programs(folders, state, pki, chosen)}
    for name in COMPONENTS:
        if name not in wanted:
            _stop(state, name)

    started = [name for name in ("etcd", "kube-apiserver") if _ensure(wanted[name], state)]
    if started:
        say(f"starting {' and '.join(started)}")
    async with Api.from_kubeconfig(state.kubeconfig) as api:
        await _until("kube-apiserver", lambda: _is_ready(api), state, {name: wanted[name] for name in ("etcd", "kube-apiserver")})
        await check_service_range(api)
        if not _runs(wanted["kwok"], state):
            # kwok waits for the leases of an earlier kwok to run out before it does anything
            await api.request("DELETE", LEASES)
        if description.volcano:
            await volcano.apply_crds(api, folders["volcano"], MANAGER)
        others = [name for name in list(wanted)[2:] if _ensure(wanted[name], state)]
        await _apply_nodes(api, description.nodes)
        waits = {
            "kwok": lambda: _nodes_ready(api, description.nodes),
            "kube-controller-manager": lambda: _accounts_made(api),
            "kubelet": lambda: _has_taken_charge(state),
            **({volcano.SCHEDULER: lambda: volcano.is_ready(api)} if description.volcano else {}),
        }
        for name, ready in waits.items():
            await _until(name, ready, state, wanted)
    return started + others


def programs(folders: Mapping[str, Path], state: State, pki: Pki, chosen: Mapping[str, int]) -> list[Program]:
    """Commands of all components. A change of anything that they depend on changes their fingerprint."""
    server = f"https://127.0.0.1:{chosen['kube-apiserver']}"
    etcd, peer = (f"https://127.0.0.1:{chosen[name]}" for name in ("etcd", "etcd-peer"))
    kubernetes = folders["kubernetes"]
    client = (f"--kubeconfig={state.kubeconfig}", f"--master={server}")
    as_client_of_etcd = (
        f"--etcd-cafile={pki.authority}",
        f"--etcd-certfile={pki.certificate}",
        f"--etcd-keyfile={pki.key}",
    )
    quiet = ("--leader-elect=false", "--secure-port=0", "--profiling=false")
    fast = ("--kube-api-qps=400", "--kube-api-burst=800")
    commands: dict[str, tuple[str | Path, ...]] = {
        "etcd": (
            folders["etcd"] / "etcd",
            f"--data-dir={state.etcd}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--cert-file={pki.certificate}",
            f"--key-file={pki.key}",
            f"--trusted-ca-file={pki.authority}",
            "--client-cert-auth",
            f"--peer-cert-file={pki.certificate}",
            f"--peer-key-file={pki.key}",
            f"--peer-trusted-ca-file={pki.authority}",
            "--peer-client-cert-auth",
            "--unsafe-no-fsync",  # a power failure may cost a test cluster its data, waiting for disks costs every day
            "--auto-compaction-retention=10m",
            "--snapshot-count=5000",
            "--quota-backend-bytes=1073741824",
            "--log-level=warn",
        ),
        "kube-apiserver": (
            kubernetes / "kube-apiserver",
            "--bind-address=127.0.0.1",
            f"--secure-port={chosen['kube-apiserver']}",
            "--advertise-address=127.0.0.1",
            f"--etcd-servers={etcd}",
            *as_client_of_etcd,
            f"--tls-cert-file={pki.certificate}",
            f"--tls-private-key-file={pki.key}",
            f"--token-auth-file={pki.tokens}",
            # for logs and forwarded ports; kubelets listen on their nodes' addresses, whose names nobody knows
            f"--kubelet-client-certificate={pki.certificate}",
            f"--kubelet-client-key={pki.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki.service_accounts}",
            f"--service-account-signing-key-file={pki.service_accounts}",
            f"--service-cluster-ip-range={SERVICES}",
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
            "--enable-garbage-collector=true",
            "--profiling=false",
        ),
        "kube-controller-manager": (
            kubernetes / "kube-controller-manager",
            *client,
            *quiet,
            *fast,
            # Endpoints and EndpointSlices can't have addresses of the loopback range: see kubelet/services.py
            "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
            f"--root-ca-file={pki.authority}",
            f"--service-account-private-key-file={pki.service_accounts}",
        ),
        "kube-scheduler": (kubernetes / "kube-scheduler", f"--config={state.scheduler}", "--secure-port=0"),
        "kwok": (
            folders["kwok"] / "kwok",
            *client,
            f"--config={folders['kwok'] / 'kustomize/stage/node/fast/node-initialize.yaml'}",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
        ),
        "kubelet": (sys.executable, "-m", "local.kubelet", str(state.directory)),
        **(volcano.commands(folders["volcano"], state.volcano, client) if "volcano" in folders else {}),
    }
    depends_on = {
        "etcd": "",
        "kube-apiserver": "",
        "kubelet": server + _digest([state.description, *_sources()]),
        "kube-scheduler": server + _digest([state.scheduler]),
        **({volcano.SCHEDULER: server + _digest([state.volcano])} if "volcano" in folders else {}),
    }
    own = {"kubelet": {"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}}
    return [
        Program(
            name,
            tuple(str(argument) for argument in command),
            HELD_BACK_MEMORY | own.get(name, {}) | {"KTHENA_PD_DEPENDS_ON": depends_on.get(name, server)},
        )
        for name, command in commands.items()
    ]


def kubeconfig(server: str, pki: Pki) -> str:
    """Kubeconfig of the administrator (YAML) with the one context ``kthena-pd-local``."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority": str(pki.authority)}}],
            "users": [{"name": CONTEXT, "user": {"token": pki.administrator_token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
            "current-context": CONTEXT,
        },
        sort_keys=False,
    )


def scheduler_configuration(kubeconfig_file: Path, npus: Iterable[str]) -> str:
    """Configuration of the scheduler (YAML): like clusters of accelerators, it fills one server before it begins another.

    Spread out, two small pods would leave no whole server for a large one.

    Args:
        npus: extended resources that stand for dies
    """
    resources = [{"name": name, "weight": 1} for name in npus]
    packing = {"scoringStrategy": {"type": "MostAllocated", "resources": resources}}
    return yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig_file), "qps": 400, "burst": 800},
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
            "profiles": [
                {
                    "schedulerName": "default-scheduler",
                    "plugins": {"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 10}]}},
                    "pluginConfig": [{"name": "NodeResourcesFit", "args": packing}],
                }
            ],
        },
        sort_keys=False,
    )


def link(name: Path, target: Path) -> None:
    """Let ``name`` point to ``target``, for whoever looks at any moment."""
    name.parent.mkdir(exist_ok=True)
    new = name.with_name(f"{name.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(name)


def _write_private(file: Path, text: str) -> None:
    """Write a file for its owner only, whole or not at all."""
    new = file.with_name(file.name + ".new")
    new.touch(mode=0o600)
    new.chmod(stat.S_IRUSR | stat.S_IWUSR)
    new.write_text(text)
    new.replace(file)


def _sources() -> list[Path]:
    """What the kubelet is made of: an edited kubelet is a new one."""
    here = Path(__file__).parent
    return [here / "api.py", here / "cluster.py", here / "container.py", *sorted((here / "kubelet").glob("*.py"))]


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _fill_hosts(hosts: Path, nodes: Iterable[Node]) -> None:
    """Make the nodes' file systems. What pods wrote there stays, except in files of the description."""
    for node in nodes:
        for path, content in node.files.items():
            file = hosts / node.name / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_text(errors="replace") != content:
                file.write_text(content)
            file.chmod(0o755 if content.startswith("#!") else 0o644)
    for left in set(hosts.iterdir()) - {hosts / node.name for node in nodes}:
        shutil.rmtree(left, ignore_errors=True)


def _runs(program: Program, state: State) -> bool:
    """Whether ``program`` runs, and as it should."""
    found = processes.running(state.pids, program.name)
    return found is not None and found.fingerprint == program.fingerprint


def _ensure(program: Program, state: State) -> bool:
    """Start ``program`` unless it runs as it should. Whether it was started."""
    if _runs(program, state):
        return False
    _stop(state, program.name)
    if program.name == "kubelet":
        state.kubelet_ready.unlink(missing_ok=True)
    log = state.logs / f"{program.name}.log"
    if log.exists():  # one earlier run is kept, to see what it died of
        log.replace(log.with_suffix(".log.1"))
    processes.start(program, state.pids, state.logs)
    return True


async def _until(name: str, ready: Callable[[], Awaitable[bool]], state: State, wanted: Mapping[str, Program]) -> None:
    """Wait until ``ready``, and give up when one of the ``wanted`` programs ends."""
    deadline = time.monotonic() + READY_SECONDS
    while not await ready():
        for program in wanted:
            if program in COMPONENTS[: COMPONENTS.index(name) + 1] and not processes.running(state.pids, program):
                raise LocalError(
                    f"{program} ended while it was started. The end of {state.logs / program}.log:\n"
                    + _tail(state.logs / f"{program}.log"),
                    _remedy(program, state),
                )
        if time.monotonic() > deadline:
            raise LocalError(
                f"{name} is not ready after {READY_SECONDS} s. The end of {state.logs / name}.log:\n"
                + _tail(state.logs / f"{name}.log"),
                "run make up again; if that does not help, make down first",
            )
        await asyncio.sleep(0.05)


def _remedy(program: str, state: State) -> str:
    if program == "etcd":
        return f"if its data is damaged (a machine that lost power): make down, rm -r {state.etcd}, make up"
    return "run make up again; if that does not help, make down first"


def _tail(file: Path, lines: int = 8) -> str:
    try:
        return "\n".join(f"    {line}" for line in file.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "    (no log)"


async def _is_ready(api: Api) -> bool:
    try:
        return await api.text("/readyz") == "ok"
    except httpx.HTTPError:
        return False


async def check_service_range(api: Api) -> None:
    """Refuse objects of an earlier version of the cluster: its range stays what it was first, and nobody reached those Services.

    Raises:
        LocalError: with the remedy.
    """
    found = await api.get(SERVICE_RANGE)
    if found and found["spec"]["cidrs"] != [SERVICES]:
        raise LocalError(
            f"the local cluster is of an earlier version: its Services are in {found['spec']['cidrs'][0]}, not in {SERVICES}",
            "make clean, then make up: it is made anew, and the stack with it",
        )


async def _apply_nodes(api: Api, nodes: Iterable[Node]) -> None:
    """Make the nodes of the description, and remove those that were described before."""
    found = await api.request("GET", "/api/v1/nodes", parameters={"labelSelector": NODE_LABEL})
    there = {node["metadata"]["name"]: node for node in found["items"]}
    wanted = {node.name: node for node in nodes}
    changed = [node for node in wanted.values() if not _matches(there.get(node.name), node)]
    for start in range(0, len(changed), 20):
        await asyncio.gather(*(_apply_node(api, node) for node in changed[start : start + 20]))
    for name in there.keys() - wanted.keys():
        await api.request("DELETE", f"/api/v1/nodes/{name}")


def _matches(found: Object | None, node: Node) -> bool:
    """Whether the node in the cluster is as described."""
    return bool(
        found
        and found["metadata"]["annotations"].get("kthena-pd.local/description") == _description_of(node)
        and found["status"].get("addresses")
    )


def _description_of(node: Node) -> str:
    told = node.model_dump_json(exclude={"files"})
    return hashlib.sha256(told.encode()).hexdigest()[:16]


async def _apply_node(api: Api, node: Node) -> None:
    path = f"/api/v1/nodes/{node.name}"
    identity: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        NODE_LABEL: "simulated",
        **node.labels,
    }
    annotations = {"kwok.x-k8s.io/node": "fake", "kthena-pd.local/description": _description_of(node)}
    metadata = {"name": node.name, "labels": labels, "annotations": annotations}
    await api.apply(path, {**identity, "metadata": metadata}, MANAGER)
    addresses = [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}]
    amounts = {"capacity": node.capacity, "allocatable": node.capacity}
    # kwok has a say in the status, too: a patch leaves its part alone
    await api.request("PATCH", f"{path}/status", {"status": {"addresses": addresses, **amounts}}, STRATEGIC)


async def _nodes_ready(api: Api, nodes: Iterable[Node]) -> bool:
    """Whether kwok cares for all nodes, they have their addresses, and pods can be scheduled on them."""
    found = await api.request("GET", "/api/v1/nodes", parameters={"labelSelector": NODE_LABEL})
    leases = await api.request("GET", LEASES)
    ready = {node["metadata"]["name"] for node in found["items"] if _is_usable(node)}
    cared_for = {lease["metadata"]["name"] for lease in leases["items"]}
    if not {node.name for node in nodes} <= ready & cared_for:
        return False
    there = {node["metadata"]["name"]: node for node in found["items"]}
    # a kwok that sees a node before its addresses are written writes that it has none; once it is ready, kwok leaves it alone
    lacking = [node for node in nodes if not _matches(there[node.name], node)]
    await asyncio.gather(*(_apply_node(api, node) for node in lacking))
    return not lacking


def _is_usable(node: Object) -> bool:
    return holds(node, "Ready") and not node["spec"].get("taints")


async def _accounts_made(api: Api) -> bool:
    """Whether pods can be created: their service account and the CA that they are given exist."""
    paths = ("/api/v1/namespaces/default/serviceaccounts/default", "/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
    try:
        return all([await api.get(path) for path in paths])
    except ApiError:
        return False


async def _has_taken_charge(state: State) -> bool:
    found = processes.running(state.pids, "kubelet")
    try:
        return bool(found) and state.kubelet_ready.read_text() == str(found.pid if found else 0)
    except FileNotFoundError:
        return False
