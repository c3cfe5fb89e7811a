"""A scripted model server: speaks the OpenAI chat protocol over HTTP, says what the test tells it to say.

    with ModelServer(["first reply", Reply(status=429), Reply("late", hang=True)]) as server:
        ...                       # OPENAI_API_BASE=server.url, model `openai:gpt-test`
        server.requests[0].prompt

Replies are given out in order, or chosen by a function of the request. As a process, for system tests:
`python -m tests.model_server --port 0 --script replies.json` prints its URL on the first line of stdout.
replies.json is a list of replies, or an object with any of

    {"rules": [{"match": "regex on the last message", "reply": REPLY}],   tried first, never used up
     "replies": [REPLY, ...],                                              then these, in order
     "default": REPLY}                                                     then this, for ever

where REPLY is a text or an object with the fields of `Reply`. GET /requests returns what was asked so far;
POST /release lets hanging replies go.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HANG_LIMIT_S = 60.0  # a test that forgets to release must not hang for ever


@dataclass(frozen=True)
class Reply:
    """One answer. `body` replaces the whole response body (malformed JSON); `error` is the text of a failure."""

    text: str | None = ""
    status: int = 200
    error: str = "scripted failure"
    delay_s: float = 0.0
    hang: bool = False
    body: str | None = None
    input_tokens: int = 10
    output_tokens: int = 5
    model: str | None = None


@dataclass(frozen=True)
class Request:
    """One recorded call. Fields the client left out are None."""

    path: str
    authorization: str | None
    body: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", []))

    @property
    def system(self) -> str | None:
        return next((message["content"] for message in self.messages if message["role"] == "system"), None)

    @property
    def prompt(self) -> str:
        """The last message's text."""
        return str(self.messages[-1]["content"])


Chooser = Callable[[Request], "Reply | str"]


class ModelServer:
    """The server; starts with the `with` block and stops with it. `requests` grows as calls come in."""

    def __init__(self, replies: Iterable[Reply | str] | Chooser = (), *, port: int = 0) -> None:
        self._choose = replies if callable(replies) else in_order(replies)
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self.requests: list[Request] = []
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def env(self, client: str = "openai", key: str = "sk-test-key-of-the-model-server") -> dict[str, str]:
        """The variables that send `client`'s calls here."""
        prefix = client.upper().replace("-", "_")
        return {f"{prefix}_API_BASE": self.url, f"{prefix}_API_KEY": key}

    def release(self) -> None:
        """Let hanging replies go, now and from now on."""
        self._released.set()

    def wait_for_requests(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until `count` calls have come in. Raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} model calls after {timeout_s} s")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.release()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, request: Request) -> Reply:
        """Record the call, choose its reply and wait as long as that says."""
        with self._arrived:
            self.requests.append(request)
            chosen = self._choose(request)
            self._arrived.notify_all()
        reply = Reply(chosen) if isinstance(chosen, str) else chosen
        if reply.hang:
            self._released.wait(HANG_LIMIT_S)
        if reply.delay_s:
            time.sleep(reply.delay_s)
        return reply


def in_order(replies: Iterable[Reply | str]) -> Chooser:
    """Each reply once; a call too many is told so with status 400, which no client retries."""
    left = iter(list(replies))
    return lambda request: next(left, Reply(status=400, error="model server: no reply is left in the script"))


def from_script(script: Any) -> Chooser:
    """The chooser that a parsed replies.json describes."""
    if isinstance(script, list):
        return in_order([_reply(item) for item in script])
    rules = [(re.compile(rule["match"], re.DOTALL), _reply(rule["reply"])) for rule in script.get("rules", [])]
    left = iter([_reply(item) for item in script.get("replies", [])])
    default = _reply(script.get("default", {"status": 400, "error": "model server: no reply is left in the script"}))

    def choose(request: Request) -> Reply:
        matching = (reply for pattern, reply in rules if pattern.search(request.prompt))
        return next(matching, None) or next(left, default)

    return choose


def _reply(item: Any) -> Reply:
    return Reply(item) if isinstance(item, str) else Reply(**item)


class _Handler(BaseHTTPRequestHandler):
    owner: ModelServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # without it every call takes 40 ms, the client's delayed ACK
    wbufsize = -1

    def do_GET(self) -> None:
        self._send(200, json.dumps([asdict(request) for request in list(self.owner.requests)]))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/release":
            self.owner.release()
            return self._send(200, "{}")
        request = Request(self.path, self.headers.get("Authorization"), json.loads(content))
        reply = self.owner.answer(request)
        self._send(reply.status, _body(request, reply))

    def _send(self, status: int, body: str) -> None:
        content = body.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
        except ConnectionError:  # the client gave up waiting, which some tests are about
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the requests are recorded."""


def _body(request: Request, reply: Reply) -> str:
    if reply.body is not None:
        return reply.body
    if reply.status != 200:
        return json.dumps({"error": {"message": reply.error, "type": "scripted", "code": str(reply.status)}})
    message = {"role": "assistant", "content": reply.text}
    total = reply.input_tokens + reply.output_tokens
    return json.dumps(
        {
            "id": "chatcmpl-test",
            "object": "chat.completion",
            "created": 0,
            "model": reply.model or request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": reply.input_tokens,
                "completion_tokens": reply.output_tokens,
                "total_tokens": total,
            },
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible model server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    options = parser.parse_args()
    chooser = from_script(json.loads(options.script.read_text(encoding="utf-8")))
    with ModelServer(chooser, port=options.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
