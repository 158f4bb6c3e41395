"""A chat request through the router, and the proof that its KV cache went from a prefill engine to a decode engine.

A status of 200 proves nothing: a deployment that computes everything on decode answers it too. The proof is in what the
engines of the pods were asked and answered, which each of them writes down (``local.engine.proxy``).
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from local.errors import LocalError
from local.state import PodFolder

POLL_SECONDS = 0.1


class ChatRefusedError(LocalError):
    """The router or an engine answered a chat request with an error; ``status`` is the HTTP status."""

    def __init__(self, status: int, body: str, remedy: str) -> None:
        super().__init__(f"the chat request was answered with {status}: {body.strip()}", remedy)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """A chat completion as its client sees it."""

    request_id: str
    """``x-request-id`` that was sent, and that the router passes on to prefill and decode"""
    model: str
    question: str
    text: str
    stream: bool
    chunks: int
    """server-sent events, 0 for an answer in one piece"""
    complete: bool
    """the stream ended with ``[DONE]``; always so for an answer in one piece"""
    completion_tokens: int
    seconds: float


@dataclass(frozen=True)
class Hop:
    """One engine's part in a request."""

    namespace: str
    pod: str
    record: dict[str, Any]
    """line of the engine's ``requests.jsonl`` (``local.engine.proxy.Record``)"""

    @property
    def group(self) -> str:
        """Name of the ServingGroup: pods are named GROUP-ROLE-REPLICA-POD, and GROUP ends with its number."""
        found = re.fullmatch(r"(.+-\d+)-[a-z][a-z0-9-]*-\d+-\d+", self.pod)
        return f"{self.namespace}/{found[1] if found else self.pod}"

    def parameters(self, body: str) -> dict[str, Any]:
        """``kv_transfer_params`` of the ``request`` or the ``response``, empty if it has none."""
        content = self.record.get(body)
        found = content.get("kv_transfer_params") if isinstance(content, dict) else None
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Evidence:
    """What the engines wrote down of one request, and what of the proof is missing."""

    prefill: Hop | None
    decode: Hop | None
    failures: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether decode worked on the KV cache that prefill computed."""
        return not self.failures


CHECKS: tuple[tuple[str, Callable[[Hop, Hop], bool]], ...] = (
    # what is wrong otherwise, whether it is as it should be
    ("an engine answered with an error", lambda p, d: {p.record["status"], d.record["status"]} == {httpx.codes.OK}),
    ("prefill was asked for more than one token", lambda p, _: p.record["request"].get("max_tokens") == 1),
    (
        "prefill was not asked to leave decoding to another engine (do_remote_decode)",
        lambda p, _: p.parameters("request").get("do_remote_decode") is True,
    ),
    (
        "prefill answered without KV cache for decode (kv_transfer_params with do_remote_prefill)",
        lambda p, _: p.parameters("response").get("do_remote_prefill") is True,
    ),
    (
        "the KV cache that prefill answered with is not its own (remote_engine_id)",
        lambda p, _: p.parameters("response").get("remote_engine_id") == p.record["engine_id"],
    ),
    (
        "decode was not given the kv_transfer_params that prefill answered with",
        lambda p, d: p.parameters("response") == d.parameters("request"),
    ),
    ("decode started before prefill had ended", lambda p, d: p.record["ended"] <= d.record["started"]),
    ("prefill and decode are not of one group", lambda p, d: p.group == d.group),
)


def wait_until_paired(  # noqa: PLR0913, PLR0917  # who, how many, how long: all of it is the caller's
    debug_url: str, namespace: str, model_server: str, prefill: int, decode: int, timeout: float
) -> None:
    """Wait until the router knows as many prefill and decode pods of a ModelServer as there should be.

    Args:
        debug_url: The router's debug endpoint, such as ``http://127.0.0.1:15000``.
        namespace: Of the ModelServer.
        model_server: Its name.
        prefill: Number of prefill pods, in all groups together.
        decode: Number of decode pods, likewise.
        timeout: Seconds.

    Raises:
        LocalError: They were not there in time; says what the router knew last.
    """
    deadline = time.monotonic() + timeout
    with httpx.Client(base_url=debug_url, trust_env=False, timeout=5) as client:
        while True:
            seen = _pods_of(client, namespace, model_server)
            if seen == (prefill, decode):
                return
            if time.monotonic() > deadline:
                raise LocalError(
                    f"after {timeout:.0f} s the router knows {_pair(seen)} of ModelServer {namespace}/{model_server}, "
                    f"not {_pair((prefill, decode))}",
                    "see the pods with `make status` and the router's log with `make logs POD=...`",
                )
            time.sleep(POLL_SECONDS)


def _pods_of(client: httpx.Client, namespace: str, model_server: str) -> tuple[int, int] | None:
    """Prefill and decode pods that the router knows; None while it does not answer or know the ModelServer."""
    try:
        response = client.get("/debug/config_dump/modelservers")
    except httpx.TransportError:
        return None
    if response.status_code != httpx.codes.OK:
        return None
    # the router leaves out empty lists, and says null for none at all
    for entry in response.json().get("modelservers") or []:
        if (entry["namespace"], entry["name"]) == (namespace, model_server):
            return len(entry.get("prefillPods") or []), len(entry.get("decodePods") or [])
    return None


def _pair(counts: tuple[int, int] | None) -> str:
    return f"{counts[0]} prefill and {counts[1]} decode pods" if counts else "nothing"


def chat(router_url: str, model: str, prompt: str, *, stream: bool = False, max_tokens: int = 16) -> Answer:
    """Ask ``model`` one question.

    Args:
        router_url: Address of the router, such as ``http://127.0.0.1:8080``.
        model: ``modelName`` of a ModelRoute.
        prompt: The question.
        stream: Ask for server-sent events.
        max_tokens: Longest answer.

    Raises:
        ChatRefusedError: It was answered with an error.
        LocalError: It was not answered, or with something that is no chat completion.
    """
    request_id = str(uuid.uuid4())
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    headers = {"x-request-id": request_id}
    started = time.monotonic()
    try:
        with (
            httpx.Client(base_url=router_url, trust_env=False, timeout=60) as client,
            client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response,
        ):
            if response.status_code != httpx.codes.OK:
                remedy = f"does a ModelRoute have modelName {model!r}, and are its pods ready? see `make status`"
                raise ChatRefusedError(response.status_code, response.read().decode(errors="replace"), remedy)
            events, complete = _events(response) if stream else ([json.loads(response.read())], True)
    except httpx.HTTPError as error:
        raise LocalError(f"no answer from the router at {router_url}: {error!r}", "is it running? `make status`") from error
    except json.JSONDecodeError as error:
        raise LocalError(f"the router's answer is no chat completion: {error}", "see its log") from error
    return Answer(
        request_id=request_id,
        model=next((event["model"] for event in events if event.get("model")), ""),
        question=prompt,
        text="".join(_texts(events)),
        stream=stream,
        chunks=len(events) if stream else 0,
        complete=complete,
        completion_tokens=max(((event.get("usage") or {}).get("completion_tokens", 0) for event in events), default=0),
        seconds=time.monotonic() - started,
    )


def _events(response: httpx.Response) -> tuple[list[dict[str, Any]], bool]:
    """All events of a stream, and whether it said that it was complete. Reads to the end of the connection's answer."""
    data = [line.removeprefix("data:").strip() for line in response.iter_lines() if line.startswith("data:")]
    return [json.loads(event) for event in data if event != "[DONE]"], bool(data) and data[-1] == "[DONE]"


def _texts(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        for choice in event.get("choices") or []:
            yield (choice.get("message") or choice.get("delta") or {}).get("content") or ""


def kv_evidence(pods_directory: Path, request_id: str) -> Evidence:
    """Look up a request in what the engines of all pods wrote down.

    Args:
        pods_directory: Holds ``<namespace>_<pod>_<uid>/<container>/requests.jsonl``.
        request_id: ``x-request-id`` of the request. That both engines have it is part of the proof: what they were
            asked under another id is not found.
    """
    hops = sorted(_hops(pods_directory, request_id), key=lambda hop: float(hop.record["started"]))
    decode = _last(hop for hop in hops if hop.record["kv_role"] == "kv_consumer")
    # the router may have tried more than once: what counts is the prefill before the decode that answered
    before = decode.record["started"] if decode else float("inf")
    prefills = [hop for hop in hops if hop.record["kv_role"] == "kv_producer"]
    prefill = _last(hop for hop in prefills if hop.record["started"] <= before) or _last(iter(prefills))
    absent = [f"no {role} engine was asked" for role, hop in (("prefill", prefill), ("decode", decode)) if hop is None]
    if prefill is None or decode is None:
        return Evidence(prefill, decode, tuple(absent))
    return Evidence(prefill, decode, tuple(wrong for wrong, holds in CHECKS if not holds(prefill, decode)))


def _hops(pods_directory: Path, request_id: str) -> Iterator[Hop]:
    for file in pods_directory.glob("*/*/requests.jsonl"):
        folder = PodFolder.of(file.parent.parent)
        for line in file.read_text().splitlines():
            # lines of other requests may still be in the making
            if request_id in line and (record := json.loads(line))["request_id"] == request_id:
                yield Hop(folder.namespace, folder.pod, record)


def _last(hops: Iterator[Hop]) -> Hop | None:
    return next(iter(list(hops)[-1:]), None)


def explain(answer: Answer, evidence: Evidence) -> str:
    """What a person reads after a first request: question, answer, and who handed which KV cache to whom."""
    lines = [
        f"question  {answer.question}",
        f"answer    {answer.text}",
        f"          {answer.completion_tokens} tokens of {answer.model} in {answer.seconds:.2f} s"
        + (f", streamed in {answer.chunks} chunks" if answer.stream else ""),
    ]
    if evidence.prefill and evidence.decode:
        lines += _hand_over(evidence.prefill, evidence.decode)
    if evidence.proven:
        lines.append(f"proven    KV cache went from prefill to decode ({len(CHECKS)} checks, request {answer.request_id})")
    else:
        lines.append(f"NOT PROVEN that KV cache went from prefill to decode (request {answer.request_id}):")
        lines += [f"          - {failure}" for failure in evidence.failures]
    return "\n".join(lines)


def _hand_over(prefill: Hop, decode: Hop) -> list[str]:
    left = prefill.parameters("response")
    blocks = ", ".join(map(str, left.get("remote_block_ids") or ())) or "none"
    engine, host, port = (left.get(f"remote_{key}", "?") for key in ("engine_id", "host", "port"))
    gap = 1000 * (decode.record["started"] - prefill.record["ended"])
    same = "these blocks" if left and left == decode.parameters("request") else "other or no blocks"
    return [
        f"prefill   {prefill.pod} computed the KV cache of the prompt, blocks {blocks} of {engine} at {host}:{port}",
        f"decode    {decode.pod} was handed {same} {gap:.1f} ms later",
    ]
