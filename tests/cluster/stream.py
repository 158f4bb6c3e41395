"""A steady stream of chat requests through the router, and which ModelServing's engines answered them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from local.state import PodFolder

CLIENTS = ((False, 16), (True, 16), (False, 4000), (True, 4000))
"""what each client asks for: streamed or not, and how many tokens. The local engine takes a millisecond for each, so that at any
time there is an answer under way which an engine that stops too early would cut"""
PAUSE_SECONDS = 0.2
"""between two requests of a client: together some ten a second, which leaves the machine to what is tested"""
DEADLINE_SECONDS = 20.0
"""of one request, from its start to the last byte of its answer"""
MODEL = "deepseek_v4"


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it."""

    request_id: str
    started: float
    """seconds since the epoch"""
    ended: float
    stream: bool
    failure: str
    """empty: answered in full and in time"""

    def __str__(self) -> str:
        kind = "stream" if self.stream else "request"
        return f"{time.strftime('%H:%M:%S', time.gmtime(self.ended))} {kind} {self.request_id}: {self.failure}"


@dataclass
class Stream:
    """Requests of several clients, each with a deadline."""

    url: str
    pods: Path
    """``State.pods``, where the engines write down what they were asked"""
    outcomes: list[Outcome] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def failures(self) -> list[str]:
        """What went wrong, each with its time and request id; empty if every request was answered."""
        return [str(one) for one in self.outcomes if one.failure]

    def flows(self, requests: int, seconds: float = 60) -> Counter[str]:
        """Wait until ``requests`` that begin from now on are answered: ModelServing -> answers of its pods."""
        begun, deadline = time.time(), time.monotonic() + seconds
        while True:
            since = [one for one in self.outcomes if one.started >= begun]
            if sum(not one.failure for one in since) >= requests:
                return self.served(since)
            assert time.monotonic() < deadline, f"fewer than {requests} answers in {seconds} s; {self.failures[-3:]}"
            time.sleep(0.05)

    def served(self, outcomes: Iterable[Outcome] | None = None) -> Counter[str]:
        """ModelServing -> requests that its decode engines answered, of all or of ``outcomes``."""
        by = dict(_decoded(self.pods))
        chosen = self.outcomes if outcomes is None else outcomes
        return Counter(by.get(one.request_id, "nobody") for one in chosen if not one.failure)

    def run(self) -> None:
        """Ask until told to stop; requests that are under way then are still waited for."""
        asyncio.run(self._ask_and_ask())

    def stop(self) -> None:
        """Begin no more requests."""
        self._over.set()

    async def _ask_and_ask(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=DEADLINE_SECONDS) as client:
            await asyncio.gather(*(self._one_client(client, *kind) for kind in CLIENTS))

    async def _one_client(self, client: httpx.AsyncClient, stream: bool, tokens: int) -> None:  # noqa: FBT001 - a kind
        while not self._over.is_set():
            self.outcomes.append(await _ask(client, stream=stream, tokens=tokens))
            await asyncio.sleep(PAUSE_SECONDS)


@contextmanager
def streaming(url: str, pods: Path) -> Iterator[Stream]:
    """A stream that flows as long as the context lasts; afterwards its counts are final."""
    stream = Stream(url, pods)
    thread = threading.Thread(target=stream.run)
    thread.start()
    try:
        yield stream
    finally:
        stream.stop()
        thread.join()


async def _ask(client: httpx.AsyncClient, *, stream: bool, tokens: int) -> Outcome:
    request_id, started = str(uuid.uuid4()), time.time()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"What is {request_id}?"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    try:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            client.stream("POST", "/v1/chat/completions", json=body, headers={"x-request-id": request_id}) as response,
        ):
            content = (await response.aread()).decode(errors="replace")
            failure = _wrong(response.status_code, content, stream=stream)
    except TimeoutError:
        failure = f"no whole answer within {DEADLINE_SECONDS:.0f} s"
    except httpx.HTTPError as error:
        failure = repr(error)
    return Outcome(request_id, started, time.time(), stream, failure)


def _wrong(status: int, content: str, *, stream: bool) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if status != httpx.codes.OK:
        return f"{status} {content.strip()}"
    try:
        return _wrong_events(content) if stream else _wrong_choices([json.loads(content)])
    except (ValueError, KeyError) as error:
        return f"{error!r} in {content!r}"


def _wrong_events(content: str) -> str:
    data = [line.removeprefix("data:").strip() for line in content.splitlines() if line.startswith("data:")]
    if data[-1:] != ["[DONE]"] or data.count("[DONE]") > 1:
        return f"a stream that does not end with its one [DONE]: {content[-200:]!r}"
    events = [json.loads(one) for one in data[:-1]]
    # a router that begins anew after the first bytes would make one stream of two answers
    if len({event["id"] for event in events}) != 1:
        return f"a stream of several answers: {content!r}"
    return _wrong_choices(events)


def _wrong_choices(parts: list[dict[str, Any]]) -> str:
    ends = [choice.get("finish_reason") for part in parts for choice in part.get("choices") or ()]
    ends = [reason for reason in ends if reason]
    return "" if ends == ["length"] else f"an answer that ends with {ends}, not at the length that was asked for: {parts[-1]}"


def _decoded(pods: Path) -> Iterator[tuple[str, str]]:
    """Request id and ModelServing of every request that a decode engine has answered."""
    for file in pods.glob("*/*/requests.jsonl"):
        name = PodFolder.of(file.parent.parent).pod
        # the last line may still be in the making
        lines = file.read_text().rpartition("\n")[0].splitlines()
        for record in map(json.loads, lines):
            if record["kv_role"] == "kv_consumer" and record["status"] == httpx.codes.OK:
                yield record["request_id"], _model_serving(name)


def _model_serving(pod: str) -> str:
    """Kthena names pods MODELSERVING-GROUP-ROLE-REPLICA-POD."""
    return pod.rsplit("-", 4)[0]
