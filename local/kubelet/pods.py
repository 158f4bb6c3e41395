"""One pod: its volumes, init containers and containers, its status, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from local import container
from local.api import MERGE, STRATEGIC, Api, ApiError, Object, holds, is_gone
from local.cluster import Cluster
from local.container import Mount
from local.kubelet import ERR_IMAGE_PULL, StartError, devices, volumes
from local.kubelet.addresses import Addresses
from local.kubelet.containers import RETRY_SECONDS, TERMINATION_LOG, Container, now
from local.kubelet.environment import REFERENCED, Objects, environment, expand, references
from local.kubelet.events import Notice, event
from local.kubelet.probes import Prober
from local.kubelet.services import is_ready
from local.kubelet.tasks import begin
from local.state import PodFolder, State

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOKEN_SECONDS = 365 * 24 * 3600
"""A token is not renewed while its pod runs, so it lives longer than any pod here, whatever the pod asks for."""
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
"""of a container that declares none"""
SAME_EVENT_SECONDS = 60.0
"""the same thing is not told again before"""
TOGETHER_SECONDS = 0.02
"""changes so close to each other are published as one"""
GRACE_AT_SHUTDOWN = 5.0
"""seconds that containers have to end when the kubelet itself is told to"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """What all pods of this kubelet share."""

    api: Api
    state: State
    cluster: Cluster
    prober: Prober
    addresses: Addresses
    devices: devices.Devices
    server: tuple[str, str]
    """host and port of the API server, as pods get them"""


class Pod:
    """A pod that is bound to a node, from the moment the kubelet sees it until its object is gone."""

    def __init__(self, found: Object, node: Node) -> None:
        metadata = found["metadata"]
        self.namespace, self.name, self.uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self.directory = node.state.pods / PodFolder(self.namespace, self.name, self.uid).name
        self.published = asyncio.Event()
        """its status is the kubelet's own, no longer that of an earlier one"""
        self.over = asyncio.Event()
        """its containers have ended, and its object is gone"""
        self.outdated = asyncio.Event()
        """something that its volumes are filled from has changed"""
        self._node = node
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._changed, self._gone = asyncio.Event(), asyncio.Event()
        self._changed.set()
        self._initialized = False
        self._placed: dict[str, Path] = {}
        self._issued: dict[volumes.Token, str] = {}
        self._transitions: dict[str, tuple[str, str]] = {}
        self._told: dict[Notice, float] = {}
        self._sent: Object = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        spec, status = found["spec"], found.get("status", {})
        self._init = self._containers(spec.get("initContainers") or [], status.get("initContainerStatuses") or [])
        self._main = self._containers(spec["containers"], status.get("containerStatuses") or [])
        # nothing below may fail: an address that is given to a pod that is not there is lost
        self._dies = devices.given(found)
        self._network = self._addresses_of(found)
        self.address: str = self._network["podIP"]
        self.object = self._complete(found)
        self._life = begin(self._live(), self._failed)
        self._publisher = begin(self._publish_changes(), self._failed)

    def _addresses_of(self, found: Object) -> Object:
        """Part of the status that says where the pod is: kept once it is given."""
        status = found.get("status", {})
        host = next(node.address for node in self._node.cluster.nodes if node.name == found["spec"]["nodeName"])
        address = status.get("podIP", "")
        if found["spec"].get("hostNetwork"):
            address = host
        elif address not in self._node.addresses:
            address = self._node.addresses.take()
        return {
            "hostIP": host,
            "hostIPs": [{"ip": host}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": status.get("startTime") or now(),
        }

    def _complete(self, found: Object) -> Object:
        """Its object with what only the kubelet knows for sure: an event that comes late lacks it."""
        metadata, given = found["metadata"], devices.left_on(found, self._dies)
        return {
            **found,
            "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **given}},
            "status": {**found.get("status", {}), **self._network},
        }

    def _containers(self, specs: Iterable[Object], statuses: Iterable[Object]) -> list[Container]:
        known = {status["name"]: status for status in statuses}
        result = []
        for spec in specs:
            made = Container(spec, self.directory / spec["name"], self._starter(spec), self._changed.set, self._tell)
            made.resume(known.get(spec["name"], {}))
            result.append(made)
        return result

    # what the API server says

    def update(self, found: Object) -> None:
        """Its object has changed."""
        ours = self._sent.get("conditions")
        self.object = self._complete(found)
        if ours and is_ready(found) != self._all_ready() and "deletionTimestamp" not in found["metadata"]:
            self._sent = {}  # someone else (the node controller) had a say
            self._changed.set()
        if "deletionTimestamp" in found["metadata"] and not self._ending:
            self._ending = True
            grace = found["metadata"].get("deletionGracePeriodSeconds")
            self._spawn(self._end(30 if grace is None else grace))

    def gone(self) -> None:
        """Its object no longer exists: whatever still runs ends at once."""
        self._gone.set()
        self.published.set()
        if not self._ending:
            self._ending = True
            self._spawn(self._end(0))

    def refers_to(self, kind: str, found: Object) -> bool:
        """Whether a container or volume of it is filled from the object, of that kind, which was ``found``."""
        metadata = found["metadata"]
        return metadata["namespace"] == self.namespace and (kind, metadata["name"]) in references(self.object)

    def container(self, name: str) -> Container | None:
        """Its container or init container of that name, None if it has none."""
        return next((one for one in self._main + self._init if one.name == name), None)

    async def halt(self) -> None:
        """The kubelet ends, the pod does not: end the containers, and say that it is not ready."""
        self._ending = True
        await self._stop_containers(GRACE_AT_SHUTDOWN)
        self._publisher.cancel()
        with contextlib.suppress(httpx.HTTPError, ApiError, TimeoutError):  # the API server may end at the same time
            await asyncio.wait_for(self._publish(), 2)

    # its life

    async def _live(self) -> None:
        if all(self._is_simulated(one) for one in self._init + self._main):
            await self._run_containers()
            return
        for one in self._init + self._main:
            one.directory.mkdir(parents=True, exist_ok=True)
        await self._give_devices()
        await self._prepare_volumes()
        await asyncio.gather(self._run_containers(), self._refresh_volumes())

    async def _run_containers(self) -> None:
        sidecars = []
        for one in self._main if self._init else []:
            one.wait_for("PodInitializing")
        for one in self._init:
            if _is_sidecar(one):
                sidecars.append(asyncio.create_task(self._run(one, lambda _: True)))
                while not one.started:
                    await asyncio.sleep(0.05)
            elif await self._run(one, lambda code: code != 0 and self._restarts(code)):
                return
        self._initialized = True
        self._changed.set()
        await asyncio.gather(*(self._run(one, self._restarts) for one in self._main), *sidecars)

    def _is_simulated(self, one: Container) -> bool:
        return self._node.cluster.simulates(one.spec["image"])

    async def _run(self, one: Container, restarts: Callable[[int], bool]) -> int:
        if self._is_simulated(one):
            return await one.pretend(ends=one in self._init and not _is_sidecar(one))
        return await one.run(restarts, self._node.prober, self.address)

    def _restarts(self, code: int) -> bool:
        policy = self.object["spec"].get("restartPolicy", "Always")
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _prepare_volumes(self) -> None:
        host = self._node.state.hosts / self.object["spec"]["nodeName"]
        while True:
            try:
                self.outdated.clear()  # a change while the volumes are filled is one more
                self._issued = {token: await self._issue(token) for token in volumes.tokens(self.object)}
                given = volumes.Given(self.object, await self._objects(), self._issued)
                self._placed = volumes.prepare(given, self.directory / "volumes", host)
                return
            except StartError as error:  # only the event tells: a container's state says nothing of volumes
                self._tell(Notice("FailedMount", error.message))
            except (httpx.HTTPError, ApiError, OSError) as error:
                log.info("%s/%s: volumes: %s", self.namespace, self.name, error)
            for one in self._init + self._main:
                one.wait_for("ContainerCreating")
            await asyncio.sleep(RETRY_SECONDS)

    async def _refresh_volumes(self) -> None:
        """Write what has changed of the ConfigMaps and Secrets into the volumes of the running containers."""
        while True:
            await self.outdated.wait()
            self.outdated.clear()
            try:
                given = volumes.Given(self.object, await self._objects(), self._issued)
                volumes.refresh(given, self.directory / "volumes")
            except StartError as error:  # what is gone now stays in the volume
                log.info("%s/%s: %s", self.namespace, self.name, error.message)
            except (httpx.HTTPError, ApiError, OSError) as error:
                log.info("%s/%s: volumes: %s", self.namespace, self.name, error)
                self.outdated.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _give_devices(self) -> None:
        count = devices.wanted(self.object)
        if self._dies:
            return  # its annotation says so
        while count and not self._dies:
            try:
                # from here on they are this pod's, whatever becomes of the request
                self._dies = self._node.devices.take(self.object["spec"]["nodeName"], count)
                self.object = self._complete(self.object)
            except LookupError as error:
                self._tell(Notice("UnexpectedAdmissionError", str(error)))
                for one in self._init + self._main:
                    one.wait_for("UnexpectedAdmissionError", str(error))
                await asyncio.sleep(RETRY_SECONDS)
        patch = {"metadata": {"uid": self.uid, "annotations": devices.left_on(self.object, self._dies)}}
        while self._dies:
            try:
                await self._node.api.request("PATCH", self._path, patch, MERGE)
                return
            except (httpx.HTTPError, ApiError) as error:  # cancelled when the pod is gone
                log.info("%s/%s: devices: %s", self.namespace, self.name, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _objects(self) -> Objects:
        """What the pod refers to, as it is now."""
        found = {}
        for kind, name in references(self.object):
            path = f"/api/v1/namespaces/{self.namespace}/{REFERENCED[kind]}/{name}"
            found[kind, name] = await self._node.api.get(path)
        return found

    async def _issue(self, token: volumes.Token) -> str:
        """A token of the pod's service account, bound to the pod."""
        audience, seconds = token
        account = self.object["spec"].get("serviceAccountName") or "default"
        wanted: Object = {
            "expirationSeconds": max(seconds, TOKEN_SECONDS),
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": self.uid},
        }
        if audience:
            wanted["audiences"] = [audience]
        answer = await self._node.api.request(
            "POST", f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token", {"spec": wanted}
        )
        return str(answer["status"]["token"])

    def _starter(self, spec: Object) -> Callable[[], Awaitable[tuple[str, ...]]]:
        async def start() -> tuple[str, ...]:
            try:
                return await self._start(spec)
            except (httpx.HTTPError, ApiError) as error:
                raise StartError("CreateContainerConfigError", str(error)) from error
            except OSError as error:
                raise StartError("CreateContainerError", str(error)) from error

        return start

    async def _start(self, spec: Object) -> tuple[str, ...]:
        """Command that runs the container ``spec``."""
        image = self._node.cluster.image(spec["image"])
        if image is None:
            known = ", ".join(sorted(self._node.cluster.images))
            raise StartError(ERR_IMAGE_PULL, f"{spec['image']}: not found: local/cluster.yaml has stand-ins for {known} only")
        directory = self.directory / spec["name"]
        given = self._given(spec, directory, image.path)
        variables = environment(spec, self.object, await self._objects(), given)
        words = [*(spec.get("command") or image.entrypoint), *(spec.get("args") or [])]
        if not words:
            raise StartError("CreateContainerError", "no command specified, and the image has no entrypoint")
        next(one for one in self._init + self._main if one.spec is spec).environment = variables
        mounts = volumes.mounts(spec, self.object, self._placed, variables)
        last_words = directory / TERMINATION_LOG
        last_words.write_bytes(b"")
        return container.write_specification(
            directory,
            [expand(word, variables) for word in words],
            variables,
            spec.get("workingDir") or "/",
            [
                Mount(str(self._node.state.etc_hosts), "/etc/hosts", read_only=True),
                Mount(str(last_words), spec.get("terminationMessagePath") or TERMINATION_MESSAGE_PATH),
                *mounts,
            ],
        )

    def _given(self, spec: Object, directory: Path, path: Iterable[str]) -> dict[str, str]:
        """Environment that every container has besides its own."""
        host, port = self._node.server
        npus = devices.of_container(spec)
        pod = self.object
        return {
            "PATH": ":".join([*path, SYSTEM_PATH]),
            "HOME": str(directory),
            "HOSTNAME": pod["spec"]["nodeName"] if pod["spec"].get("hostNetwork") else self.name,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            "LOCAL_POD_IP": self.address,
            "LOCAL_IMAGE": spec["image"],
            "LOCAL_CONTAINER_DIRECTORY": str(directory),
            "LOCAL_PYTHON": sys.executable,
            **({"LOCAL_NPUS": str(npus)} if npus else {}),
            **devices.variables(spec, self._dies),
        }

    # its end

    async def _end(self, grace: float) -> None:
        try:
            await self._stop_containers(grace, say=True)
            await self._delete()
        finally:
            self._publisher.cancel()
            if not self.object["spec"].get("hostNetwork"):
                self._node.addresses.release(self.address)
            self._node.devices.release(self.object["spec"]["nodeName"], self._dies)
            self.published.set()
            self.over.set()
            clean(self.directory)

    async def _delete(self) -> None:
        """Delete its object, which a pod has for as long as its containers run."""
        preconditions = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while not self._gone.is_set():
            try:
                await self._node.api.request("DELETE", self._path, preconditions)
                return
            except (httpx.HTTPError, ApiError) as error:
                log.info("%s/%s: %s %s", self.namespace, self.name, type(error).__name__, error)
                if is_gone(error):
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _stop_containers(self, grace: float, *, say: bool = False) -> None:
        everyone = [*self._main, *reversed(self._init)]
        stops = (one.stop(grace, self._gone, self._node.prober, self.address, say=say) for one in everyone)
        for failure in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(failure, Exception):
                self._failed(failure)
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)  # what it failed of has been told

    # its status

    def _all_ready(self) -> bool:
        return self._initialized and all(one.ready for one in self._main)

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(TOGETHER_SECONDS)
            self._changed.clear()
            try:
                await self._publish()
                self.published.set()
            except (httpx.HTTPError, ApiError) as error:
                log.info("%s/%s: status: %s %s", self.namespace, self.name, type(error).__name__, error)
                if is_gone(error):
                    self.published.set()
                    continue
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _publish(self) -> None:
        status = self._status()
        if status != self._sent:
            # the uid makes sure that a new pod of the same name does not get an old one's status
            replaced = {key: [{"$patch": "replace"}, *status[key]] for key in ("hostIPs", "podIPs")}
            patch = {"metadata": {"uid": self.uid}, "status": {**status, **replaced}}
            await self._node.api.request("PATCH", f"{self._path}/status", patch, STRATEGIC)
            self._sent = status

    def _status(self) -> Object:
        unready = [one.name for one in self._main if not one.ready]
        ready = self._all_ready()
        why = {} if ready else {"reason": "ContainersNotReady", "message": f"containers with unready status: {unready}"}
        gates = [gate["conditionType"] for gate in self.object["spec"].get("readinessGates") or []]
        passed = all(holds(self.object, gate) for gate in gates)
        status: Object = {
            **self._network,
            "phase": phase(self.object["spec"].get("restartPolicy", "Always"), self._init, self._main),
            "conditions": [
                self._condition("Initialized", holds=self._initialized),
                self._condition("ContainersReady", holds=ready) | why,
                self._condition("Ready", holds=ready and passed) | why,
            ],
            "containerStatuses": [one.status() for one in self._main],
        }
        if self._init:
            status["initContainerStatuses"] = [
                one.status() | {"ready": one.ready if _is_sidecar(one) else one.exit_code == 0} for one in self._init
            ]
        return status

    def _condition(self, kind: str, *, holds: bool) -> Object:
        value = str(holds)
        if self._transitions.get(kind, ("", ""))[0] != value:
            self._transitions[kind] = (value, now())
        return {"type": kind, "status": value, "lastTransitionTime": self._transitions[kind][1], "reason": "", "message": ""}

    def _tell(self, notice: Notice) -> None:
        """Make an event of ``notice``."""
        last = self._told.get(notice, -SAME_EVENT_SECONDS)
        if time.monotonic() - last >= SAME_EVENT_SECONDS:
            self._told[notice] = time.monotonic()
            log.info("%s/%s: %s: %s", self.namespace, self.name, notice.reason, notice.message)
            self._spawn(self._send(event(self.object, notice, now())))

    async def _send(self, made: Object) -> None:
        with contextlib.suppress(httpx.HTTPError, ApiError):  # an event is a courtesy
            await self._node.api.request("POST", f"/api/v1/namespaces/{self.namespace}/events", made)

    def _failed(self, error: BaseException) -> None:
        """Say that a part of the kubelet's work on this pod has ended in a way that nobody foresaw."""
        log.error("%s/%s: a defect of the local kubelet", self.namespace, self.name, exc_info=error)
        self._tell(Notice("FailedSync", f"a defect of the local kubelet: {type(error).__name__}: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work, self._failed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_sidecar(one: Container) -> bool:
    """Whether an init container runs along with the pod's containers."""
    return bool(one.spec.get("restartPolicy") == "Always")


def phase(policy: str, init: Iterable[Container], main: Iterable[Container]) -> str:
    """Phase of a pod with these containers, as kubelet derives it."""
    init, main = list(init), list(main)
    if any(one.done and one.exit_code for one in init):
        return "Failed"
    if policy != "Always" and all(one.done for one in main):
        return "Failed" if any(one.exit_code for one in main) else "Succeeded"
    never_ran = any("waiting" in one.state and not one.last_state for one in main)
    return "Pending" if never_ran else "Running"


def clean(directory: Path) -> None:
    """Remove everything of a dead pod but what its containers wrote to their folders: volumes hold secrets."""
    shutil.rmtree(directory / "volumes", ignore_errors=True)
    for specification in directory.glob("*/container.json"):
        specification.unlink(missing_ok=True)
        shutil.rmtree(specification.parent / "root", ignore_errors=True)
