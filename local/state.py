"""Where one local cluster keeps what it owns, and the ports that it was given once."""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

from local.errors import LocalError

CHECKOUT = Path(__file__).resolve().parent.parent
NETWORKS = range(1, 240)
SERVICES = "127.240.0.0/12"
"""range of the ClusterIPs, above all networks. Every cluster has the same, and takes addresses from it at random: among a
million of them, two clusters hardly ever meet on one."""
OVERRIDE = "KTHENA_PD_STATE"
"""environment variable that names another state directory, so that a second cluster can run beside the first"""
MARK = "state of a local kthena-pd cluster\n"
"""content of the lock file: whoever names a directory of something else by mistake loses nothing there"""
BEFORE_THE_CLUSTER = {"lock", "pulumi"}
"""what may be in a directory that is not marked yet: Pulumi can be used before the cluster is up"""


class PodFolder(NamedTuple):
    """Whose folder below ``State.pods`` it is. Names and uids in Kubernetes have no underscore."""

    namespace: str
    pod: str
    uid: str

    @property
    def name(self) -> str:
        """Name of the folder."""
        return "_".join(self)

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Read the name of the folder ``directory``."""
        return cls(*directory.name.split("_"))


@dataclass(frozen=True)
class State:
    """Paths of one local cluster, all below one directory."""

    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the cluster's administrator, context ``kthena-pd-local``."""
        return self.directory / "kubeconfig"

    @property
    def scheduler(self) -> Path:
        """Configuration of the scheduler."""
        return self.directory / "kube-scheduler.yaml"

    @property
    def volcano(self) -> Path:
        """Configuration of Volcano's scheduler."""
        return self.directory / "volcano-scheduler.yaml"

    @property
    def pki(self) -> Path:
        """Certificates, keys and the administrator's token."""
        return self.directory / "pki"

    @property
    def logs(self) -> Path:
        """One log for each component of the control plane."""
        return self.directory / "logs"

    @property
    def pids(self) -> Path:
        """One file for each component that was started."""
        return self.directory / "pids"

    @property
    def etcd(self) -> Path:
        """Data of etcd: every object of the cluster."""
        return self.directory / "etcd"

    @property
    def pods(self) -> Path:
        """One folder for each pod: logs, volumes, and what its containers wrote."""
        return self.directory / "pods"

    @property
    def hosts(self) -> Path:
        """One folder for each simulated node: its file system, where ``hostPath`` volumes come from."""
        return self.directory / "hosts"

    @property
    def etc_hosts(self) -> Path:
        """What every container has as ``/etc/hosts``: the machine's, and the names of headless Services."""
        return self.directory / "etc-hosts"

    @property
    def pulumi(self) -> Path:
        """Home and backend of Pulumi."""
        return self.directory / "pulumi"

    @property
    def description(self) -> Path:
        """What the running cluster was described as (JSON), for the kubelet."""
        return self.directory / "cluster.json"

    @property
    def kubelet_ready(self) -> Path:
        """Holds the kubelet's pid once it has taken charge of every pod."""
        return self.directory / "kubelet-ready"

    def owned(self) -> bool:
        """Whether the directory holds the state of a local cluster: only then may it be removed."""
        try:
            return self._lock_file.read_text() == MARK
        except (OSError, UnicodeDecodeError):
            return False

    def create(self) -> None:
        """Make the directories; only their owner may look into them, as they hold keys and tokens.

        Raises:
            LocalError: there is something else in the directory, or it can't be made.
        """
        self._claim()
        for directory in (self.directory, self.pki, self.logs, self.pids, self.etcd, self.pods, self.hosts):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let one ``up`` or ``down`` at a time work on this cluster; others wait.

        Raises:
            LocalError: as ``create``
        """
        self._claim()
        with self._lock_file.open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @property
    def _lock_file(self) -> Path:
        return self.directory / "lock"

    def _claim(self) -> None:
        """Mark the directory as this cluster's, which is made if need be."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            strange = {entry.name for entry in self.directory.iterdir()} - BEFORE_THE_CLUSTER
            if self.owned():
                return
            if not strange:
                self._lock_file.write_text(MARK)
                return
        except OSError as error:
            raise LocalError(f"{self.directory} can't hold the local cluster's state: {error}", _OTHER_DIRECTORY) from error
        raise LocalError(f"{self.directory} is not of a local cluster: it holds {min(strange)}", _OTHER_DIRECTORY)


_OTHER_DIRECTORY = f"let {OVERRIDE} name a directory that is empty or does not exist yet, or unset it"


_LISTENING = range(20_000, 32_000)
"""Linux takes no ports of outgoing connections from these: such a one is free when it is looked at, and not when it is needed."""


def locate() -> State:
    """State of the cluster that this process is about: ``.local/`` of the checkout unless KTHENA_PD_STATE says else."""
    return State(Path(os.environ.get(OVERRIDE) or CHECKOUT / ".local").absolute())


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def ports(file: Path, names: Iterable[str], held: Iterable[str] = ()) -> dict[str, int]:
    """Port of each of ``names``, remembered in ``file``.

    A remembered port stays while it is ``held`` (its own program listens there) or free. A stranger's port is replaced,
    so that a program which took it while the cluster was down does no harm.
    """
    remembered = _remembered(file)
    chosen: dict[str, int] = {}
    with_new = []
    for name in names:
        port = remembered.get(name)
        if port is not None and (name in held or is_free("127.0.0.1", port)):
            chosen[name] = port
        else:
            with_new.append(name)
    chosen |= zip(with_new, free_ports(len(with_new)), strict=True)
    if chosen != remembered:
        file.write_text(json.dumps(chosen, indent=2) + "\n")
    return chosen


def network_holder(number: int) -> tuple[str, int]:
    """Address and port where the kubelet of the cluster with network 127.<number>.0.0/16 listens to hold it."""
    return f"127.{number}.255.254", 10250


def network(file: Path, *, held: bool) -> int:
    """Number N of the network 127.N.0.0/16 that the cluster's nodes and pods have their addresses from.

    It is remembered in ``file`` and stays while it is ``held`` by the cluster's own kubelet or free, so that clusters
    that run at the same time never meet on one address.
    """
    try:
        remembered = int(file.read_text())
    except (FileNotFoundError, ValueError):
        remembered = 0
    if remembered in NETWORKS and (held or is_free(*network_holder(remembered))):
        return remembered
    # in no order: clusters that are started at the same moment hold none yet
    candidates = random.sample(NETWORKS, len(NETWORKS))
    chosen = next((number for number in candidates if is_free(*network_holder(number))), None)
    if chosen is None:
        raise LocalError("all networks 127.N.0.0/16 are in use by other local clusters", "stop one: make down")
    file.write_text(f"{chosen}\n")
    return chosen


def _remembered(file: Path) -> dict[str, int]:
    try:
        found = json.loads(file.read_text())
        return {str(name): int(port) for name, port in found.items()}
    except (FileNotFoundError, ValueError, AttributeError):  # none yet, or damaged by a crash: chosen anew
        return {}


def free_ports(count: int) -> list[int]:
    """Ports on which a server could listen, on any address, in no order: others choose at the same time.

    Raises:
        LocalError: there are not so many.
    """
    candidates = (port for port in random.sample(_LISTENING, len(_LISTENING)) if is_free("", port))
    found = list(islice(candidates, count))
    if len(found) < count:
        raise LocalError("no free port", "end some programs that listen")
    return found
