"""The kubelet's process: ``python -m local.kubelet STATE_DIRECTORY``."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from local.api import MERGE, Api, ApiError, Object, is_gone
from local.cluster import Cluster
from local.kubelet import devices, services
from local.kubelet.addresses import Addresses
from local.kubelet.containers import RETRY_SECONDS
from local.kubelet.environment import REFERENCED
from local.kubelet.forwarding import Forwarder
from local.kubelet.pods import Node, Pod, clean
from local.kubelet.probes import Prober
from local.kubelet.server import identity, serve
from local.kubelet.tasks import begin, log_defect
from local.pki import Pki
from local.state import State, network_holder

DEAD_PODS_KEPT = 50
"""folders of dead pods that stay, for their logs"""

HOSTS = Path("/etc/hosts")

log = logging.getLogger("local.kubelet")


class Kubelet:
    """All pods of all simulated nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes = {one.name for one in node.cluster.nodes}
        self._pods: dict[str, Pod] = {}
        self._services: dict[str, Object] = {}
        self._with_endpoints: set[str] = set()
        self._forwarder = Forwarder()
        self._balance = asyncio.Event()
        self._listed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name, the newest where an earlier one is yet to end; None if there is none."""
        named = (pod for pod in reversed(self._pods.values()) if (pod.namespace, pod.name) == (namespace, name))
        return next(named, None)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop``; then end every container."""
        parts: tuple[Callable[[], Awaitable[None]], ...] = (
            self._follow_pods,
            self._follow_services,
            self._give_addresses,
            self._forwarder.run,
            self._report_charge,
            *(partial(self._follow_contents, kind) for kind in REFERENCED),
        )
        work = [asyncio.create_task(self._keep_up(part)) for part in parts]
        await stop.wait()
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        log.info("ending %d pods", len(self._pods))
        for failure in await asyncio.gather(*(pod.halt() for pod in self._pods.values()), return_exceptions=True):
            if isinstance(failure, Exception):
                log.error("ending a pod", exc_info=failure)

    async def _keep_up(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the work for ever: a defect in it is told, and costs neither the other parts nor the pods."""
        while True:
            try:
                await part()
            except Exception:
                log.exception("a defect of the local kubelet; trying again")
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_pods(self) -> None:
        async for kind, found in self._node.api.follow("/api/v1/pods", "spec.nodeName!="):
            if kind == "LIST":
                there = {pod["metadata"]["uid"] for pod in found["items"]}
                for uid in self._pods.keys() - there:
                    self._pods[uid].gone()
                ours = [pod for pod in found["items"] if self._is_ours(pod)]
                for pod in ours:
                    self._node.addresses.mark(pod.get("status", {}).get("podIP", ""))
                    self._node.devices.mark(pod["spec"]["nodeName"], devices.given(pod))
                for pod in ours:
                    self._observe(pod)
                self._prune()
                self._listed.set()
            elif kind == "DELETED":
                if known := self._pods.get(found["metadata"]["uid"]):
                    known.gone()
            elif self._is_ours(found):
                self._observe(found)
            self._balance.set()

    def _is_ours(self, found: Object) -> bool:
        """Whether the pod is to run here, or has run since this kubelet started and still has its address and dies."""
        finished = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
        return found["metadata"]["uid"] in self._pods or (not finished and found["spec"]["nodeName"] in self._nodes)

    def _observe(self, found: Object) -> None:
        uid = found["metadata"]["uid"]
        try:
            if uid not in self._pods:
                pod = self._pods[uid] = Pod(found, self._node)
                watcher = begin(self._forget_when_over(pod), log_defect)
                self._tasks.add(watcher)
                watcher.add_done_callback(self._tasks.discard)
            self._pods[uid].update(found)
        except Exception:  # this pod waits for its next change, the others are not kept waiting
            log.exception("pod %s/%s", found["metadata"]["namespace"], found["metadata"]["name"])

    async def _forget_when_over(self, pod: Pod) -> None:
        await pod.over.wait()
        del self._pods[pod.uid]
        self._prune()
        self._balance.set()

    def _prune(self) -> None:
        """Remove the folders of dead pods but for the last ones."""
        alive = {pod.directory for pod in self._pods.values()}
        dead = [directory for directory in self._node.state.pods.iterdir() if directory not in alive]
        dead.sort(key=lambda directory: directory.stat().st_mtime, reverse=True)
        for directory in dead:
            clean(directory)
        for directory in dead[DEAD_PODS_KEPT:]:
            shutil.rmtree(directory, ignore_errors=True)

    async def _report_charge(self) -> None:
        """Say when the status of every pod is this kubelet's, so that nobody trusts an earlier one's."""
        await self._listed.wait()
        await asyncio.gather(*(pod.published.wait() for pod in list(self._pods.values())))
        self._node.state.kubelet_ready.write_text(str(os.getpid()))
        log.info("in charge of %d pods", len(self._pods))
        await asyncio.Event().wait()

    async def _follow_services(self) -> None:
        async for kind, found in self._node.api.follow("/api/v1/services"):
            if kind == "LIST":
                self._services = {one["metadata"]["uid"]: one for one in found["items"]}
            elif kind == "DELETED":
                self._services.pop(found["metadata"]["uid"], None)
            else:
                self._services[found["metadata"]["uid"]] = found
            self._balance.set()

    async def _follow_contents(self, kind: str) -> None:
        """Tell pods when a ConfigMap or Secret that they refer to has changed, or may have."""
        async for event, found in self._node.api.follow(f"/api/v1/{REFERENCED[kind]}"):
            for pod in self._pods.values():
                if event == "LIST" or pod.refers_to(kind, found):
                    pod.outdated.set()

    async def _give_addresses(self) -> None:
        machine = HOSTS.read_text().rstrip("\n") + "\n" if HOSTS.exists() else ""
        self._balance.set()
        while True:
            await self._balance.wait()
            self._balance.clear()
            pods = [pod.object for pod in self._pods.values()]
            self._forwarder.want(services.forwards(self._services.values(), pods))
            self._give_names(machine + services.host_names(self._services.values(), pods))
            # services come and go while requests are answered
            for uid, service in list(self._services.items()):
                if uid not in self._with_endpoints and await self._make_endpoints(service):
                    self._with_endpoints.add(uid)
                if services.wants_address(service):
                    await self._give_address(service, services.address(service, pods))

    def _give_names(self, names: str) -> None:
        """Write the containers' ``/etc/hosts``. In place: it is mounted in them, and a new file would not be."""
        file = self._node.state.etc_hosts
        if not file.exists() or file.read_text() != names:
            file.write_text(names)

    async def _make_endpoints(self, service: Object) -> bool:
        """Make the Endpoints that ``service`` should have. Whether it has them."""
        wanted = services.endpoints(service)
        if wanted is None:
            return True
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        return await self._done(self._node.api.apply(f"/api/v1/namespaces/{namespace}/endpoints/{name}", wanted, "kubelet"))

    async def _give_address(self, service: Object, address: str) -> None:
        """Give ``service`` its address; the watch tells when it has it."""
        if address and address != services.current(service):
            namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
            patch = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
            await self._done(
                self._node.api.request("PATCH", f"/api/v1/namespaces/{namespace}/services/{name}/status", patch, MERGE)
            )

    async def _done(self, request: Awaitable[Object]) -> bool:
        """Whether ``request`` for a service succeeds; if not, all services are looked at again soon."""
        try:
            await request
        except (httpx.HTTPError, ApiError) as error:
            log.info("services: %s %s", type(error).__name__, error)
            if not is_gone(error):
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._balance.set)
            return False
        return True


async def main(directory: Path) -> None:
    """Run the kubelet of the cluster whose state is in ``directory`` until SIGTERM or SIGINT."""
    state = State(directory)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = Cluster.model_validate_json(state.description.read_text())
    server = urlsplit(yaml.safe_load(state.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    async with Api.from_kubeconfig(state.kubeconfig) as api:
        hold = socket.create_server(network_holder(cluster.network))
        log.info("this cluster has network %d: %s", cluster.network, hold.getsockname())
        state.etc_hosts.touch()
        node = Node(
            api,
            state,
            cluster,
            Prober(),
            Addresses(cluster.pod_cidr),
            devices.Devices({one.name: devices.count(one.capacity) for one in cluster.nodes}),
            (server.hostname or "", str(server.port)),
        )
        kubelet = Kubelet(node)
        port = network_holder(cluster.network)[1]
        server = await serve(kubelet.find, [one.address for one in cluster.nodes], port, identity(Pki(state.pki)))
        try:
            await kubelet.run(stop)
        finally:
            server.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(main(Path(sys.argv[1])))
