"""A server of the HTTP API as a process, and requests to it."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.processes import Stack
from tests.waiting import wait_until

TIMEOUT_S = 60.0
BASE = "/api/v1"
PROBLEM = "urn:sleipnir:problem:"


@dataclass(frozen=True)
class Answer:
    """A response that was read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def facts(self) -> Any:
        """The members of the problem document, or of an error of OpenAI's."""
        return self.data.get("error", self.data)

    @property
    def problem(self) -> str:
        """The type of the problem document, without what all types begin with; the code of an error of OpenAI's."""
        if self.headers["Content-Type"] == "application/json":
            return str(self.facts["code"])
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        assert self.data["status"] == self.status
        return str(self.data["type"]).removeprefix(PROBLEM)


class Console:
    """A server of a stack, on a free port."""

    def __init__(self, stack: Stack, name: str, port: int) -> None:
        self.stack, self.name, self.port = stack, name, port

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        raw: Any = None,
        base: str = BASE,
    ) -> Answer:
        """One request below `base`, with a JSON body, or with the bytes `raw` (an iterable is sent in chunks)."""
        given = dict(headers or {})
        if body is not None:
            raw = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        connection = self.connection()
        try:
            connection.request(method, f"{base}{path}", raw, given)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.request("POST", path, body, headers)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        process = self.stack.processes.pop(self.name)
        process.terminate()
        return process.wait(TIMEOUT_S)


@contextmanager
def console_of(stack: Stack, name: str = "console", **env: str) -> Iterator[Console]:
    """A server of this stack, which answers."""
    stack.start(name, [sys.executable, "-m", "sleipnir_console"], {"SLEIPNIR_CONSOLE_PORT": "0", **env})
    pattern = re.compile(r"http://127\.0\.0\.1:(\d+)")
    try:
        found = wait_until(lambda: pattern.search(stack.log(name)), f"{name} listens", TIMEOUT_S)
        console = Console(stack, name, int(found[1]))
        wait_until(lambda: _is_live(console), f"{name} answers\n{stack.log(name)}", TIMEOUT_S)
        yield console
    finally:
        process = stack.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()


def _is_live(console: Console) -> bool:
    try:
        return console.get("/health/live").status == 200
    except OSError:
        return False
