"""/metrics and /health over HTTP, read-only, in separate threads.

/health is 200 while all services run, even if Redis is unreachable (`"redis": false`): restarting schedulers would not
help. It is 503 if a service's round has not ended for STUCK_S, and names the service.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sleipnir.errors import ConfigError

REQUEST_S: Final = 10.0  # the connection of a slower client is closed


class MetricsEndpoint:
    """Listens from its creation to `close`. Raises ConfigError if the address is not available."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, health: Callable[[], tuple[bool, dict[str, Any]]]
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry, "health": staticmethod(health)})
        try:
            self._server = _Server((host, port), handler, bind_and_activate=True)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for metrics on {host} port {port}: {error.strerror or error}; "
                "set SLEIPNIR_METRICS_HOST and SLEIPNIR_METRICS_PORT to an address of this machine that is free"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scrape that waits for Redis must not delay a stop

    def __init__(self, address: tuple[str, int], handler: Any, **options: Any) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler, **options)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host name, which may take seconds."""
        socket_server = self.socket
        socket_server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket_server.bind(self.server_address)
        self.server_address = socket_server.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a disconnected client without a traceback."""
        structlog.get_logger().debug("a request for metrics broke off", client=str(client_address))


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    health: Callable[[], tuple[bool, dict[str, Any]]]
    server_version, sys_version = "sleipnir", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept") or "")
                self._answer(HTTPStatus.OK, content_type, encode(self.registry))
            case "/health":
                fine, facts = self.health()
                status = HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, "application/json", json.dumps(facts).encode() + b"\n")
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"here are /metrics and /health\n")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log each scrape."""
