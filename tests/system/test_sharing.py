"""Scheduler processes share the partitions while runs go on."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from pathlib import Path

from sleipnir.client.client import Client, Run
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


SLOW = """
name: slow
start: a
nodes:
  a: {type: function, call: "f.py:f", next: again}
  again: {type: router, branch: [{when: "state.n < 90", to: a}, {else: done}]}
  done: {type: end, output: "{{n}}"}
"""
NAP = "import time\n\n\ndef f(state):\n    time.sleep(0.15)\n    return {'n': state.get('n', 0) + 1}\n"


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


def test_partitions_move_at_once_when_a_scheduler_comes_or_stops_and_delay_no_run_for_long(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Without what they tell each other, each would look for 20 s later: a third of the lease."""
    agent, looks_s = write_agent(tmp_path / "slow", SLOW, f_py=NAP), 20.0
    more = {"owner_ttl_s": 3 * looks_s, "redispatch_after_s": 60.0, "lease_s": 60.0}
    with Stack(redis_server, tmp_path / "home", key_prefix="moving", **more) as stack, stack.client() as client:
        stack.start_scheduler("one")
        stack.start_worker(concurrency=8)
        wait_until(lambda: shares(client) == [16], "the first one owns all")
        runs = [client.submit(agent) for _ in range(8)]
        wait_until(lambda: all(run.info().step for run in runs), "all have begun")
        stack.start_scheduler("two")
        wait_until(lambda: client.store._client.zcard(client.store.keys.instances) == 2, "the second one is there")
        wait_until(lambda: shares(client) == [8, 8], "each has its share", timeout_s=looks_s / 2)
        stack.signal("one", signal.SIGTERM)
        wait_until(lambda: shares(client) == [16], "the second one has all", timeout_s=looks_s / 2)
        assert [(run.wait(60).status, run.output) for run in runs] == [("completed", "90")] * 8
        assert max(_pauses_ms(run) for run in runs) < looks_s / 2 * 1000
        assert "service failed" not in stack.log("one") + stack.log("two")


def _pauses_ms(run: Run) -> int:
    """The longest time between two steps of a run."""
    at_ms = [step.at_ms for step in run.history()]
    return max(later - sooner for sooner, later in itertools.pairwise(at_ms))
