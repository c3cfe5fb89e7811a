"""Turns of threads while everything is killed: `python ops/chaos/threads.py --threads 100 --turns 4 --seed 7`.

Each thread is of a random graph of its own (graphs.py), on the stack of run.py with its faults; with `--nodes` the
state is on a Redis Cluster. When the last run of a thread is over, two clients submit its next turn at the same moment;
the robot of run.py answers, pauses, resumes, retries and cancels what runs. Afterwards:

* of two submissions at the same moment exactly one has begun, if both got a reply; and one that was refused, or got no
  reply, is no second turn;
* the turns of each thread are numbered without gaps, each names the one before, and begins with its last state;
* every promise of verdict.py about single runs is kept.

Prints one line of figures with the seed; exits with 1 when a promise was broken, or nothing moved for two minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import clusters, graphs, verdict  # noqa: E402
from ops.chaos.robot import Robot  # noqa: E402
from ops.chaos.run import Chaos, draw, keep_evidence, retried, settled, under_fire  # noqa: E402
from ops.chaos.verdict import Wrong  # noqa: E402
from sleipnir.client.client import Client  # noqa: E402
from sleipnir.errors import SleipnirError, ThreadBusy  # noqa: E402
from sleipnir.graph.message_keys import USER_INPUT  # noqa: E402
from sleipnir.runs.threads import NOT_KEPT  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402

THREAD = "t"
OF_A_TURN = (*NOT_KEPT, "initial_prompt", USER_INPUT)

Reply: TypeAlias = Literal["begun", "refused", "lost"]
"""`lost`: nobody knows whether the turn has begun."""


@dataclass(frozen=True)
class Race:
    """Two submissions of the next turn of the thread of an agent: the replies, by prompt."""

    agent: str
    replies: Mapping[str, Reply]


class ThreadRobot(Robot):
    """Lets two clients submit each next turn of the threads of `agents`, until each has had so many races."""

    forks_runs = False

    def __init__(self, clients: Sequence[Client], agents: Sequence[Path], turns: int, chance: random.Random) -> None:
        super().__init__(clients[0], agents, chance)
        self._clients = clients
        self._left = {agent: turns for agent in agents}
        self.races: list[Race] = []

    def _total(self) -> int:
        return len(self.races) + sum(self._left.values())

    def _has_work(self) -> bool:
        return bool(self._live) or any(self._left.values())

    def _submit(self) -> None:
        for agent, left in self._left.items():
            if len(self._live) >= self.at_once:
                return
            if left and self._is_idle(agent.name):
                self._race(agent)
                self._left[agent] = left - 1

    def _is_idle(self, agent: str) -> bool:
        """Whether the last run of the thread is over, and this robot does nothing with it any more."""
        thread = self._client.thread(agent, THREAD)
        if thread is None:
            return True
        self._adopt(thread.run, agent)  # a submission without a reply
        return thread.run in self.ended

    def _race(self, agent: Path) -> None:
        replies: dict[str, Reply] = {}
        at_once = threading.Barrier(len(self._clients))

        def submit(client: Client, prompt: str) -> None:
            at_once.wait()
            try:
                self._adopt(client.submit(agent, prompt, thread=THREAD).id, agent.name)
                replies[prompt] = "begun"
            except ThreadBusy:
                replies[prompt] = "refused"
            except SleipnirError:
                replies[prompt] = "lost"

        threads = [
            threading.Thread(target=submit, args=(client, f"{len(self.races)}.{number}"))
            for number, client in enumerate(self._clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.races.append(Race(agent.name, replies))
        self.did.update(replies.values())


def wrongs(client: Client, races: Sequence[Race]) -> Iterator[Wrong]:
    """What is wrong with the threads."""
    for agent in dict.fromkeys(race.agent for race in races):
        prompts: Counter[str] = Counter()
        yield from of_turns(client, agent, prompts)
        for race in races:
            if race.agent == agent:
                yield from of_race(race, prompts)


def of_race(race: Race, prompts: Counter[str]) -> Iterator[Wrong]:
    """`prompts` are those of the turns of the thread."""
    counts = {prompt: prompts[prompt] for prompt in race.replies}
    told = f"{race.agent}: two turns at once were {dict(race.replies)}, and began {counts}"
    for prompt, reply in race.replies.items():
        if reply != "lost" and counts[prompt] != (reply == "begun"):
            yield Wrong("lost" if reply == "begun" else "double", told)
    if sum(counts.values()) > 1 or ("lost" not in race.replies.values() and not sum(counts.values())):
        yield Wrong("double" if sum(counts.values()) else "lost", told)


def of_turns(client: Client, agent: str, prompts: Counter[str]) -> Iterator[Wrong]:
    """Follow the turns of a thread, and count their prompts."""
    thread, infos = client.thread(agent, THREAD), client.thread_runs(agent, THREAD, 1_000)[::-1]
    if thread is None or [info.turn for info in infos] != list(range(1, thread.turns + 1)):
        yield Wrong("lost", f"{agent}: {thread} has the turns {[info.turn for info in infos]}")
    before: str | None = None
    for info in infos:
        run = client.run(info.id)
        begin = run.state_at(0)
        prompts[str(begin["initial_prompt"])] += 1
        if info.previous != before:
            yield Wrong("state", f"{info.id}: turn {info.turn} of {agent} follows {info.previous}, not {before}")
        if before is not None:
            last = {key: value for key, value in client.run(before).state().items() if key not in OF_A_TURN}
            changed = [key for key, value in last.items() if begin.get(key) != value]
            if changed:
                yield Wrong("state", f"{info.id}: turn {info.turn} of {agent} has other values of {changed}")
        before = info.id


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """The whole of it. Returns how many promises were broken."""
    chance = random.Random(options.seed)
    chaos = Chaos(
        folder,
        chance,
        every_s=options.kill_every,
        drops=options.drops,
        fast=options.fast,
        redis=clusters.servers(options),
        partitions=options.partitions,
    )
    effects, started = folder / "effects.txt", time.monotonic()
    agents = draw(folder / "agents", chance, options.threads, effects, graphs.KINDS)
    try:
        chaos.start()
        with chaos.stack.client() as client, chaos.stack.client() as rival:
            robot = ThreadRobot((client, rival), agents, options.turns, random.Random(chance.random()))

            def work() -> None:
                try:
                    robot.work()
                finally:
                    chaos.stop.set()

            under_fire(chaos, work)
            violations = settled(lambda: judge(client, robot, effects, chaos))
            turns = retried(lambda: sum(thread.turns for thread in client.threads()))
        facts = {"seed": options.seed, "threads": len(agents), "turns": turns, "blows": dict(chaos.counts)}
        facts |= {"robot": dict(robot.did), "ended": dict(Counter(status for status, _ in robot.ended.values()))}
        facts |= {"broken": dict(Counter(wrong.kind for wrong in violations)), "stalled": robot.stalled}
        print(json.dumps(facts | {"took_s": round(time.monotonic() - started)}))
        for wrong in violations[:50]:
            print(f"  {wrong.kind}: {wrong.text}", file=sys.stderr)
        if violations:
            print(f"  evidence: {keep_evidence(chaos, violations)}", file=sys.stderr)
        return len(violations) + robot.stalled
    finally:
        chaos.stack.stop()
        chaos.redis.stop()


def judge(client: Client, robot: ThreadRobot, effects: Path, chaos: Chaos) -> list[Wrong]:
    redis = connect(chaos.redis.url)
    try:
        return [
            *verdict.wrongs(client, robot.run_ids, effects, redis, robot.run_agains),
            *wrongs(client, robot.races),
        ]
    finally:
        redis.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--turns", type=int, default=4, help="races for a turn of each thread (default 4)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="default: drawn")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="seconds between blows (default 2)")
    parser.add_argument("--drops", type=int, default=200, help="cuts of all connections, at most (default 200)")
    clusters.add_options(parser)
    parser.add_argument("--fast", action="store_true", help="leases of 2 s, for a short campaign")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-chaos-") as folder:
        sys.exit(min(1, campaign(options, Path(folder))))


if __name__ == "__main__":
    main()
