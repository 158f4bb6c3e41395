"""Probes of a container: when they are asked, how, and what their answers mean."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from local.api import Object

ASKED_EVERY_AT_MOST = 1.0
"""Seconds. Engines of a local cluster start in a second, not in twenty minutes, so the declared initialDelaySeconds and
periodSeconds are cut to this. The time that a container is given before it counts as failed (failureThreshold times
periodSeconds) stays as declared: it is asked more often, not judged more harshly."""

Execute = Callable[[list[str]], Awaitable[str]]
"""runs a command in the container; returns why it failed, empty if it did not"""


@dataclass(frozen=True)
class Schedule:
    """When a probe is asked; times in seconds."""

    delay: float
    period: float
    timeout: float
    successes: int
    """answers in a row that count as success"""
    failures: int
    """failures in a row that count as failure"""


def schedule(probe: Object) -> Schedule:
    """Schedule of a declared probe."""
    declared = probe.get("periodSeconds") or 10
    period = min(declared, ASKED_EVERY_AT_MOST)
    return Schedule(
        delay=min(probe.get("initialDelaySeconds") or 0, ASKED_EVERY_AT_MOST),
        period=period,
        timeout=probe.get("timeoutSeconds") or 1,
        successes=probe.get("successThreshold") or 1,
        failures=math.ceil((probe.get("failureThreshold") or 3) * declared / period),
    )


async def verdicts(when: Schedule, ask: Callable[[], Awaitable[str]]) -> AsyncIterator[bool]:
    """Ask for ever; yield whether it is healthy each time that enough answers in a row agree. A complaint is a failure."""
    successes = failures = 0
    await asyncio.sleep(when.delay)
    while True:
        complaint = await ask()
        successes, failures = (0, failures + 1) if complaint else (successes + 1, 0)
        if successes >= when.successes:
            yield True
        elif failures >= when.failures:
            yield False
        await asyncio.sleep(when.period)


def port_number(wanted: int | str, container: Object) -> int:
    """A port given as number or by the name that the container declares for it.

    Raises:
        ValueError: the container declares no port of that name.
    """
    if isinstance(wanted, int) or wanted.isdigit():
        return int(wanted)
    for port in container.get("ports") or []:
        if port.get("name") == wanted:
            return int(port["containerPort"])
    raise ValueError(f"the container has no port named {wanted}")


def _refused(host: str, port: int) -> str:
    """Nobody listens there, as a kubelet words it: what most engines that are still loading are told for."""
    return f"dial tcp {host}:{port}: connect: connection refused"


class Prober:
    """Asks the probes of all containers."""

    def __init__(self) -> None:
        # a kubelet checks no certificate; how long it waits is up to ``ask``
        self._http = httpx.AsyncClient(verify=False, trust_env=False, timeout=None)  # noqa: S113, S501

    async def ask(self, probe: Object, container: Object, address: str, execute: Execute) -> str:
        """Ask once; return the complaint, empty if the container is well. ``address`` is the pod's."""
        timeout: float = probe.get("timeoutSeconds") or 1
        try:
            # not wait_for: before Python 3.12 it forgets that it was cancelled where the answer comes at the same moment
            async with asyncio.timeout(timeout):
                return await self._ask(probe, container, address, execute)
        except TimeoutError:
            return f"command timed out after {timeout:g}s" if "exec" in probe else f"no answer within {timeout:g}s: i/o timeout"
        except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def _ask(self, probe: Object, container: Object, address: str, execute: Execute) -> str:
        if "exec" in probe:
            return await execute(probe["exec"].get("command") or [])
        if "httpGet" in probe:
            return await self._http_get(probe["httpGet"], container, address)
        # a gRPC probe is answered by whoever accepts connections: the protocol itself is not spoken here
        target = probe.get("tcpSocket") or probe["grpc"]
        host, number = target.get("host") or address, port_number(target["port"], container)
        try:
            _, writer = await asyncio.open_connection(host, number)
        except ConnectionRefusedError:
            return _refused(host, number)
        writer.close()
        return ""

    async def _http_get(self, wanted: Object, container: Object, address: str) -> str:
        scheme = (wanted.get("scheme") or "HTTP").lower()
        host = wanted.get("host") or address
        path = "/" + (wanted.get("path") or "").lstrip("/")
        number = port_number(wanted["port"], container)
        url = f"{scheme}://{host}:{number}{path}"
        headers: Mapping[str, str] = {header["name"]: header["value"] for header in wanted.get("httpHeaders") or []}
        headers = {"User-Agent": "kube-probe/1.34", "Connection": "close", **headers}
        try:
            response = await self._http.get(url, headers=headers)
        except httpx.ConnectError:
            return f'Get "{url}": {_refused(host, number)}'
        except (httpx.ReadError, httpx.RemoteProtocolError):  # it ended instead of an answer
            return f'Get "{url}": EOF'
        good = httpx.codes.OK <= response.status_code < httpx.codes.BAD_REQUEST
        return "" if good else f"HTTP probe failed with statuscode: {response.status_code}"
