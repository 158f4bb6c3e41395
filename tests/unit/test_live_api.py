"""The user's cluster over HTTP: a server on this machine that answers as an API server would."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, Request

from live import paths
from live.api import Api, ApiRefusedError, ClusterError, UnreachableError
from live.router import RouterView, read_router
from local.pki import Pki

Object = dict[str, Any]
SERVINGS = "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default/modelservings"
NOT_FOUND = "404 page not found"
ABSENT: Object = {"kind": "Status", "code": 404, "message": 'modelservings "pd" not found', "details": {"name": "pd"}}


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """Answers what ``answers`` has for a path, and forwards the ports of ``listening`` pods."""

    answers: dict[str, tuple[int, Object | str]] = field(default_factory=dict)
    listening: dict[str, bytes] = field(default_factory=dict)
    """path of a pod -> what listens on its port answers"""
    forbidden: bool = False
    tokens: tuple[str, ...] = ("t",)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self.answers.setdefault("/version", (200, {"gitVersion": "v1.34.4"}))

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().strip().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append(Asked(method, target, headers, body))
            if headers.get("upgrade") == "websocket":
                await self.forward(head, target, reader, writer)
            else:
                await self.answer(target, headers, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()

    async def answer(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        status, content = self.answers.get(target.partition("?")[0].rstrip("/"), (404, NOT_FOUND))
        if headers.get("authorization") not in {f"Bearer {token}" for token in self.tokens}:
            status, content = 401, {"kind": "Status", "message": "Unauthorized"}
        text = content if isinstance(content, str) else json.dumps(content)
        kind = "text/plain" if isinstance(content, str) else "application/json"
        lines = [
            f"HTTP/1.1 {status} Said",
            f"content-type: {kind}",
            f"content-length: {len(text)}",
            "connection: close",
            "",
            text,
        ]
        writer.write("\r\n".join(lines).encode())
        await writer.drain()

    async def forward(self, head: bytes, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = WSConnection(ConnectionType.SERVER)
        socket.receive_data(head)
        pod = target.partition("/portforward")[0]
        for event in socket.events():
            assert isinstance(event, Request)
        if self.forbidden:
            writer.write(socket.send(RejectConnection(status_code=403)))
            return
        writer.write(socket.send(AcceptConnection()))
        for channel in (b"\0", b"\1"):
            writer.write(socket.send(BytesMessage(channel + (15000).to_bytes(2, "little"))))
        received = b""
        while data := await reader.read(65536):
            socket.receive_data(data)
            for event in socket.events():
                if isinstance(event, CloseConnection):
                    return
                if isinstance(event, BytesMessage):
                    assert event.data[0] == 0
                    received += bytes(event.data[1:])
            if received.endswith(b"\r\n\r\n"):
                answer = self.listening.get(pod)
                frame = b"\1nobody listens" if answer is None else b"\0" + answer
                writer.write(socket.send(BytesMessage(frame)))
                await writer.drain()
                received = b""


@asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        listener.close()


Config = Callable[..., None]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Writes the kubeconfig that KUBECONFIG names."""

    def write(address: str, user: Object | None = None, cluster: Object | None = None) -> None:
        file = tmp_path / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": address, **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {"token": "t"}}],
            "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("here", "there")],
            "current-context": "here",
        }
        file.write_text(yaml.safe_dump(content))
        monkeypatch.setenv("KUBECONFIG", str(file))

    return write


def ask(config: Config, server: Server, what: Callable[[Api], Awaitable[Any]], context: str | None = None) -> Any:
    """What ``what`` finds in the cluster that ``server`` is."""

    async def asking() -> Any:
        async with serving(server):
            config(f"http://127.0.0.1:{server.port}")
            return await what(await Api.connect(context))

    return asyncio.run(asking())


def test_items_of_a_list_say_what_they_are(config: Config) -> None:
    found = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}
    server = Server({"/api/v1/namespaces/default/pods": (200, found)})
    pods = ask(config, server, lambda api: api.list(paths.pods("default"), labels="a=b", fields="status.phase=Running"))
    assert pods == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]
    assert httpx.URL(server.asked[-1].target).params == httpx.QueryParams(
        {"labelSelector": "a=b", "fieldSelector": "status.phase=Running"}
    )
    server.answers["/api/v1/namespaces/default/pods"] = (200, found | {"items": None})
    assert ask(config, server, lambda api: api.list(paths.pods("default"))) == []


def test_an_object_that_is_not_there_is_none(config: Config) -> None:
    server = Server({f"{SERVINGS}/pd": (404, ABSENT), f"{SERVINGS}/other": (200, {"kind": "ModelServing"})})
    assert ask(config, server, lambda api: api.get(paths.model_servings("default", "pd"))) is None
    assert ask(config, server, lambda api: api.get(paths.model_servings("default", "other"))) == {"kind": "ModelServing"}


@pytest.mark.parametrize(
    "what",
    [
        lambda api: api.get(paths.model_servings("default", "pd")),
        lambda api: api.list(paths.model_servings("default")),
        lambda api: api.delete(paths.model_servings("default", "pd")),
        lambda api: api.create(paths.model_servings("default"), {}),
    ],
)
def test_a_cluster_without_kthena_is_told_from_an_absent_object(config: Config, what: Callable[[Api], Awaitable[Any]]) -> None:
    with pytest.raises(
        ClusterError, match=r"has no Kthena CRDs \(context here, http://127.*\n  -> install those of Kthena v1.0.0"
    ):
        ask(config, Server(), what)


def test_what_the_server_refuses_it_says_itself(config: Config) -> None:
    server = Server({"/api/v1/namespaces/x/pods": (403, {"kind": "Status", "message": "exceeded quota: npus"})})
    with pytest.raises(ApiRefusedError) as caught:
        ask(config, server, lambda api: api.create(paths.pods("x"), {"kind": "Pod"}, dry_run=True))
    assert (caught.value.code, caught.value.message) == (403, "exceeded quota: npus")
    assert len(server.asked) == 2  # the version, and this once
    server.answers["/api/v1/namespaces/x/pods"] = (502, "<html>bad gateway</html>")
    with pytest.raises(ApiRefusedError, match="bad gateway"):
        ask(config, server, lambda api: api.list(paths.pods("x")))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (429, "storage is (re)initializing"),
        (
            500,
            'Internal error occurred: failed calling webhook "validate.volcano.sh": failed to call webhook: Post "x": EOF',
        ),
    ],
)
def test_what_passes_by_itself_is_asked_again_for_a_while(
    config: Config, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    """kube-apiserver 1.34 says so while CRDs are new, and when a webhook has just closed the connection that it would use."""
    monkeypatch.setattr("live.api.BUSY_PAUSE_SECONDS", 0.01)
    busy = (code, {"kind": "Status", "message": message})
    server = Server({SERVINGS: busy})

    async def list_until_it_is_free(api: Api) -> list[Object]:
        listing = asyncio.create_task(api.list(paths.model_servings("default")))
        while len(server.asked) < 4:
            await asyncio.sleep(0.01)
        server.answers[SERVINGS] = (200, {"apiVersion": "v1", "kind": "ModelServingList", "items": []})
        return await listing

    assert ask(config, server, list_until_it_is_free) == []
    server.answers[SERVINGS] = busy
    monkeypatch.setattr("live.api.BUSY_SECONDS", 0.05)
    with pytest.raises(ApiRefusedError) as caught:
        ask(config, server, lambda api: api.list(paths.model_servings("default")))
    assert (caught.value.code, caught.value.message) == (code, message)


def test_writes_go_out_as_the_server_wants_them(config: Config) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"}}
    server = Server({"/api/v1/namespaces/x/pods/p": (200, pod), "/api/v1/namespaces/x/pods": (201, pod)})

    async def write(api: Api) -> None:
        await api.apply(pod, "me", dry_run=True)
        await api.patch(paths.pods("x", "p"), {"metadata": {}})
        await api.create(paths.pods("x"), pod)
        await api.delete(paths.pods("x", "p"))
        server.answers["/api/v1/namespaces/x/pods/p"] = (404, ABSENT)
        await api.delete(paths.pods("x", "p"))

    ask(config, server, write)
    sent = [(one.method, httpx.URL(one.target), one.headers.get("content-type"), one.body) for one in server.asked[1:]]
    assert [one[0] for one in sent] == ["PATCH", "PATCH", "POST", "DELETE", "DELETE"]
    assert [one[2] for one in sent[:3]] == ["application/apply-patch+yaml", "application/merge-patch+json", "application/json"]
    assert sent[0][1].params == httpx.QueryParams({"fieldManager": "me", "force": "true", "dryRun": "All"})
    assert not sent[2][1].params
    assert json.loads(sent[0][3]) == pod


def test_the_context_may_be_named(config: Config) -> None:
    async def name(api: Api) -> str:
        return api.name

    assert ask(config, Server(), name, "there").startswith("context there, http://127.0.0.1:")
    assert ask(config, Server(), name).startswith("context here, http://127.0.0.1:")


def connect(context: str | None = None) -> None:
    asyncio.run(Api.connect(context))


def test_a_context_that_is_not_there_names_those_that_are(config: Config) -> None:
    config("http://127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no context nowhere\n  -> it has here, there: set cluster.context"):
        connect("nowhere")


def test_without_a_kubeconfig_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"there is no kubeconfig\n  -> set KUBECONFIG"):
        connect("here")


def test_a_kubeconfig_that_is_broken_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))
    for content, said in (("{", "is no kubeconfig"), ("[a]", "is no kubeconfig"), ("contexts: []", "has no current context")):
        file.write_text(content)
        with pytest.raises(ClusterError, match=said):
            connect()
    file.write_text("current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]")
    with pytest.raises(ClusterError, match="context a can't be used: Cluster c not found"):
        connect()


def test_several_kubeconfigs_are_one(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that names a current context decides, and files that are not there are left out."""

    async def name() -> str:
        server = Server()
        async with serving(server):
            config(f"http://127.0.0.1:{server.port}")
            (tmp_path / "first").write_text("contexts: [{name: a, context: {cluster: c, user: u}}]")
            files = [tmp_path / "none", tmp_path / "first", tmp_path / "kubeconfig"]
            monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
            return (await Api.connect(None)).name

    assert asyncio.run(name()).startswith("context here, http://127.0.0.1:")


def test_a_server_that_does_not_answer_is_named(config: Config) -> None:
    config("http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"does not answer \(context here, http://127.0.0.1:1\).*\n  -> does it run"):
        connect()


def test_what_is_no_api_server_is_told(config: Config) -> None:
    with pytest.raises(ClusterError, match="is no Kubernetes API server"):
        ask(config, Server({"/version": (200, "<html>hello</html>")}), lambda api: api.get("/api"))


def test_credentials_that_are_not_accepted(config: Config) -> None:
    with pytest.raises(ClusterError, match="does not accept the kubeconfig's credentials"):
        ask(config, Server(tokens=("other",)), lambda api: api.get("/api"))


def login(tmp_path: Path) -> Object:
    """A user whose program gives another token each time: t1, t2 ..."""
    program = tmp_path / "login"
    program.write_text(
        f'#!/bin/sh\necho >> {tmp_path}/logins\necho \'{{"status": {{"token": "t\'$(wc -l < {tmp_path}/logins)\'"}}}}\'\n'
    )
    program.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}}


def test_credentials_that_expire_while_waiting_are_renewed_once_for_all_requests(config: Config, tmp_path: Path) -> None:
    server = Server({"/api/v1/nodes": (200, {"apiVersion": "v1", "kind": "NodeList", "items": []})}, tokens=("t1",))

    async def asking() -> None:
        async with serving(server):
            config(f"http://127.0.0.1:{server.port}", login(tmp_path))
            api = await Api.connect(None)
            server.tokens = ("t2",)
            assert await asyncio.gather(*(api.list(paths.nodes()) for _ in range(5))) == [[]] * 5

    asyncio.run(asking())
    assert (tmp_path / "logins").read_text().count("\n") == 2


def test_a_renewal_that_fails_ends_all_that_wait_for_it(config: Config, tmp_path: Path) -> None:
    server = Server(tokens=("t1",))

    async def asking() -> list[object]:
        async with serving(server):
            config(f"http://127.0.0.1:{server.port}", login(tmp_path))
            api = await Api.connect(None)
            server.tokens = ()
            (tmp_path / "login").write_text("#!/bin/sh\nsleep 1; echo >> $(dirname $0)/logins; exit 1\n")
            return await asyncio.gather(*(api.list(paths.nodes()) for _ in range(5)), return_exceptions=True)

    assert all(isinstance(found, ClusterError) for found in asyncio.run(asking()))
    assert (tmp_path / "logins").read_text().count("\n") == 2


def test_a_login_that_fails_says_what_it_said(config: Config, tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text("#!/bin/sh\necho 'session expired' >&2; exit 1\n")
    program.chmod(0o755)
    config("http://127.0.0.1:1", {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}})
    with pytest.raises(ClusterError, match=r"(?s)context here can't be used: .*session expired"):
        connect()


def test_each_event_loop_has_a_connection_of_its_own(config: Config) -> None:
    server = Server({"/api/v1/namespaces/default/pods/p": (200, {"metadata": {"name": "p"}})})
    kept = []

    async def twice(api: Api) -> Object | None:
        kept.append(api)
        await Api.connect(None)  # and beside another one
        return await api.get(paths.pods("default", "p"))

    for _ in range(3):
        assert ask(config, server, twice) == {"metadata": {"name": "p"}}


def test_a_shared_connection_is_made_once_for_an_event_loop_and_not_kept_where_it_failed(config: Config) -> None:
    server = Server(tokens=("other",))

    async def together() -> None:
        async with serving(server):
            config(f"http://127.0.0.1:{server.port}")
            with pytest.raises(ClusterError):
                await Api.shared(None)
            server.tokens, server.asked = ("t",), []
            first, *others = await asyncio.gather(*(Api.shared(None) for _ in range(5)))
            assert all(one is first for one in others)
            assert len(server.asked) == 1
            assert await Api.shared("there") is not first

    for _ in range(2):
        asyncio.run(together())
        server.tokens = ("other",)


def secure(pki: Pki) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.authority))
    context.load_cert_chain(pki.certificate, pki.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.create()
    return made


def encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def connect_by_certificates(config: Config, pki: Pki, user: Object, cluster: Object) -> None:
    """Five requests to a server that asks for the client's certificate."""
    server = Server({"/api/v1/nodes/n": (200, {"metadata": {"name": "n"}})})

    async def asking() -> None:
        async with serving(server, secure(pki)):
            config(f"https://127.0.0.1:{server.port}", user, cluster)
            api = await Api.connect(None)
            assert await asyncio.gather(*(api.get("/api/v1/nodes/n") for _ in range(5))) == [{"metadata": {"name": "n"}}] * 5

    asyncio.run(asking())


PARTS = ("client-certificate", "client-key", "certificate-authority")


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("named", [(), PARTS, *((part,) for part in PARTS)])
def test_client_certificates_are_used_and_of_all_files_only_the_users_own_are_left(  # noqa: PLR0913, PLR0917
    config: Config,
    pki: Pki,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
    relative: bool,  # noqa: FBT001
) -> None:
    """Those that the kubeconfig names, be they as new and named as a temporary file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given = {}
    for part, file in zip(PARTS, (pki.certificate, pki.key, pki.authority), strict=True):
        if part in named:
            own = tmp_path / f"tmp.{part}"
            own.write_bytes(file.read_bytes())
            given[part] = own.name if relative else str(own)
        else:
            given[f"{part}-data"] = encoded(file)
    connect_by_certificates(config, pki, given | {"token": "t"}, given)
    assert {file.name for file in tmp_path.iterdir()} == {"kubeconfig", *(f"tmp.{part}" for part in named)}


def test_certificates_of_a_login_are_not_left_behind(
    config: Config, pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    given = {"clientCertificateData": pki.certificate.read_text(), "clientKeyData": pki.key.read_text()}
    (tmp_path / "given").write_text(json.dumps({"status": given}))
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(tmp_path / "given")]}
    cluster = {"certificate-authority": str(pki.authority)}
    connect_by_certificates(config, pki, {"exec": program, "token": "t"}, cluster)
    assert list(directory.iterdir()) == []


def test_a_server_that_another_authority_has_signed_is_not_trusted(config: Config, pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    other.directory.mkdir()
    other.create()

    async def asking() -> None:
        server = Server()
        async with serving(server, secure(pki)):
            config(f"https://127.0.0.1:{server.port}", cluster={"certificate-authority": str(other.authority)})
            await Api.connect(None)

    with pytest.raises(UnreachableError, match=r"certificate-authority has not signed"):
        asyncio.run(asking())
    assert other.authority.exists()


# the router

ROUTER = "/api/v1/namespaces/kthena-system/pods"


def http(status: int, body: Object | str) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status} Said\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


def router(*pods: Object, **more: Any) -> Server:
    deployment = {"spec": {"selector": {"matchLabels": {"app": "router"}}}}
    return Server(
        {
            "/apis/apps/v1/namespaces/kthena-system/deployments/kthena-router": (200, deployment),
            ROUTER: (200, {"apiVersion": "v1", "kind": "PodList", "items": list(pods)}),
        },
        **more,
    )


def router_pod(name: str, **metadata: Any) -> Object:
    spec = {"containers": [{"args": ["--port=8080"]}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec, "status": {"phase": "Running"}}


def views(api: Api) -> Awaitable[list[RouterView]]:
    return read_router(api, "kthena-system", 15000, "default", "pd")


def test_each_pod_of_the_router_is_asked_through_its_own_port(config: Config) -> None:
    knows = {"prefillPods": ["default/pd-0-prefill-0-0"], "decodePods": ["default/pd-0-decode-0-0", "default/pd-0-decode-1-0"]}
    server = router(
        router_pod("a"),
        router_pod("b"),
        router_pod("ending", deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "pending"}, "status": {"phase": "Pending"}},
        listening={f"{ROUTER}/a": http(200, knows), f"{ROUTER}/b": http(404, {"error": "ModelServer not found"})},
    )
    assert ask(config, server, views) == [
        RouterView(frozenset({"pd-0-prefill-0-0"}), frozenset({"pd-0-decode-0-0", "pd-0-decode-1-0"})),
        RouterView(),
    ]
    assert "labelSelector=app%3Drouter" in next(one.target for one in server.asked if one.target.startswith(f"{ROUTER}?"))
    assert {one.target for one in server.asked if "portforward" in one.target} == {
        f"{ROUTER}/{name}/portforward?ports=15000" for name in ("a", "b")
    }


def test_a_forbidden_port_forward_is_refused_at_once(config: Config) -> None:
    server = router(router_pod("a"), forbidden=True)
    with pytest.raises(ApiRefusedError, match="port-forward to pod kthena-system/a"):
        ask(config, server, views)
    assert sum("portforward" in one.target for one in server.asked) == 1


@pytest.mark.parametrize("answer", [None, http(200, "<html>"), http(500, "")])
def test_a_router_that_does_not_say_what_it_knows(config: Config, answer: bytes | None) -> None:
    server = router(router_pod("a"), listening={f"{ROUTER}/a": answer} if answer else {})
    with pytest.raises(UnreachableError, match="router pod kthena-system/a does not say on port 15000"):
        ask(config, server, views)


def test_without_a_router_that_is_said(config: Config) -> None:
    with pytest.raises(ClusterError, match="no pod of kthena-router runs in namespace kthena-system"):
        ask(config, router(), views)
    server = router()
    server.answers["/apis/apps/v1/namespaces/kthena-system/deployments/kthena-router"] = (404, ABSENT)
    with pytest.raises(ClusterError, match="there is no Deployment kthena-router in namespace kthena-system"):
        ask(config, server, views)
