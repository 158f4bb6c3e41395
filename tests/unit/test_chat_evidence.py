"""The proof that KV cache went from prefill to decode fails for everything that only looks like it."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from local.chat import CHECKS, Answer, ChatRefusedError, Hop, chat, explain, kv_evidence, wait_until_paired
from local.errors import LocalError

REQUEST = "4c3c0b39-0000-4000-8000-000000000001"
HANDED_OVER = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "remote_engine_id": "pd-0_prefill-0",
    "remote_block_ids": ["7", "8"],
    "remote_host": "127.1.0.4",
    "remote_port": 9000,
}
PREFILL = {
    "started": 100.0,
    "ended": 100.02,
    "path": "/v1/chat/completions",
    "status": 200,
    "request_id": REQUEST,
    "kv_role": "kv_producer",
    "engine_id": "pd-0_prefill-0",
    "request": {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    "response": {"kv_transfer_params": HANDED_OVER},
}
DECODE = {
    **PREFILL,
    "started": 100.03,
    "ended": 100.5,
    "kv_role": "kv_consumer",
    "engine_id": "pd-0_decode-0",
    "request": {"max_tokens": 16, "kv_transfer_params": HANDED_OVER},
    "response": {"choices": []},
}
Records = dict[str, list[dict[str, Any]]]


def write(directory: Path, records: Records) -> Path:
    for number, (pod, lines) in enumerate(records.items()):
        container = directory / f"default_{pod}_uid{number}" / "engine"
        container.mkdir(parents=True)
        (container / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def right() -> Records:
    return copy.deepcopy({"pd-0-prefill-0-0": [PREFILL], "pd-0-decode-0-0": [DECODE]})


def test_a_hand_over_is_proven(tmp_path: Path) -> None:
    evidence = kv_evidence(write(tmp_path, right()), REQUEST)
    assert evidence.failures == ()
    assert evidence.proven
    assert evidence.prefill
    assert (evidence.prefill.namespace, evidence.prefill.pod) == ("default", "pd-0-prefill-0-0")


def change(pod: str, body: str, key: str, value: object) -> Callable[[Records], None]:
    def apply(records: Records) -> None:
        (record,) = records[pod]
        (record[body] if body else record)[key] = value

    return apply


def move(old: str, new: str) -> Callable[[Records], None]:
    def apply(records: Records) -> None:
        records[new] = records.pop(old)

    return apply


def as_the_http_connector_does(records: Records) -> None:
    for body in (records[P][0]["request"], records[P][0]["response"], records[D][0]["request"]):
        del body["kv_transfer_params"]


P, D = "pd-0-prefill-0-0", "pd-0-decode-0-0"
WRONG: dict[str, tuple[Callable[[Records], None], list[str]]] = {
    "decode did everything": (lambda r: r[P].clear(), ["no prefill engine was asked"]),
    "prefill did everything": (lambda r: r[D].clear(), ["no decode engine was asked"]),
    "nobody did anything": (dict.clear, ["no prefill engine was asked", "no decode engine was asked"]),
    "the router gave decode another id": (change(D, "", "request_id", "other"), ["no decode engine was asked"]),
    "an engine without KV transfer": (change(P, "", "kv_role", None), ["no prefill engine was asked"]),
    "prefill answered with an error": (change(P, "", "status", 500), ["an engine answered with an error"]),
    "prefill generated all tokens": (
        change(P, "request", "max_tokens", 16),
        ["prefill was asked for more than one token"],
    ),
    "the http connector": (
        as_the_http_connector_does,
        [
            "prefill was not asked to leave decoding to another engine (do_remote_decode)",
            "prefill answered without KV cache for decode (kv_transfer_params with do_remote_prefill)",
            "the KV cache that prefill answered with is not its own (remote_engine_id)",
        ],
    ),
    "blocks of another request": (
        change(D, "request", "kv_transfer_params", {**HANDED_OVER, "remote_block_ids": ["9"]}),
        ["decode was not given the kv_transfer_params that prefill answered with"],
    ),
    "decode did not wait": (change(D, "", "started", 100.01), ["decode started before prefill had ended"]),
    "decode of another group": (move(D, "pd-1-decode-0-0"), ["prefill and decode are not of one group"]),
}


@pytest.mark.parametrize(("damage", "failures"), WRONG.values(), ids=WRONG)
def test_what_only_looks_like_a_hand_over_is_not_proven(
    tmp_path: Path, damage: Callable[[Records], None], failures: list[str]
) -> None:
    records = right()
    damage(records)
    evidence = kv_evidence(write(tmp_path, records), REQUEST)
    assert list(evidence.failures) == failures
    assert not evidence.proven


def test_every_check_can_fail() -> None:
    failing = {failure for _, failures in WRONG.values() for failure in failures}
    assert {wrong for wrong, _ in CHECKS} <= failing


def test_a_second_attempt_counts_with_its_own_prefill(tmp_path: Path) -> None:
    records = right()
    again = {**HANDED_OVER, "remote_block_ids": ["9"]}
    records[P].append({**PREFILL, "started": 101.0, "ended": 101.1, "response": {"kv_transfer_params": again}})
    records[D][0]["status"] = 500
    records[D].append({**DECODE, "started": 101.2, "ended": 101.3, "request": {"kv_transfer_params": again}})
    assert kv_evidence(write(tmp_path, records), REQUEST).proven


def test_a_line_in_the_making_does_not_disturb(tmp_path: Path) -> None:
    pods = write(tmp_path, right())
    with (pods / f"default_{P}_uid0" / "engine" / "requests.jsonl").open("a") as stream:
        stream.write('{"started": 1')
    assert kv_evidence(pods, REQUEST).proven


GROUPS = {
    "deepseekv4-pd-0-prefill-0-0": "default/deepseekv4-pd-0",
    "m-1-2-pre-fill-10-3": "default/m-1-2",
    "something-else": "default/something-else",
}


@pytest.mark.parametrize(("pod", "group"), GROUPS.items())
def test_the_group_is_in_the_name_of_the_pod(pod: str, group: str) -> None:
    assert Hop("default", pod, {}).group == group


ANSWER = Answer(
    request_id=REQUEST,
    model="deepseek_v4",
    question="Where?",
    text="Here.",
    stream=True,
    chunks=4,
    complete=True,
    completion_tokens=2,
    seconds=0.25,
)


def test_the_explanation_names_pods_and_blocks(tmp_path: Path) -> None:
    text = explain(ANSWER, kv_evidence(write(tmp_path, right()), REQUEST))
    for part in (
        "Where?",
        "Here.",
        "4 chunks",
        P,
        D,
        "blocks 7, 8",
        "pd-0_prefill-0 at 127.1.0.4:9000",
        "10.0 ms",
        "proven",
    ):
        assert part in text


def test_the_explanation_lists_what_failed(tmp_path: Path) -> None:
    text = explain(ANSWER, kv_evidence(tmp_path, REQUEST))
    assert "NOT PROVEN" in text
    assert "- no prefill engine was asked" in text


# Against a router that is not one


class FakeRouter(BaseHTTPRequestHandler):
    model_servers: Iterator[Any]
    asked: dict[str, Any]

    def do_GET(self) -> None:
        self.answer(200, {"modelservers": next(self.model_servers)} if self.path.endswith("/modelservers") else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked = {"id": self.headers["x-request-id"], **body}
        events = [{"model": "m", "choices": [{"delta": {"content": word}}]} for word in ("Bei", "jing")]
        usage = {"usage": {"completion_tokens": 2}, "choices": []}
        if body["model"] == "unknown":
            self.answer(404, "route not found")
        elif body["stream"]:
            self.answer(200, "".join(f"data: {json.dumps(e)}\n\n" for e in [*events, usage]) + "data: [DONE]\n\n")
        else:
            self.answer(200, {"model": "m", "choices": [{"message": {"content": "Beijing"}}], "usage": usage["usage"]})

    def answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

    def log_request(self, *_: object) -> None:
        pass


@pytest.fixture
def router() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeRouter)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_stream_is_read_to_its_end(router: str) -> None:
    answer = chat(router, "deepseek_v4", "Where?", stream=True, max_tokens=3)
    assert (answer.text, answer.model, answer.chunks, answer.complete, answer.completion_tokens) == (
        "Beijing",
        "m",
        3,
        True,
        2,
    )
    assert FakeRouter.asked["id"] == answer.request_id
    assert FakeRouter.asked["messages"] == [{"role": "user", "content": "Where?"}]
    assert FakeRouter.asked["max_tokens"] == 3


def test_a_model_without_route_is_an_error_with_its_status(router: str) -> None:
    with pytest.raises(ChatRefusedError, match="404: route not found") as refused:
        chat(router, "unknown", "Where?")
    assert refused.value.status == 404


def test_a_router_that_is_not_there_is_a_mistake_with_a_remedy() -> None:
    with pytest.raises(LocalError, match="make status"):
        chat("http://127.0.0.1:1", "m", "Where?")


def entry(prefill: list[str] | None, decode: list[str] | None) -> dict[str, Any]:
    pods = {"prefillPods": prefill, "decodePods": decode}
    return {"namespace": "default", "name": "pd", **{key: value for key, value in pods.items() if value is not None}}


def test_waits_until_the_router_knows_all_pods(router: str) -> None:
    other = {"namespace": "dev", "name": "pd", "prefillPods": ["dev/a"], "decodePods": ["dev/b"]}
    FakeRouter.model_servers = iter([None, [other], [entry(None, ["default/b"])], [other, entry(["default/a"], ["default/b"])]])
    wait_until_paired(router, "default", "pd", 1, 1, timeout=5)
    assert next(FakeRouter.model_servers, "all were asked for") == "all were asked for"


def test_says_what_the_router_knew_when_time_is_up(router: str) -> None:
    FakeRouter.model_servers = iter([[entry(["a", "b"], ["c"])]] * 100)
    with pytest.raises(LocalError, match=r"knows 2 prefill and 1 decode pods .* not 1 prefill and 1 decode pods"):
        wait_until_paired(router, "default", "pd", prefill=1, decode=1, timeout=0)
    with pytest.raises(LocalError, match="knows nothing"):
        wait_until_paired("http://127.0.0.1:1", "default", "pd", prefill=1, decode=1, timeout=0)
