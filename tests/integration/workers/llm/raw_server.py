"""A server that answers every POST with the bytes it is told, well-formed or not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Raw:
    """One answer. With `pieces` it is a stream of events; `cut` breaks it off before its end."""

    body: str = ""
    pieces: Sequence[Any] | None = None
    cut: bool = False
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_after: threading.Event | None = None
    """Set by the test to let a stream go on after its pieces; until then it stands still."""


class RawServer:
    """Answers with `raw`, which may be changed; `bodies` are the requests so far, `authorizations` their keys,
    `connections` how many they came by."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.connections = 0
        self.gone = threading.Event()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: RawServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.owner.connections += 1

    def do_POST(self) -> None:
        owner, raw = self.owner, self.owner.raw
        owner.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        owner.authorizations.append(self.headers["Authorization"])
        self.send_response(raw.status)
        for name, value in raw.headers.items():
            self.send_header(name, value)
        if raw.pieces is None:
            content = raw.body.encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in raw.pieces:
            self._chunk(f"data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n")
        if raw.hang_after is not None:
            raw.hang_after.wait(20)
            self._until_gone()
        if raw.cut:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _until_gone(self) -> None:
        """Send pieces until the client closes its end."""
        try:
            for _ in range(1_000):
                self._chunk(f"data: {json.dumps(delta({'content': 'more '}))}\n\n")
                self.owner.gone.wait(0.01)
        except OSError:
            self.owner.gone.set()
            self.close_connection = True

    def _chunk(self, text: str) -> None:
        content = text.encode()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def delta(piece: Any, finish: str | None = None) -> dict[str, Any]:
    """One event of a stream."""
    choice = {"index": 0, "delta": piece, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test", "choices": [choice]}


def used(tokens_in: int, tokens_out: int, **more: Any) -> dict[str, Any]:
    """The last event of a stream that tells its usage."""
    usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
    return {**delta({}), "choices": [], "usage": {**usage, **more}}


def whole(message: Any, finish: str = "stop", **more: Any) -> str:
    """A response in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    written = {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-test", "choices": [choice]}
    return json.dumps({**written, "usage": usage, **more})


def call(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}, **more}
