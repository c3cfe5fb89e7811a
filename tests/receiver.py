"""A receiver of webhooks: a real HTTP server that keeps what comes, checks each signature with code of its own, and
answers as a test says."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class ReceivedWebhook:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.body)
        return data

    def is_signed(self, secret: str) -> bool:
        """As the specification says, written without our code."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = b"%s.%s.%s" % (self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body)
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


Answer = Callable[[BaseHTTPRequestHandler, ReceivedWebhook], None]


def status(code: int, **headers: str) -> Answer:
    """An empty response."""

    def answer(handler: BaseHTTPRequestHandler, _: ReceivedWebhook) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@dataclass
class Receiver:
    """`got` are the requests in the order in which they came, those that were refused too."""

    answer: Answer = field(default_factory=lambda: status(204))
    got: list[ReceivedWebhook] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def bodies(self) -> list[dict[str, Any]]:
        return [each.data for each in self.got]


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """One that runs. Its `stop` ends answers that hang."""
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received = ReceivedWebhook(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            state.got.append(received)
            with contextlib.suppress(ConnectionError):
                state.answer(self, received)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        state.stop.set()
        server.shutdown()
        server.server_close()
