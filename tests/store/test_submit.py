"""What submitting refuses, and that it leaves nothing behind then."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.client import Client
from sleipnir.errors import GraphError
from sleipnir.settings import Settings
from tests.processes import RedisServer, write_agent

WRONG = """
name: wrong
start: a
nodes:
  a: {type: router, next: [b, x], branch: {by: "{{k}}", to: {y: z}}}
  b: {type: join, wait_for: [c]}
"""


@pytest.mark.conformance("BD-14", "BD-17")
def test_a_graph_that_is_wrong_is_refused_with_everything_that_is_wrong_and_nothing_is_stored(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with Client(Settings(redis_url=redis_server.url, home=tmp_path, key_prefix="submit")) as client:
        with pytest.raises(GraphError, match="Graph validation failed with 3 error") as caught:
            client.submit(write_agent(tmp_path / "wrong", WRONG))
        assert [(p.line, p.message) for p in caught.value.problems if p.level == "error"] == [
            (5, "References non-existent node 'x' in 'next'"),
            (5, "References non-existent node 'z' in 'branch'"),
            (6, "References non-existent node 'c' in 'wait_for'"),
        ]
        assert client.runs(10) == []
