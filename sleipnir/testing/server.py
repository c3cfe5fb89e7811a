"""A scripted model server: the OpenAI protocol over HTTP, with the replies of a test.

POST /v1/chat/completions   answered by the script, streamed on request; recorded
POST /v1/embeddings         vectors computed from the texts, unless the script has a reply; recorded
POST /v1/rerank, /rerank    a ranking of texts, likewise
GET  /v1/models             the configured names
GET  /requests              the requests so far
GET  /counts                how often each turn of each conversation was answered
POST /release               sends hanging replies

One thread per connection: connections are mostly idle. It listens on the loopback only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Literal

from sleipnir.testing.meaning import DIMENSIONS, embeddings, ranking
from sleipnir.testing.reply import Reply, chunks, completion, failure
from sleipnir.testing.request import MARKER, Request, conversation_of
from sleipnir.testing.script import Chooser, Script, computed

KINDS: Mapping[str, Literal["chat", "embedding", "rerank"]] = {
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embedding",
    "/v1/rerank": "rerank",
    "/rerank": "rerank",  # as on servers without a version in their paths
    "/v2/rerank": "rerank",  # Cohere's
}
"""The kind of request at each path."""

HANG_LIMIT_S = 60.0  # ends a test that does not release its replies
STOP_LOOK_S = 0.05
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST


class ModelServer:
    """The server; starts with the `with` block and stops with it. `requests` grows as calls arrive.

    `replies` are sent in order, or selected by a script, or by a function of the request. The function is called for
    one request at a time; its exceptions are answered with status 400 and raised again at the end of the `with` block.
    `conversation` is a pattern whose group is the key of a conversation. `embeddings` and `reranks` are the replies to
    requests of these kinds, as in a script; a script replaces them.
    """

    def __init__(
        self,
        replies: Iterable[Reply | str] | Script | Chooser = (),
        *,
        port: int = 0,
        models: Iterable[str] = ("gpt-test",),
        conversation: str = MARKER,
        embeddings: Iterable[Reply] | Chooser = (),
        reranks: Iterable[Reply] | Chooser = (),
        dimensions: int = DIMENSIONS,
    ) -> None:
        self.requests: list[Request] = []
        self.most_at_once = 0
        """The highest number of concurrent calls."""
        self.models = tuple(models)
        if isinstance(replies, Script):
            embeddings, reranks, dimensions = replies.embeddings, replies.reranks, replies.dimensions
        self.dimensions = dimensions
        self._choose = {
            "chat": _chooser(replies),
            "embedding": computed(embeddings),
            "rerank": computed(reranks),
        }
        self._marker = conversation
        self._failure: Exception | None = None
        self._answered: Counter[tuple[str | None, int]] = Counter()
        self._under_way = 0
        self._connections: set[socket.socket] = set()
        self._released = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.RLock()  # reentrant: a function that chooses may call methods of the server
        self._arrived = threading.Condition(self._lock)
        self._http = _Listener(("127.0.0.1", port), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(STOP_LOOK_S,), name="model-server", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def env(self, client: str = "openai", key: str = "sk-test-key-of-the-model-server") -> dict[str, str]:
        """The variables that direct `client`'s calls to this server."""
        prefix = client.upper().replace("-", "_")
        return {f"{prefix}_API_BASE": self.url, f"{prefix}_API_KEY": key}

    def release(self) -> None:
        """Send hanging replies, current and future ones."""
        self._released.set()

    def wait_for_requests(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until `count` calls have arrived. Raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} model calls after {timeout_s} s")

    def calls_of(self, conversation: str | None) -> list[Request]:
        """The calls of one conversation in order of arrival; None: the calls without a marker."""
        with self._lock:
            return [request for request in self.requests if request.conversation == conversation]

    def answered(self, conversation: str | None, turn: int) -> int:
        """How often this turn was answered completely with status 200."""
        with self._lock:
            return self._answered[conversation, turn]

    def counts(self) -> dict[str | None, dict[int, int]]:
        """How often each turn of each conversation was answered."""
        with self._lock:
            counts: dict[str | None, dict[int, int]] = {}
            for (conversation, turn), times in self._answered.items():
                if times:
                    counts.setdefault(conversation, {})[turn] = times
            return counts

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and close every connection, including those that clients keep alive."""
        self._stopping.set()
        self.release()
        self._http.shutdown()
        self._http.server_close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None and self._failure is not None:
            raise self._failure

    # For the handler

    def take(self, path: str, authorization: str | None, body: Mapping[str, Any]) -> tuple[Request, Reply]:
        """Record a call and choose its reply."""
        conversation = conversation_of(body.get("messages") or [], self._marker)
        request = Request(path, authorization, body, conversation, time.time())
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
            return request, self._chosen(request)

    def _chosen(self, request: Request) -> Reply:
        try:
            chosen = self._choose[KINDS[request.path]](request)
        except Exception as error:
            self._failure = self._failure or error
            return Reply(status=400, error=f"model server: the script failed: {error!r}")
        return Reply(chosen) if isinstance(chosen, str) else chosen

    def hold(self) -> None:
        """Wait to be released."""
        self._released.wait(HANG_LIMIT_S)

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(seconds)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Counts the request in `most_at_once` while it is open."""
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    @contextlib.contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Around the last write: an answer counts before the client receives it, and not if it cannot be sent."""
        with self._lock:
            self._answered[request.conversation, request.turn] += 1
        try:
            yield
        except OSError:
            with self._lock:
                self._answered[request.conversation, request.turn] -= 1
            raise

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)


def _chooser(replies: Iterable[Reply | str] | Script | Chooser) -> Chooser:
    if isinstance(replies, Script):
        return replies.chooser()
    return replies if callable(replies) else Script(replies=tuple(replies)).chooser()


class _Listener(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024  # many workers connect at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except disconnected clients, which some tests produce on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    owner: ModelServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # without it every call takes 40 ms, the client's delayed ACK
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.owner.connected(self.connection)

    def finish(self) -> None:
        self.owner.disconnected(self.connection)
        super().finish()

    def do_GET(self) -> None:
        if self.path == "/requests":
            self._send_json([asdict(request) for request in list(self.owner.requests)])
        elif self.path == "/counts":
            self._send_json({conversation or "": turns for conversation, turns in self.owner.counts().items()})
        elif self.path == "/v1/models":
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in self.owner.models]
            self._send_json({"object": "list", "data": models})
        else:
            self._send_json(failure(Reply(error=f"model server: no such path {self.path!r}", status=404)), 404)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/release":
            self.owner.release()
            return self._send_json({})
        if self.path not in KINDS:
            return self._send_json(failure(Reply(error=f"model server: no such path {self.path!r}", status=404)), 404)
        body = _object(content)
        if body is None:
            error = "model server: the request is not a JSON object"
            return self._send_json(failure(Reply(error=error, status=400)), 400)
        with self.owner.under_way():
            request, reply = self.owner.take(self.path, self.headers.get("Authorization"), body)
            self._give(request, reply)

    def _give(self, request: Request, reply: Reply) -> None:
        if reply.hang:
            self.owner.hold()
        self.owner.pause(reply.delay_s)
        try:
            if reply.close in ("before", "reset"):
                self._close(reset=reply.close == "reset")
            elif KINDS[request.path] == "chat" and request.wants_stream and reply.status == 200 and reply.body is None:
                self._stream(request, reply)
            else:
                self._whole(request, reply)
        except ConnectionError:  # the client disconnected, which some tests do on purpose
            self.close_connection = True

    def _whole(self, request: Request, reply: Reply) -> None:
        content = _body(request, reply, self.owner.dimensions).encode()
        self._head(reply, "application/json", {"Content-Length": str(len(content))})
        middle = len(content) // 2
        self.wfile.write(content[:middle])
        if not self._pass_middle(reply):
            return
        counts = reply.status == 200 and KINDS[request.path] == "chat"
        with self.owner.answering(request) if counts else contextlib.nullcontext():
            self.wfile.write(content[middle:])
            self.wfile.flush()

    def _stream(self, request: Request, reply: Reply) -> None:
        self._head(reply, "text/event-stream", {"Transfer-Encoding": "chunked", "Cache-Control": "no-cache"})
        events = [json.dumps(chunk, ensure_ascii=False) for chunk in chunks(reply, request)]
        for number, event in enumerate(events):
            if number == len(events) // 2:
                if reply.garbage is not None:
                    self._send_event(reply.garbage)
                if not self._pass_middle(reply):
                    return
            self._send_event(f"data: {event}")
            self.wfile.flush()
            self.owner.pause(reply.pause_s)
        with self.owner.answering(request):
            self._send_event("data: [DONE]")
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def _pass_middle(self, reply: Reply) -> bool:
        """Act between the halves of a reply. False: the second half is not sent."""
        if reply.stall:
            self.wfile.flush()
            self.owner.hold()
        if reply.close == "within":
            self.wfile.flush()
            self._close()
            return False
        return True

    def _send_event(self, event: str) -> None:
        content = f"{event}\n\n".encode()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _head(self, reply: Reply, content_type: str, headers: Mapping[str, str]) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type or content_type)
        if reply.retry_after is not None:
            self.send_header("Retry-After", f"{reply.retry_after}")
        for name, value in {**headers, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _close(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            os.close(self.connection.detach())  # at once: socketserver would shut the connection down properly first

    def _send_json(self, data: Any, status: int = 200) -> None:
        content = json.dumps(data, ensure_ascii=False).encode()
        self._head(Reply(status=status), "application/json", {"Content-Length": str(len(content))})
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged, because the requests are recorded."""


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(content)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _body(request: Request, reply: Reply, dimensions: int) -> str:
    if reply.body is not None:
        return reply.body
    return json.dumps(_answer(request, reply, dimensions), ensure_ascii=False)


def _answer(request: Request, reply: Reply, dimensions: int) -> dict[str, Any]:
    if reply.status != 200:
        return failure(reply)
    match KINDS[request.path]:
        case "chat":
            return completion(reply, request)
        case "embedding":
            return embeddings(request, reply.dimensions or dimensions, reply.model)
        case "rerank":
            return ranking(request, reply.model)
