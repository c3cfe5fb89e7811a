"""Schedules that fire each second, while schedulers are killed: `python ops/chaos/schedules.py --minutes 10 --seed 7`.

Two schedulers run. Every few seconds one is killed, frozen and then killed, or replaced by one that dies right before
or after the script of a fire. Afterwards each schedule must have exactly one run for each of its times, from the first
to the last that it has decided, and all runs must have completed.

Prints one line of figures with the seed; exits with 1 when a time has no run, or several, or a run did not complete.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sleipnir.client.client import UNFINISHED, Client  # noqa: E402
from sleipnir.client.schedule import Schedule  # noqa: E402
from sleipnir.failpoints import VARIABLE  # noqa: E402
from tests.processes import RedisServer, Stack, wait_until, write_agent  # noqa: E402

AGENT = """
name: tick
version: sleipnir/1
start: done
nodes:
  done: {type: end, output: "{{initial_prompt}}"}
"""
SCHEDULES = 3
PAUSE_S = (1.5, 6.0)
FROZEN_S = 3.0  # longer than a partition's lease
SETTLES_S = 300.0


class Schedulers:
    """Two schedulers of a stack, one of which dies at a time."""

    def __init__(self, stack: Stack, chance: random.Random) -> None:
        self._stack, self._chance = stack, chance
        self.alive: list[str] = []
        self.deaths = Counter[str]()
        self._started = 0

    def start(self, **env: str) -> str:
        name = f"scheduler-{self._started}"
        self._started += 1
        self._stack.start_scheduler(name, env=env)
        return name

    def hit(self) -> None:
        """Let one die in one of the ways, and another take its place."""
        how = self._chance.choice(("killed", "frozen", "before a fire", "after a fire"))
        victim = self.alive.pop(0)
        if how == "frozen":
            self._stack.signal(victim, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            self._stack.signal(victim, signal.SIGCONT)
            time.sleep(self._chance.uniform(0, 0.2))
        self._stack.kill(victim)
        if how.endswith("a fire"):
            self._die_by_itself(how.partition(" ")[0])
        self.alive.append(self.start())
        self.deaths[how] += 1

    def _die_by_itself(self, side: str) -> None:
        """One that dies at its first fire. Schedules of the other one's partitions are no matter of it."""
        name = self.start(**{VARIABLE: f"schedule_write.{side}=kill"})
        deadline = time.monotonic() + 5
        while self._stack.processes[name].poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self._stack.kill(name)


def wrong_fires(client: Client, schedule: Schedule, runs: dict[int, list[str]]) -> Iterator[str]:
    """What is wrong with the runs of a schedule, by the times of their fires."""
    info = schedule.info()
    last_ms = info.progress.last_ms or 0
    for at_ms in range(info.plan.anchor_ms + 1_000, last_ms + 1, 1_000):
        found = runs.pop(at_ms, [])
        if len(found) != 1:
            yield f"{schedule.name}: {len(found)} runs of {at_ms}: {found}"
        elif client.run(found[0]).status != "completed":
            yield f"{schedule.name}: run {found[0]} is {client.run(found[0]).status}"
    for at_ms, found in runs.items():
        yield f"{schedule.name}: runs of {at_ms}, which is no time of it: {found}"
    if info.progress.missed or info.progress.skipped:
        yield f"{schedule.name}: {info.progress.missed} missed, {info.progress.skipped} skipped"


def runs_by_time(client: Client) -> dict[str, dict[int, list[str]]]:
    """The runs of each schedule, by the times of their fires."""
    found: dict[str, dict[int, list[str]]] = {}
    for info in client.runs(1_000_000, among=1_000_000):
        spec = client.store.runs.spec(info.id)
        found.setdefault(str(spec.schedule), {}).setdefault(spec.fired_ms, []).append(info.id)
    return found


def campaign(stack: Stack, client: Client, *, minutes: float, seed: int) -> list[str]:
    """Returns what was wrong."""
    chance = random.Random(seed)
    agent = write_agent(stack.home / "tick", AGENT)
    schedulers = Schedulers(stack, chance)
    schedulers.alive = [schedulers.start(), schedulers.start()]
    wait_until(lambda: len(client.health().schedulers) == 2, "two schedulers run")
    schedules = [client.schedule(f"s{n}", agent, "hi", every="1s", overlap="allow") for n in range(SCHEDULES)]
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until:
        time.sleep(chance.uniform(*PAUSE_S))
        schedulers.hit()
    for schedule in schedules:
        schedule.pause()
    total = sum(schedule.info().progress.fires for schedule in schedules)
    wait_until(lambda: client.run_count() >= total, "each fire is a run", SETTLES_S)
    wait_until(lambda: not client.runs(1, UNFINISHED), "all runs are over", SETTLES_S)
    found = runs_by_time(client)
    wrong = [line for schedule in schedules for line in wrong_fires(client, schedule, found.pop(schedule.name, {}))]
    wrong += [f"{name}: {len(times)} times of another schedule" for name, times in found.items()]
    late = sorted(fire.made_ms - fire.at_ms for schedule in schedules for fire in schedule.fires())
    print(
        f"seed {seed}: {total:,} fires of {SCHEDULES} schedules in {minutes:g} minutes, "
        f"{sum(schedulers.deaths.values())} deaths of schedulers {dict(schedulers.deaths)}, {len(wrong)} wrong; "
        f"of the last {len(late)} fires the median is {late[len(late) // 2]:,} ms late, the latest {late[-1]:,} ms"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    redis = RedisServer()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Stack(redis, Path(folder), key_prefix="chaos", owner_ttl_s=1.0, log_level="info") as stack,
            stack.client() as client,
        ):
            wrong = campaign(stack, client, minutes=given.minutes, seed=given.seed)
    finally:
        redis.stop()
    for line in wrong[:50]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
