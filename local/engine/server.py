"""HTTP server that the stand-ins share."""

from __future__ import annotations

import socket
import sys
from http.server import ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """A thread for each connection; none of them keeps the process alive."""

    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        """Bind without the reverse name lookup of the base class, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away, and of everything else what the base class says."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
