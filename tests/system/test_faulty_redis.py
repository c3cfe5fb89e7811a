"""Everybody's Redis fails: 1 % of commands time out unsent, 1 % after they were applied, some are READONLY or slow.

The other system tests can be run under the same faults; see tests/faulty_redis/faults.py.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ops.chaos import graphs, verdict, wild
from ops.chaos.robot import Robot
from sleipnir.store.connect import connect
from tests.faulty_redis import faults
from tests.processes import RedisServer, Stack, wait_until

RUNS = 40


@pytest.mark.timeout(240)
def test_all_promises_are_kept_while_commands_fail_on_every_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, effects, said = tmp_path / "faults.txt", tmp_path / "effects.txt", "seed=7,readonly=0.005,slow=0.005"
    kinds = {"wild": wild, "loki": graphs, "bsp": graphs, "dag": graphs}
    agents = [
        module.write(tmp_path / "agents" / f"{kind}-{seed}", seed, effects)
        for kind, module in kinds.items()
        for seed in range(3)
    ]
    server = RedisServer()
    with Stack(server, tmp_path / "home", log_level="info") as stack, stack.client() as client:
        monkeypatch.setenv(faults.VARIABLE, said)
        monkeypatch.setenv(faults.LOG_VARIABLE, str(log))
        stack.start_scheduler()
        for name in ("worker-1", "worker-2"):
            stack.start_worker(name, "scripts,functions", concurrency=4, ready=False)
        robot = Robot(client, [agents[number % len(agents)] for number in range(RUNS)], random.Random(3))
        with faults.installed(said, str(log)):
            robot.work()
        assert not robot.stalled, f"{robot.left()}\n{stack.log('scheduler')[-3000:]}"
        redis = connect(server.url)
        wait_until(
            lambda: not verdict.wrongs(client, robot.run_ids, effects, redis, robot.run_agains),
            f"no promise is broken: {verdict.wrongs(client, robot.run_ids, effects, redis, robot.run_agains)}",
        )
        redis.close()
    server.stop()
    assert len(robot.run_ids) >= RUNS
    happened = Counter(log.read_text().split())
    assert min(happened["before"], happened["after"], happened["readonly"], happened["slow"]) > 3, happened
