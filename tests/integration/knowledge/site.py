"""A web site on the loopback, for tests of what is fetched."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """`body` may be a function that writes what it likes until the client has gone; then no length is told."""

    body: str | bytes | Callable[[Callable[[bytes], Any]], None] = ""
    kind: str | None = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def redirect(cls, target: str) -> Answer:
        return cls(status=302, headers={"Location": target})


class Site:
    """Answers with `pages` by path; others are 404. `asked` are the paths that were asked for, with their query."""

    def __init__(self, pages: Mapping[str, Answer | str]) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.agents: set[str | None] = set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.agents.add(self.headers["User-Agent"])
                page = site.pages.get(self.path.partition("?")[0], Answer("no such page", status=404))
                site._answer(self, page if isinstance(page, Answer) else Answer(page))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def encrypt(self, key: Path, certificate: Path) -> None:
        """To be called before the site is opened; `url` is not changed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        try:
            handler.send_response(answer.status)
            if answer.kind is not None:
                handler.send_header("Content-Type", answer.kind)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            if isinstance(body, bytes) and "Content-Length" not in answer.headers:
                handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            if isinstance(body, bytes):
                handler.wfile.write(body)
            else:
                body(handler.wfile.write)
        except OSError:  # the client has enough
            handler.close_connection = True
