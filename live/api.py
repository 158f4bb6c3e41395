"""The Kubernetes API of the user's cluster: plain objects over kr8s, which reads the kubeconfig and has its ways to authenticate.

kr8s is imported where a connection is made: half a second that no check and no preview without a cluster should pay.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from live import paths
from live.kubeconfig import read_kubeconfig

if TYPE_CHECKING:
    import httpx
    import httpx_ws
    import kr8s.asyncio

Object = dict[str, Any]
"""a Kubernetes object, or a part of one, as JSON"""

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""a list of some thousand pods over a slow line takes seconds"""
BUSY_SECONDS = 15.0
"""an API server that has just started, or whose CRDs are new, takes no requests for some seconds (429)"""
BUSY_PAUSE_SECONDS = 1.0
"""what it asks for in Retry-After"""

FORBIDDEN = 403
"""to this user, or by what admits objects"""

PAGE = 500
"""objects of one answer, where a cluster may have thousands"""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_UNAUTHORIZED, _NOT_FOUND, _BUSY, _INTERNAL = 401, 404, 429, 500
_LOST_WEBHOOK = re.compile(r"failed calling webhook .*(EOF|connection reset by peer)", re.DOTALL)
_KTHENA = ".serving.volcano.sh/"
_MONITORING = "/monitoring.coreos.com/"
_DATA_CHANNEL = 0
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""what a pod has instead of a kubeconfig"""


class ClusterError(Exception):
    """What a user can act on: the cluster can't be reached, has refused, or lacks Kthena's CRDs."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem + (f"\n  -> {remedy}" if remedy else ""))


class UnreachableError(ClusterError):
    """No answer came; the next one may."""


class UnknownKindError(ClusterError):
    """The cluster has no such kind."""


class MissingKindError(UnknownKindError):
    """The cluster lacks a kind of Kthena's."""


class ApiRefusedError(ClusterError):
    """The API server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        """Take the HTTP status and the API server's own message."""
        self.code = code
        self.message = message
        super().__init__(f"the API server refused ({code}): {message}")


class Api:
    """A client of one cluster, of use in the event loop that it was made in."""

    def __init__(self, client: kr8s.asyncio.Api, context: str | None) -> None:
        self._client = client
        self._context = context
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, context: str | None) -> Self:
        """Connect to the cluster of ``context``, or else of the current context, of KUBECONFIG or ``~/.kube/config``.

        Raises:
            ClusterError: there is no such context, it does not authenticate, or its server does not answer.
        """
        api = cls(await _open(context), context)
        try:
            await api._answer("GET", "/version")
        finally:
            _forget_credentials(api._client)
        return api

    @classmethod
    async def shared(cls, context: str | None) -> Api:
        """The one connection of this event loop to ``context``: a login for each of a hundred deployments takes minutes.

        Raises:
            ClusterError: as ``connect``; the next call tries again.
        """
        made = _connections.setdefault(asyncio.get_running_loop(), {})
        known = made.get(context)
        if known is None or (known.done() and (known.cancelled() or known.exception())):
            made[context] = known = asyncio.ensure_future(cls.connect(context))
        return await known

    @property
    def name(self) -> str:
        """The cluster, as messages call it."""
        return f"context {self._client.auth.active_context or '(service account)'}, {self._client.auth.server}"

    async def get(self, path: str) -> Object | None:
        """The object at ``path``, None if there is none.

        Raises:
            ClusterError: the cluster does not know the kind, refuses or does not answer.
        """
        response = await self._request("GET", path)
        return None if _is_absent(response) else self._body(response, path)

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:
        """The objects of a collection as they are now, each with its apiVersion and kind.

        Args:
            path: Of the collection.
            labels: A label selector.
            fields: A field selector.

        Raises:
            ClusterError: the cluster does not know the kind, refuses or does not answer.
        """
        parameters = {"labelSelector": labels, "fieldSelector": fields}
        response = await self._request("GET", path, parameters={key: value for key, value in parameters.items() if value})
        found = self._body(response, path)
        told = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [told | item for item in found["items"] or ()]

    async def pages(self, path: str, labels: str = "", fields: str = "") -> AsyncIterator[Sequence[Object]]:
        """The objects of a collection, so many at a time that no answer is large; without apiVersion and kind.

        Raises:
            ClusterError: as ``list``.
        """
        parameters = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields, "continue": ""}
        while True:
            given = {key: value for key, value in parameters.items() if value}
            found = self._body(await self._request("GET", path, parameters=given), path)
            yield found["items"] or []
            parameters["continue"] = found["metadata"].get("continue", "")
            if not parameters["continue"]:
                return

    async def metadata(self, path: str) -> Object | None:
        """The object at ``path`` with no more than its metadata, None if there is none; nothing of what is in it is sent.

        Raises:
            ClusterError: as ``get``.
        """
        response = await self._request("GET", path, accept=_METADATA)
        return None if _is_absent(response) else self._body(response, path)

    async def served(self, api_version: str) -> frozenset[str]:
        """Plural names of the kinds, and ``kinds/subresource``, of an API group's version; none where there is no such version.

        Raises:
            ClusterError: the cluster refuses or does not answer.
        """
        path = f"/apis/{api_version}"
        response = await self._request("GET", path)
        if response.status_code == _NOT_FOUND:
            return frozenset()
        return frozenset(one["name"] for one in self._body(response, path)["resources"])

    async def apply(self, declared: Object, manager: str, *, dry_run: bool = False) -> Object:
        """Server-side apply with ``force``: what ``manager`` declares, it owns from then on.

        Raises:
            ClusterError: the cluster refuses or does not answer.
        """
        parameters = {"fieldManager": manager, "force": "true"} | _dry(dry_run)
        return await self._answer("PATCH", paths.of(declared), declared, _APPLY, parameters)

    async def create(self, path: str, declared: Object, *, dry_run: bool = False) -> Object:
        """Create an object in the collection ``path``; with ``dry_run`` it passes all admission, and is not kept.

        Raises:
            ClusterError: the cluster refuses or does not answer.
        """
        return await self._answer("POST", path, declared, _JSON, _dry(dry_run))

    async def patch(self, path: str, merge: Object) -> Object:
        """JSON merge patch.

        Raises:
            ClusterError: the cluster refuses or does not answer.
        """
        return await self._answer("PATCH", path, merge, _MERGE)

    async def delete(self, path: str) -> None:
        """Delete the object at ``path``, if it is there.

        Raises:
            ClusterError: the cluster refuses or does not answer.
        """
        response = await self._request("DELETE", path)
        if not _is_absent(response):
            self._body(response, path)

    @asynccontextmanager
    async def forward(self, namespace: str, pod: str, port: int) -> AsyncIterator[int]:
        """A local port that leads to ``port`` of a pod, as ``kubectl port-forward`` makes it.

        kr8s' own forwarder asks again and again without a pause where it is refused (0.20.15), so only its websocket is used.

        Raises:
            ClusterError: it is forbidden, or the pod's node does not answer.
        """
        async with self._websocket(namespace, pod, port):
            pass  # a refusal is known before anybody connects
        connections: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task:
                connections.add(task)
                task.add_done_callback(connections.discard)
            try:
                async with self._websocket(namespace, pod, port) as socket:
                    await _pump(socket, reader, writer)
            except ClusterError:
                return  # whoever has connected sees the connection closed
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tuple(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    @asynccontextmanager
    async def _websocket(self, namespace: str, pod: str, port: int) -> AsyncIterator[httpx_ws.AsyncWebSocketSession]:
        import httpx  # noqa: PLC0415
        import httpx_ws  # noqa: PLC0415

        url = f"v1/namespaces/{namespace}/pods/{pod}/portforward"
        try:
            async with self._client.open_websocket(version="", base="/api", url=url, params={"ports": str(port)}) as socket:
                yield socket
        except httpx_ws.WebSocketUpgradeError as error:
            status = error.response.status_code
            raise ApiRefusedError(status, f"port-forward to pod {namespace}/{pod} ({error.response.reason_phrase})") from error
        except (httpx_ws.HTTPXWSException, httpx.HTTPError, OSError) as error:
            raise UnreachableError(f"port-forward to pod {namespace}/{pod}: {_words(error)}") from error

    async def _answer(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content: str = _JSON,
        parameters: Mapping[str, str] | None = None,
    ) -> Object:
        return self._body(await self._request(method, path, body, content, parameters), path)

    async def _request(  # noqa: PLR0913, PLR0917  # a request has these parts
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content: str = _JSON,
        parameters: Mapping[str, str] | None = None,
        accept: str = _JSON,
    ) -> httpx.Response:
        """One request, again for as long as the API server is too busy to look at it, or its line to a webhook has ended."""
        latest = time.monotonic() + BUSY_SECONDS
        while True:
            response = await self._authenticated(method, path, body, {"Content-Type": content, "Accept": accept}, parameters)
            if not (response.status_code == _BUSY or _has_lost_webhook(response)) or time.monotonic() >= latest:
                return response
            await asyncio.sleep(BUSY_PAUSE_SECONDS)

    async def _authenticated(
        self, method: str, path: str, body: Object | None, headers: Mapping[str, str], parameters: Mapping[str, str] | None
    ) -> httpx.Response:
        """One request; where credentials have expired meanwhile, once more with new ones."""
        used = self._client
        response = await self._send(used, method, path, body, headers, parameters)
        if response.status_code == _UNAUTHORIZED:
            if self._client is used:
                # one login for all that wait; no login of its own is left to run when the first of them has failed
                if self._renewal is None or self._renewal.done():
                    self._renewal = asyncio.ensure_future(self._renew())
                await self._renewal
            response = await self._send(self._client, method, path, body, headers, parameters)
            _forget_credentials(self._client)
        return response

    async def _renew(self) -> None:
        # another client: kr8s would close connections that other requests wait on
        self._client = await _open(self._context)

    async def _send(  # noqa: PLR0913, PLR0917  # a request has these parts
        self,
        client: kr8s.asyncio.Api,
        method: str,
        path: str,
        body: Object | None,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None,
    ) -> httpx.Response:
        import httpx  # noqa: PLC0415
        import kr8s  # noqa: PLC0415

        base, _, rest = path.removeprefix("/").partition("/")
        try:
            async with client.call_api(
                method,
                version="",
                base=f"/{base}",
                url=rest,
                raise_for_status=False,
                params=dict(parameters or {}),
                headers=dict(headers),
                content=None if body is None else json.dumps(body).encode(),
            ) as response:
                return response
        except (httpx.HTTPError, kr8s.APITimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> UnreachableError:
        said = _words(error)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            remedy = (
                "the kubeconfig's certificate-authority has not signed its certificate: take the cluster's current kubeconfig"
            )
        else:
            remedy = "does it run, and is the kubeconfig's address right? try: kubectl version"
        return UnreachableError(f"the cluster does not answer ({self.name}): {said}", remedy)

    def _body(self, response: httpx.Response, path: str) -> Object:
        if response.status_code == _UNAUTHORIZED:
            raise ClusterError(
                f"the cluster does not accept the kubeconfig's credentials ({self.name})",
                "log in again, or take the cluster's current kubeconfig; try: kubectl auth whoami",
            )
        if response.status_code == _NOT_FOUND and not _is_absent(response):
            if _MONITORING in path:
                remedy = "install its CRDs, or leave cluster.monitoring out"
                raise UnknownKindError(f"the cluster has no CRDs of the Prometheus operator ({self.name})", remedy)
            if _KTHENA not in path:
                raise UnknownKindError(f"the cluster does not know {path} ({self.name})")
            raise MissingKindError(
                f"the cluster has no Kthena CRDs ({self.name})",
                "install those of Kthena v1.0.0 (charts/kthena/charts/*/crds), or name another context in cluster.context",
            )
        if response.is_error:
            raise ApiRefusedError(response.status_code, str(_status(response).get("message") or response.text[:500]))
        found = _json(response)
        if found is None:
            raise ClusterError(
                f"what answers is no Kubernetes API server ({self.name})",
                "is a proxy in between, or the kubeconfig's address wrong?",
            )
        return found


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | None, asyncio.Task[Api]]] = WeakKeyDictionary()
"""by the loop itself: its id may be that of a later one"""


async def _open(context: str | None) -> kr8s.asyncio.Api:
    """A client that has its credentials, and has sent nothing yet.

    Made directly: ``kr8s.asyncio.api`` keeps clients by the id of their event loop, and a later loop may have that id again.
    """
    import httpx  # noqa: PLC0415
    import kr8s.asyncio  # noqa: PLC0415

    try:
        config = read_kubeconfig()
    except (OSError, ValueError) as error:
        raise ClusterError(f"the kubeconfig can't be read: {error}", "KUBECONFIG names it, or it is ~/.kube/config") from error
    wanted = context or config.current
    known = ", ".join(sorted(config.contexts)) or "none"
    if not config.files and not _SERVICE_ACCOUNT.is_dir():
        raise ClusterError("there is no kubeconfig", "set KUBECONFIG to one, or put it at ~/.kube/config")
    if config.files and wanted not in config.contexts:
        which = f"context {wanted}" if wanted else "current context"
        raise ClusterError(f"the kubeconfig has no {which}", f"it has {known}: set cluster.context to one of them")
    files = ":".join(map(str, config.files)) or None
    # with a namespace kr8s does not look for that of the current context, which need not be named
    client = kr8s.asyncio.Api(bypass_factory=True, kubeconfig=files, context=wanted or None, namespace="default")
    try:
        await client.auth
    except Exception as error:  # whatever it is, it is said of the user's kubeconfig, or of the program that it names
        raise ClusterError(f"context {wanted} can't be used: {_words(error)}", "try: kubectl auth whoami") from error
    client.timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    return client


def _forget_credentials(client: kr8s.asyncio.Api) -> None:
    """Delete the files that kr8s (0.20.15) has written credentials to, and leaves. After the first request nobody reads them.

    It writes those that stand in the kubeconfig itself, and those of its login program; of a file that is named it uses the path.
    """
    auth = client.auth
    given = {**auth._cluster, **auth._user}  # noqa: SLF001  # kr8s says it nowhere else
    written = {
        "client-key-data": auth.client_key_file,
        "client-certificate-data": auth.client_cert_file,
        "certificate-authority-data": auth.server_ca_file,
    }
    for source, file in written.items():
        if source in given and file:
            Path(str(file)).unlink(missing_ok=True)


async def _pump(socket: httpx_ws.AsyncWebSocketSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways until one side ends. Each frame begins with its channel; the first of each channel is its port."""
    import httpx_ws  # noqa: PLC0415

    async def there() -> None:
        while data := await reader.read(1 << 15):
            await socket.send_bytes(bytes([_DATA_CHANNEL]) + data)

    async def back() -> None:
        opened: set[int] = set()
        with suppress(httpx_ws.WebSocketDisconnect):
            while frame := await socket.receive_bytes():
                if frame[0] not in opened:
                    opened.add(frame[0])
                elif frame[0] == _DATA_CHANNEL:
                    writer.write(frame[1:])
                    await writer.drain()
                else:
                    return  # the node says that nobody listens there

    ways = [asyncio.create_task(there()), asyncio.create_task(back())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


def _dry(dry_run: bool) -> dict[str, str]:  # noqa: FBT001
    return {"dryRun": "All"} if dry_run else {}


def _json(response: httpx.Response) -> Object | None:
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _has_lost_webhook(response: httpx.Response) -> bool:
    """Whether a webhook had just closed the connection on which the API server asked it: Kthena's do after 30 idle seconds."""
    return response.status_code == _INTERNAL and _LOST_WEBHOOK.search(response.text) is not None


def _is_absent(response: httpx.Response) -> bool:
    """The cluster knows the kind, and has no such object."""
    return response.status_code == _NOT_FOUND and bool(_status(response).get("details", {}).get("name"))


def _status(response: httpx.Response) -> Object:
    """The API server's account of an error; empty where it is somebody else's."""
    found = _json(response) or {}
    return found if found.get("kind") == "Status" else {}


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
