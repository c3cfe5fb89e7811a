"""Two scheduler processes with default settings share the partitions while runs go on."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from sleipnir.client.client import Client
from tests.processes import RedisServer, Stack, wait_until, write_agent

QUICK = """
name: quick
start: a
nodes:
  a: {type: function, call: "f.py:f", next: b}
  b: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{n}}"}
"""
COUNT = "def f(state):\n    return {'n': state.get('n', 0) + 1}\n"


def shares(client: Client) -> list[int]:
    return sorted(Counter(client.store.partitions.owners().values()).values())


def test_a_second_scheduler_gets_half_within_five_seconds_and_all_when_the_first_dies(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Finding C12 of the second review."""
    agent = write_agent(tmp_path / "quick", QUICK, f_py=COUNT)
    with (
        Stack(redis_server, tmp_path / "home", key_prefix="sharing", owner_ttl_s=3.0) as stack,
        stack.client() as client,
    ):
        stack.start_scheduler("one")
        stack.start_worker()
        wait_until(lambda: shares(client) == [16], "the first one owns all")
        runs = [client.submit(agent) for _ in range(20)]
        stack.start_scheduler("two")
        wait_until(lambda: client.store._client.zcard(client.store.keys.instances) == 2, "the second one is there")
        began = time.monotonic()
        while shares(client) != [8, 8]:
            runs.append(client.submit(agent))
            assert time.monotonic() < began + 60, shares(client)
        runs += [client.submit(agent) for _ in range(20)]
        for run in runs:
            assert (run.wait(60).status, run.output) == ("completed", "2")
        stack.kill("one")
        wait_until(lambda: shares(client) == [16], "the second one has all")
        assert client.submit(agent).wait(60).status == "completed"
    assert "service failed" not in stack.log("one") + stack.log("two")
