"""Flower with our configuration, beside a stack, for tests."""

from __future__ import annotations

import base64
import json
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import Stack, wait_until

CONFIGURATION = Path(__file__).parents[1] / "ops" / "flower" / "flowerconfig.py"
USER, PASSWORD = "ops", "flower-pass"


@dataclass(frozen=True)
class Flower:
    """A running Flower, as an HTTP client sees it."""

    url: str

    def read(self, path: str, *, post: dict[str, str] | None = None, login: bool = True) -> str:
        """A page, as text. Raises HTTPError."""
        data = None if post is None else urllib.parse.urlencode(post).encode()
        request = urllib.request.Request(f"{self.url}{path}", data)
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read()).decode()

    def json(self, path: str) -> Any:
        return json.loads(self.read(path))

    def rows(self, search: str) -> list[dict[str, Any]]:
        """What the page of tasks lists for a search, in the order of arrival."""
        query = {
            "draw": 1, "start": 0, "length": 100, "search[value]": search,
            "order[0][column]": 0, "order[0][dir]": "asc", "columns[0][data]": "received",
        }  # fmt: skip
        table = self.json(f"/tasks/datatable?{urllib.parse.urlencode(query)}")
        assert "searchError" not in table, table
        rows: list[dict[str, Any]] = table["data"]
        return rows

    def ended(self, search: str, count: int) -> list[dict[str, Any]]:
        """The rows of a search, when there are so many, and all of them have ended."""

        def found() -> list[dict[str, Any]] | None:
            rows = self.rows(search)
            ended = [row for row in rows if row["state"] not in ("RECEIVED", "STARTED", "PENDING")]
            return rows if len(ended) == len(rows) >= count else None

        rows = wait_until(found, f"Flower has {count} ended tasks for {search!r}", every_s=0.1)
        assert rows is not None
        return rows


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def command(port: int) -> list[str]:
    return [
        sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "flower",
        f"--conf={CONFIGURATION}", f"--port={port}",
    ]  # fmt: skip


def start_flower(stack: Stack) -> Flower:
    """Returns when it hears of the stack's workers: what happens after that is shown."""
    port = free_port()
    flower = Flower(f"http://127.0.0.1:{port}")
    stack.start("flower", command(port), {"FLOWER_BASIC_AUTH": f"{USER}:{PASSWORD}"})

    def hears() -> bool:
        try:
            return any(flower.json("/api/workers?status=true").values())
        except (urllib.error.URLError, ConnectionError):
            return False

    wait_until(hears, f"Flower lists workers\n{stack.log('flower')}", timeout_s=60, every_s=0.2)
    return flower
