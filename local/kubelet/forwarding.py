"""ClusterIPs: this process listens on each, and hands every connection to a ready pod, as kube-proxy has the kernel do.

ClusterIPs are loopback addresses, so this machine has them all. Nobody can listen on one of them at a port where a process
listens on every address of the machine, as pods' processes often do: their own Service is reached without being forwarded
then, if it has the same port as they have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from functools import partial

from local.kubelet.services import Address
from local.kubelet.tasks import begin, log_defect

CHUNK = 1 << 16
"""bytes that are read at a time"""
RETRY_SECONDS = 1.0
"""between attempts to listen where somebody else does"""

log = logging.getLogger(__name__)

Forwards = Mapping[Address, tuple[Address, ...]]
"""where to listen -> where the pods are that a connection may go to"""


class Forwarder:
    """Listens where it is told to, and carries bytes."""

    def __init__(self) -> None:
        self._wanted: Forwards = {}
        self._changed = asyncio.Event()
        self._servers: dict[Address, asyncio.Server] = {}
        self._refused: dict[Address, str] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def want(self, forwards: Forwards) -> None:
        """From now on connections are to be forwarded like this; those that there are stay."""
        self._wanted = forwards
        self._changed.set()

    async def run(self) -> None:
        """Listen as wanted until this is cancelled, and then nowhere."""
        try:
            while True:
                self._changed.clear()
                await self._listen()
                try:
                    await asyncio.wait_for(self._changed.wait(), RETRY_SECONDS if self._refused else None)
                except TimeoutError:
                    continue  # whoever was in the way may have ended
        finally:
            for server in self._servers.values():
                server.close()
            for connection in self._connections:
                connection.cancel()
            self._servers.clear()

    async def _listen(self) -> None:
        wanted = self._wanted  # others may be wanted while this listens
        for address in self._servers.keys() - wanted.keys():
            self._servers.pop(address).close()
        refused = {}
        for address in wanted.keys() - self._servers.keys():
            if address in self._refused and all(target.port == address.port for target in wanted[address]):
                # probably a pod of its own, which must find its port free when its process starts anew
                refused[address] = self._refused[address]
                continue
            try:
                self._servers[address] = await asyncio.start_server(partial(self._accept, address), *address)
            except OSError as error:  # a port below 1024 needs a privilege; another may be taken
                refused[address] = os.strerror(error.errno or 0)
                if self._refused.get(address) != refused[address]:
                    log.info("not forwarding %s:%d: %s", *address, refused[address])
        self._refused = refused

    def _accept(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = begin(self._serve(address, reader, writer), log_defect)
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what a client of ``address`` and a pod say to each other, until both have ended."""
        pod = await self._reach(address)
        try:
            if pod:
                await asyncio.gather(_copy(reader, pod[1]), _copy(pod[0], writer))
        except OSError as error:  # the other direction ends with the connections
            log.debug("%s:%d: %s", *address, error)
        finally:
            for one in (writer, pod[1]) if pod else (writer,):
                one.close()

    async def _reach(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to one of the pods; None if none of them takes it."""
        targets = self._wanted.get(address, ())
        for target in random.sample(targets, len(targets)):
            try:
                return await asyncio.open_connection(*target)
            except OSError as error:
                log.info("%s:%d -> %s:%d: %s", *address, *target, error.strerror or error)
        return None


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        to.write(data)
        await to.drain()
    to.write_eof()
