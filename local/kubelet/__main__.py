"""The kubelet's process: ``python -m local.kubelet STATE_DIRECTORY``."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from local.api import MERGE, Api, ApiError, Object
from local.cluster import Cluster
from local.kubelet import devices, services
from local.kubelet.addresses import Addresses
from local.kubelet.pods import Node, Pod, clean
from local.kubelet.probes import Prober
from local.state import State, network_holder

DEAD_PODS_KEPT = 50
"""folders of dead pods that stay, for their logs"""

log = logging.getLogger("local.kubelet")


class Kubelet:
    """All pods of all simulated nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes = {one.name for one in node.cluster.nodes}
        self._pods: dict[str, Pod] = {}
        self._services: dict[str, Object] = {}
        self._with_endpoints: set[str] = set()
        self._balance = asyncio.Event()
        self._listed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop``; then end every container."""
        work = [
            asyncio.create_task(one)
            for one in (self._follow_pods(), self._follow_services(), self._give_addresses(), self._report_charge())
        ]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, *work}, return_when=asyncio.FIRST_COMPLETED)
        for one in work:
            one.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        log.info("ending %d pods", len(self._pods))
        await asyncio.gather(*(pod.halt() for pod in self._pods.values()))
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _follow_pods(self) -> None:
        async for kind, found in self._node.api.follow("/api/v1/pods", "spec.nodeName!="):
            if kind == "LIST":
                there = {pod["metadata"]["uid"] for pod in found["items"]}
                for uid in self._pods.keys() - there:
                    self._pods[uid].gone()
                for pod in found["items"]:
                    self._node.addresses.mark(pod.get("status", {}).get("podIP", ""))
                    self._node.devices.mark(pod["spec"]["nodeName"], devices.given(pod))
                for pod in found["items"]:
                    self._observe(pod)
                self._prune()
                self._listed.set()
            elif kind == "DELETED":
                if known := self._pods.get(found["metadata"]["uid"]):
                    known.gone()
            else:
                self._observe(found)
            self._balance.set()

    def _observe(self, found: Object) -> None:
        uid = found["metadata"]["uid"]
        if uid not in self._pods:
            finished = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if finished or found["spec"]["nodeName"] not in self._nodes:
                return
            pod = self._pods[uid] = Pod(found, self._node)
            watcher = asyncio.create_task(self._forget_when_over(pod))
            self._tasks.add(watcher)
            watcher.add_done_callback(self._tasks.discard)
        self._pods[uid].update(found)

    async def _forget_when_over(self, pod: Pod) -> None:
        await pod.over.wait()
        del self._pods[pod.uid]
        self._prune()

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

    async def _give_addresses(self) -> None:
        while True:
            await self._balance.wait()
            self._balance.clear()
            pods = [pod.object for pod in self._pods.values()]
            for uid in self._services.keys() - self._with_endpoints:
                await self._make_endpoints(uid)
            for service in [one for one in self._services.values() if services.wants_address(one)]:
                address = services.address(service, pods)
                if address and address != services.current(service):
                    await self._give_address(service, address)

    async def _make_endpoints(self, uid: str) -> None:
        wanted = services.endpoints(self._services[uid])
        if wanted:
            namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
            try:
                await self._node.api.apply(f"/api/v1/namespaces/{namespace}/endpoints/{name}", wanted, "kubelet")
            except (httpx.HTTPError, ApiError) as error:  # the next change of a pod or service tries again
                log.info("endpoints %s/%s: %s", namespace, name, error)
                return
        self._with_endpoints.add(uid)

    async def _give_address(self, service: Object, address: str) -> None:
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        patch = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        try:
            path = f"/api/v1/namespaces/{namespace}/services/{name}/status"
            self._services[service["metadata"]["uid"]] = await self._node.api.request("PATCH", path, patch, MERGE)
        except (httpx.HTTPError, ApiError) as error:  # the next change of a pod or service tries again
            log.info("service %s/%s: %s", namespace, name, error)


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
        node = Node(
            api,
            state,
            cluster,
            Prober(),
            Addresses(cluster.pod_cidr),
            devices.Devices(),
            (server.hostname or "", str(server.port)),
        )
        await Kubelet(node).run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(main(Path(sys.argv[1])))
