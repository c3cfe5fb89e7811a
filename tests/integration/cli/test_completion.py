"""Completion where Redis does not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem

from sleipnir.cli import completion
from tests.unit.cli.test_completion import values


def test_a_redis_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding U18 of the second review: redis-py took the end of the time for a slow server and asked again, and a key
    press took a minute."""
    monkeypatch.setattr(completion, "TIME_LIMIT_S", 2.0)  # time enough to connect on a busy machine
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # connections are made, and nothing answers
        url = f"redis://127.0.0.1:{hanging.getsockname()[1]}/0"
        values(completion._kept("runs", lambda options: iter([CompletionItem("one")])), tmp_path, url)
        assert values(completion._kept("runs", completion._runs), tmp_path, url) == ["one"]
        hanging.setblocking(False)
        hanging.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hanging.accept()
