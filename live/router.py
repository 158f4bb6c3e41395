"""What Kthena's router knows of a deployment: its debug endpoint is the only place that says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise

from live import paths
from live.api import Api, ClusterError, Object, UnreachableError
from live.pods import is_terminating, status_of
from render.names import ROUTER_NAME, selector

ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class RouterView:
    """Names of the pods that one router pod has sorted for one ModelServer."""

    prefill: frozenset[str] = frozenset()
    decode: frozenset[str] = frozenset()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Role and name of each pod."""
        return frozenset({*(("prefill", pod) for pod in self.prefill), *(("decode", pod) for pod in self.decode)})


class NoRouterError(ClusterError):
    """The cluster has no router of Kthena, or has it elsewhere."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"there is no Deployment {ROUTER_NAME} in namespace {namespace}")


async def read_router(
    api: Api, control_plane_namespace: str, debug_port: int, namespace: str, model_server: str
) -> list[RouterView]:
    """Ask each running pod of the router, through a port-forward, for it answers on its own loopback interface only.

    Args:
        api: The cluster.
        control_plane_namespace: Of the router.
        debug_port: Where it answers, if it was not started with another one.
        namespace: Of the ModelServer.
        model_server: Its name.

    Returns:
        One view for each pod; an empty one where it does not know the ModelServer.

    Raises:
        ClusterError: there is no router, or it can't be asked.
    """
    pods = await _router_pods(api, control_plane_namespace)
    return list(
        await asyncio.gather(
            *(
                _ask(
                    api, control_plane_namespace, pod["metadata"]["name"], _debug_port(pod) or debug_port, namespace, model_server
                )
                for pod in pods
            )
        )
    )


async def _router_pods(api: Api, namespace: str) -> list[Object]:
    deployment = await api.get(paths.deployments(namespace, ROUTER_NAME))
    if deployment is None:
        raise NoRouterError(namespace)
    # the labels of its pods depend on who has installed it
    found = await api.list(paths.pods(namespace), selector(deployment["spec"]["selector"]["matchLabels"]))
    pods = [pod for pod in found if status_of(pod).get("phase") == "Running" and not is_terminating(pod)]
    if not pods:
        raise UnreachableError(f"no pod of {ROUTER_NAME} runs in namespace {namespace}")
    return pods


def _debug_port(pod: Object) -> int | None:
    """The port that the router was started with, whoever has declared it; None where it is Kthena's default."""
    words = [
        word
        for container in pod["spec"]["containers"]
        for argument in container.get("args") or ()
        for word in argument.split("=")
    ]
    given = [value for flag, value in pairwise(words) if flag.lstrip("-") == "debug-port" and value.isdecimal()]
    return int(given[-1]) if given else None


async def _ask(  # noqa: PLR0913, PLR0917  # who, and of whom
    api: Api, control_plane_namespace: str, pod: str, debug_port: int, namespace: str, model_server: str
) -> RouterView:
    import httpx  # noqa: PLC0415

    path = f"/debug/config_dump/namespaces/{namespace}/modelservers/{model_server}"
    try:
        async with (
            api.forward(control_plane_namespace, pod, debug_port) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=ANSWER_SECONDS) as client,
        ):
            response = await client.get(path)
            if response.status_code == httpx.codes.NOT_FOUND:
                return RouterView()
            found = response.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise UnreachableError(
            f"router pod {control_plane_namespace}/{pod} does not say on port {debug_port} what it knows: "
            f"{str(error) or type(error).__name__}"
        ) from error
    return RouterView(_names(found.get("prefillPods")), _names(found.get("decodePods")))


def _names(pods: list[str] | None) -> frozenset[str]:
    """Names of ``namespace/name``; a router leaves out empty lists."""
    return frozenset(pod.rpartition("/")[2] for pod in pods or ())
