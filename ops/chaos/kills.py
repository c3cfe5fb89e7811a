"""The shared part of campaigns that only kill: SIGKILL to one of the processes every few seconds, and the report. With
`--nodes` the state is on a Redis Cluster: its nodes are killed one by one, and slots move between them.

A worker that is not ready yet is not killed: if starting takes longer than a few faults, none would ever work. On a
slow or busy machine, `--patient` waits after each kill until all processes are ready again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ops.chaos import clusters
from ops.chaos.run import Chaos, keep_evidence
from ops.chaos.verdict import Wrong
from sleipnir.client.client import Run
from sleipnir.runs.views import StepInfo
from tests.processes import wait_until

MOST_REDELIVERIES = 50  # which visits of a run lose their workers is chance; none may give up


class Fleet(Chaos):
    """The processes of a campaign, and the blows to them."""

    def __init__(self, folder: Path, options: argparse.Namespace, **settings: Any) -> None:
        chance = random.Random(options.seed)
        more = {"max_redeliveries": MOST_REDELIVERIES, "partitions": options.partitions} | settings
        redis = clusters.servers(options)
        super().__init__(folder, chance, every_s=options.kill_every, fast=True, redis=redis, **more)
        self.patient: bool = options.patient
        self.starts: Counter[str] = Counter()
        self._everybody = tuple(self.workers)

    def start(self) -> None:
        super().start()
        wait_until(lambda: all(map(self.is_ready, self._everybody)), "the workers are ready", 120)

    def under_fire(self, wait: Callable[[], object]) -> None:
        """Strike until `wait` returns, or raises AssertionError, which is printed. In the main thread: processes die
        with the thread that started them."""

        def until_then() -> None:
            try:
                wait()
            except AssertionError as error:
                print(error, file=sys.stderr)
            finally:
                self.stop.set()

        waiting = threading.Thread(target=until_then)
        waiting.start()
        self.strike()
        waiting.join()

    def strike(self) -> None:
        """Kill one of the processes, all with the same probability, until `stop` is set. All nodes of a cluster count
        as one: schedulers take no visit back for one lease after a node was away, so none may be away all the time."""
        of_redis = [self.kill_redis, *self.blows_to_cluster()]
        while not self.stop.wait(self.every_s):
            self.workers = [name for name in self._everybody if self.is_ready(name)]
            if self.patient and len(self.workers) < len(self._everybody):
                continue
            blows = [*of_redis, *[self.kill_scheduler] * len(self.schedulers)]
            blow = self.chance.choice([*blows, *[self.kill_worker] * len(self.workers)])
            self.counts[blow.__name__] += 1
            self._try(blow)

    def start_worker(self, name: str) -> None:
        self.starts[name] += 1
        self.launch_worker(name)

    def launch_worker(self, name: str) -> None:
        """Start it, and do not wait for it."""
        raise NotImplementedError

    def is_ready(self, name: str) -> bool:
        """Whether a worker has come up since its last start; Celery writes a line then."""
        return self.stack.log(name).count(" ready.") >= self.starts[name]

    def deaths(self, run: Run, step: StepInfo) -> int:
        """How often a worker that held this visit died. Every lost lease of the visit counts, because a worker that
        gets no CPU time loses its lease too, and a worker may die before its visits were recorded."""
        held = sum((run.id, step.seq) == (run_id, seq) for _, run_id, seq, _ in self.blows.visits)
        return max(held, step.attempt - 1)

    def faults(self) -> str:
        """In words."""
        return f"{self.counts.total()} faults, one every {self.every_s:g} s {dict(self.counts)}"

    def end(self) -> None:
        self.stack.stop()
        self.redis.stop()


def is_over(run: Run) -> bool:
    try:
        return run.info().is_final
    except Exception:
        return False  # Redis is away


def report(chaos: Chaos, violations: Sequence[Wrong]) -> int:
    """Print the violations, and keep the evidence. Returns their number."""
    for wrong in violations[:50]:
        print(f"  {wrong.kind}: {wrong.text}", file=sys.stderr)
    if violations:
        print(f"  evidence: {keep_evidence(chaos, list(violations))}", file=sys.stderr)
    return len(violations)


def parser(description: str | None, *, kill_every: float = 2.0, replicas: bool = False) -> argparse.ArgumentParser:
    """The options that all campaigns have. `replicas` as in clusters.add_options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="default: drawn")
    made.add_argument(
        "--kill-every", type=float, default=kill_every, metavar="S",
        help=f"seconds between faults (default {kill_every:g})",
    )  # fmt: skip
    made.add_argument("--patient", action="store_true", help="strike only when all workers are ready")
    clusters.add_options(made, replicas=replicas)
    made.add_argument("--limit", type=float, default=900, metavar="S", help="when it is too late (default 900)")
    return made


def main(campaign: Callable[[argparse.Namespace, Path], int], options: argparse.Namespace) -> None:
    """Run a campaign, which returns how many promises were broken, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="slp-chaos-") as folder:
        sys.exit(min(1, campaign(options, Path(folder))))
