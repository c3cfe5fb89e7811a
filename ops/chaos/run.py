"""Run random graphs on a real stack while it is being killed: `python ops/chaos/run.py --runs 300 --seed 7`.

Two schedulers, three workers and a redis-server with an append-only file. Every few seconds one of them is killed
(SIGKILL) and started again, or frozen (SIGSTOP) longer than its lease and thawed, or all connections are cut, or a
queue's messages are lost or doubled. A robot answers questions. Afterwards verdict.py reads every journal. Prints the
seed and one line of figures; exits with 1 when a promise was broken, or when nothing moved for two minutes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import graphs  # noqa: E402
import verdict  # noqa: E402

from sleipnir.client import Client  # noqa: E402
from sleipnir.errors import SleipnirError  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from tests.processes import RedisServer, Stack  # noqa: E402

SCHEDULERS = ("scheduler-1", "scheduler-2")
WORKERS = ("worker-1", "worker-2", "worker-3")
STALL_S = 120.0

T = TypeVar("T")


class Chaos:
    """One campaign. Everything that is drawn comes from `seed`; what the operating system does with it does not."""

    def __init__(self, folder: Path, seed: int, every_s: float) -> None:
        self.folder, self.chance, self.every_s = folder, random.Random(seed), every_s
        self.redis = RedisServer()
        self.stack = Stack(self.redis, folder / "home", log_level="info")
        self.effects = folder / "effects.txt"
        self.blows: Counter[str] = Counter()
        self.stop = threading.Event()

    def start(self) -> None:
        for name in SCHEDULERS:
            self.stack.start_scheduler(name)
        for name in WORKERS:
            self._start_worker(name)

    def submit(self, client: Client, runs: int) -> list[str]:
        agents = [graphs.write(self.folder / "agents" / f"g{i}", i, self.effects) for i in range(max(1, runs // 5))]
        return [client.submit(agents[i % len(agents)], "go").id for i in range(runs)]

    def strike(self) -> None:
        """Blow after blow until told to stop."""
        blows = [self.kill_worker, self.kill_worker, self.kill_scheduler, self.freeze, self.kill_redis]
        blows += [self.cut_connections, self.lose_messages, self.double_messages]
        while not self.stop.wait(self.every_s):
            blow = self.chance.choice(blows)
            self.blows[blow.__name__] += 1
            try:
                blow()
            except Exception as error:  # Redis may be away while we cut or double something in it
                print(f"  {blow.__name__}: {error}", file=sys.stderr)

    def kill_worker(self) -> None:
        name = self.chance.choice(WORKERS)
        self.stack.kill(name)
        self._start_worker(name)

    def kill_scheduler(self) -> None:
        name = self.chance.choice(SCHEDULERS)
        self.stack.kill(name)
        self.stack.start_scheduler(name)

    def freeze(self) -> None:
        """Longer than any lease: others take over, and the frozen one wakes up in a world that went on."""
        name = self.chance.choice(WORKERS + SCHEDULERS)
        self.stack.signal(name, signal.SIGSTOP)
        self.stop.wait(self.stack.settings.lease_s * 1.7)
        self.stack.signal(name, signal.SIGCONT)

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()

    def cut_connections(self) -> None:
        self._admin("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def lose_messages(self) -> None:
        self._admin("DEL", f"{self.stack.settings.key_prefix}:broker:scripts")

    def double_messages(self) -> None:
        queue = f"{self.stack.settings.key_prefix}:broker:scripts"
        client = connect(self.redis.url, retries=0)
        for message in client.lrange(queue, 0, 20):
            client.lpush(queue, message)
        client.close()

    def _admin(self, *words: str) -> None:
        client = connect(self.redis.url, retries=0)
        client.execute_command(*words)
        client.close()

    def _start_worker(self, name: str) -> None:
        self.stack.start_worker(name, "scripts", pool="threads", concurrency=4, ready=False)

    def answer(self, client: Client) -> int:
        """Answer what is open. Returns how many."""
        count = 0
        for gate in client.gates():
            try:
                client.run(gate.run).answer(random.Random(gate.run + str(gate.seq)).choice(graphs.ANSWERS), gate.seq)
                count += 1
            except SleipnirError:
                continue  # Redis is away, or the answer was taken although its reply was lost
        return count


def campaign(runs: int, seed: int, every_s: float, folder: Path) -> int:
    """The whole of it. Returns how many promises were broken."""
    chaos = Chaos(folder, seed, every_s)
    started = time.monotonic()
    try:
        chaos.start()
        with chaos.stack.client() as client:
            run_ids = chaos.submit(client, runs)
            robot = threading.Thread(target=finish, args=(chaos, client, run_ids))
            robot.start()
            chaos.strike()  # in this thread: what it starts is tied to the life of the thread that starts it
            robot.join()
            found = retried(lambda: verdict.wrongs(client, run_ids, chaos.effects, connect(chaos.redis.url)))
            ended = Counter(info.status for info in retried(lambda: client.store.runs.infos(run_ids)))
            steps = sum(len(client.run(run_id).history()) - 1 for run_id in run_ids)
        took_s = time.monotonic() - started
        print(
            f"seed {seed}: {runs} runs, {steps} visits, {dict(ended)}, blows {dict(chaos.blows)}, "
            f"{len(found)} broken promises, {took_s:.0f} s"
        )
        for wrong in found[:50]:
            print(f"  {wrong}")
        if found:
            evidence = Path(tempfile.mkdtemp(prefix="chaos-evidence-"))
            shutil.copytree(folder / "home", evidence / "logs", ignore=shutil.ignore_patterns("bundles"))
            print(f"  logs: {evidence}")
        return len(found)
    finally:
        chaos.stack.stop()
        chaos.redis.stop()


def finish(chaos: Chaos, client: Client, run_ids: list[str]) -> None:
    """Answer and wait until every run is over, or nothing has moved for STALL_S; then stop the blows."""
    left, moved = set(run_ids), time.monotonic()
    pause = threading.Event()
    while left:
        pause.wait(0.5)
        try:
            answered = chaos.answer(client)
            over = {info.id for info in client.store.runs.infos(sorted(left)) if info.is_final}
        except Exception:  # Redis is away
            continue
        if answered or over:
            moved = time.monotonic()
        left -= over
        print(f"\r  {len(run_ids) - len(left)} of {len(run_ids)} over ", end="", file=sys.stderr, flush=True)
        if time.monotonic() - moved > STALL_S:
            print(f"\nnothing moved for {STALL_S:g} s; left: {sorted(left)[:10]}", file=sys.stderr)
            break
    print(file=sys.stderr)
    chaos.stop.set()


def retried(call: Callable[[], T]) -> T:
    """The last blow may still be felt when the verdict begins."""
    for _ in range(50):
        try:
            return call()
        except Exception:
            threading.Event().wait(0.2)
    return call()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between blows (default 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-chaos-") as folder:
        sys.exit(min(1, campaign(options.runs, options.seed, options.every, Path(folder))))


if __name__ == "__main__":
    main()
