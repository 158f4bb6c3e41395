"""``python -m local.engine.runtime``: stand-in for Kthena's runtime sidecar, its health and the engine's metrics."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler

from local.engine.server import Server

DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""whatever proxy the environment names: the engine is in the same pod"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    url = ""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b'{"status": "healthy", "service": "runtime"}', "application/json")
        elif self.path == "/metrics":
            self._answer(*self._metrics(), "text/plain; charset=utf-8")
        else:
            self._answer(404, b'{"detail": "Not Found"}', "application/json")

    def _metrics(self) -> tuple[int, bytes]:
        try:
            with DIRECTLY.open(self.url, timeout=30) as response:
                return 200, response.read()
        except (urllib.error.URLError, OSError) as error:
            return 502, f"Failed to fetch metrics from engine: {error}\n".encode()

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Probes ask every few seconds: nothing to log."""


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("-E", "--engine", required=True, choices=("vllm", "sglang"))
    parser.add_argument("-H", "--host", default="0.0.0.0")
    parser.add_argument("-P", "--port", type=int, default=9000)
    parser.add_argument("-B", "--engine-base-url", default="http://localhost:8000")
    parser.add_argument("-M", "--engine-metrics-path", default="/metrics")
    parser.add_argument("-I", "--pod", required=True)
    parser.add_argument("-N", "--model", required=True)
    options = parser.parse_args()
    # as given: an engine that does not listen there is a mistake of the deployment
    _Handler.url = urllib.parse.urljoin(options.engine_base_url, options.engine_metrics_path)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = (os.environ.get("LOCAL_POD_IP") or options.host, options.port)
    print(f"Simulated: runtime sidecar on {address[0]}:{address[1]}, metrics from {_Handler.url}", flush=True)
    Server(address, _Handler).serve_forever()


if __name__ == "__main__":
    main()
