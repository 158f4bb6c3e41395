"""The Kubernetes API over HTTP: what the local cluster needs of it, and no more."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

Object = dict[str, Any]
"""a Kubernetes object, or a part of one, as JSON"""

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

WATCH_SECONDS = 300
RETRY_SECONDS = 0.3

log = logging.getLogger(__name__)


OTHER_OBJECT: dict[int, str] = {httpx.codes.CONFLICT: "UID in", httpx.codes.UNPROCESSABLE_ENTITY: "metadata.uid"}
"""status -> what the server says with it if the object has another uid than a DELETE's precondition or a patch names"""


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, response: httpx.Response) -> None:
        self.code = response.status_code
        try:
            text = str(response.json()["message"])
        except (ValueError, KeyError, TypeError):
            text = response.text[:500]
        super().__init__(f"{response.request.method} {response.request.url.path}: {self.code} {text}")


def holds(found: Object, condition: str) -> bool:
    """Whether the object's status has the condition, and it is true."""
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def is_gone(error: httpx.HTTPError | ApiError) -> bool:
    """Whether a request failed because its object is no longer there, though another of its name may be.

    There is no use in trying again then; after any other failure (429, a timeout of etcd ...) there is.
    """
    if not isinstance(error, ApiError):
        return False
    said = OTHER_OBJECT.get(error.code)
    return error.code == httpx.codes.NOT_FOUND or (said is not None and said in str(error))


class Api:
    """A client of one API server; closed at the end of its ``async with``."""

    def __init__(self, server: str, token: str, authority: Path) -> None:
        """Talk to ``server`` with bearer ``token``; ``authority`` is the file of the CA that vouches for the server."""
        self._http = httpx.AsyncClient(
            base_url=server,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=httpx.Timeout(15, read=60, pool=None),
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
            trust_env=False,  # a proxy of the user's has no business on the loopback interface
        )

    @classmethod
    def from_kubeconfig(cls, file: Path) -> Self:
        """Talk to the cluster of a kubeconfig that ``control_plane`` wrote."""
        config = yaml.safe_load(file.read_text())
        cluster = config["clusters"][0]["cluster"]
        return cls(cluster["server"], config["users"][0]["user"]["token"], Path(cluster["certificate-authority"]))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | Object | None = None,
        kind: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> Object:
        """One request; ``body`` is sent as it is if it is bytes, else as JSON of content type ``kind``.

        Raises:
            ApiError: the server refused.
            httpx.HTTPError: the server can't be reached.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind} if content is not None else {}
        response = await self._http.request(method, path, content=content, headers=headers, params=parameters)
        if response.is_error:
            raise ApiError(response)
        found = response.json() if "json" in response.headers.get("content-type", "") else {}
        return found if isinstance(found, dict) else {}

    async def get(self, path: str) -> Object | None:
        """The object at ``path``, None if there is none."""
        try:
            return await self.request("GET", path)
        except ApiError as error:
            if error.code == httpx.codes.NOT_FOUND:
                return None
            raise

    async def text(self, path: str) -> str:
        """What the server answers at ``path`` (such as /readyz), whatever the status."""
        return (await self._http.get(path, timeout=3)).text

    async def apply(self, path: str, body: bytes | Object, manager: str) -> Object:
        """Server-side apply of an object, conflicts forced; ``body`` may be YAML."""
        return await self.request("PATCH", path, body, APPLY, {"fieldManager": manager, "force": "true"})

    async def follow(self, path: str, selector: str = "") -> AsyncIterator[tuple[str, Object]]:
        """All objects of a collection, and then every change, for ever: lost connections are made up for.

        Yields ("LIST", list object) at first and after each gap, and between them ("ADDED" | "MODIFIED" | "DELETED",
        object).
        """
        parameters = {"fieldSelector": selector} if selector else {}
        while True:
            try:
                found = await self.request("GET", path, parameters=parameters)
                yield "LIST", found
                async for event in self._watch(path, {**parameters}, found["metadata"]["resourceVersion"]):
                    yield event
            except (httpx.HTTPError, ApiError, ValueError) as error:
                log.info("following %s: %s %s; starting over", path, type(error).__name__, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self, path: str, parameters: dict[str, str], version: str) -> AsyncIterator[tuple[str, Object]]:
        while True:
            parameters |= {
                "watch": "true",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            # a read that takes longer than the server's own limit means that the server has gone silently
            timeout = httpx.Timeout(15, read=WATCH_SECONDS + 30)
            async with self._http.stream("GET", path, params=parameters, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise ApiError(response)
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # mostly 410 Gone: the version is too old, so list again
                        raise ValueError(event["object"].get("message", "watch error"))
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
