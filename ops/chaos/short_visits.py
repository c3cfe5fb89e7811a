"""Run many short visits while everything is killed: `python ops/chaos/short_visits.py --runs 1000 --seed 7`.

Chains of ten functions that take no time, but for one in a thousand that takes up to a second: so solo workers take
several visits at once (workers/sleipnir_workers/visits/group.py), and meet a long one now and then. Each function
leaves a mark. Two schedulers, three solo workers and a redis-server with an append-only file; every few moments one of
the six is killed (SIGKILL) and started again, or a worker is told to stop (SIGTERM). Afterwards:

* all runs completed, with all their visits, in order;
* a visit was repeated at most as often as a worker with it died;
* no message waits in a queue, and no lease is held.

Prints one line of figures with the seed; exits with 1 if a guarantee was violated, or it did not end in time.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import retried, settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks  # noqa: E402
from sleipnir.client.client import Client, Run  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from tests.processes import write_agent  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

NODES = 10
STOPS = 0.3
"""The share of the blows to workers that are SIGTERM."""
STOP_S = 60.0

CODE = """
import random
import time
from pathlib import Path

MARKS = Path(FILE)


def step(state):
    steps = int(state.get("steps", 0)) + 1
    with MARKS.open("a") as marks:
        marks.write(f"{state['initial_prompt']}.{steps}\\n")
    if random.random() < 0.001:
        time.sleep(random.random())
    return {"steps": steps}
"""


def graph() -> str:
    nodes = "\n".join(f"  n{i}: {{type: function, call: 'steps.py:step', next: n{i + 1}}}" for i in range(1, NODES + 1))
    return f"name: short\nstart: n1\nnodes:\n{nodes}\n  n{NODES + 1}: {{type: end, output: '{{{{steps}}}}'}}\n"


class Fleet(kills.Fleet):
    """The processes of this campaign."""

    workers = ("worker-1", "worker-2", "worker-3")

    def launch_worker(self, name: str) -> None:
        self.stack.start_worker(name, "functions", pool="solo", ready=False)

    def kill_worker(self) -> None:
        if self.chance.random() >= STOPS:
            super().kill_worker()
            return
        name = self.chance.choice(self.workers)
        self.counts["stop_worker"] += 1
        self.stack.signal(name, signal.SIGTERM)
        self.stack.processes[name].wait(STOP_S)
        self.start_worker(name)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """Runs the campaign. Returns the number of violated guarantees."""
    chaos, marks = Fleet(folder, options, agents_dir=folder / "agents"), folder / "marks"
    agent = write_agent(folder / "agents" / "short", graph(), steps_py=CODE.replace("FILE", repr(str(marks))))
    try:
        with chaos.stack.client() as client:
            chaos.start()
            began = time.monotonic()
            runs = [client.submit(agent, str(number)) for number in range(options.runs)]

            def wait() -> None:
                left = [*runs]

                def none_left() -> bool:
                    while left and kills.is_over(left[-1]):
                        left.pop()
                    return not left

                wait_until(none_left, "all runs are over", options.limit, every_s=0.2)

            chaos.under_fire(wait)
            took_s = time.monotonic() - began
            counts = Counter(marks.read_text().split())
            violations = settled(lambda: list(wrongs(client, runs, chaos, counts)))
            handed_back = retried(lambda: sum(events_of(run)["visit_handed_back"] for run in runs))
        repeated = sum(counts.values()) - len(counts)
        broken = dict(Counter(wrong.kind for wrong in violations))
        print(
            f"seed {options.seed}: {len(runs)} runs of {NODES} visits in {took_s:.0f} s, {chaos.faults()}: "
            f"{repeated} visits repeated, {handed_back} handed back, {len(violations)} broken promises {broken}"
        )
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def wrongs(client: Client, runs: Sequence[Run], chaos: Fleet, counts: Mapping[str, int]) -> Iterator[Wrong]:
    for number, run in enumerate(runs):
        steps = [step for step in run.history() if step.kind == "function"]
        if run.status != "completed" or run.output != str(NODES):
            yield Wrong("stuck", f"{run.id}: {run.status} {run.error}: {run.output!r}")
        if [step.node for step in steps] != [f"n{i}" for i in range(1, NODES + 1)]:
            yield Wrong("double", f"{run.id}: its visits are {[step.node for step in steps]}")
        for at, step in enumerate(steps, start=1):
            times = counts[f"{number}.{at}"]
            if not 1 <= times <= 1 + chaos.deaths(run, step):
                yield Wrong("effect", f"{run.id}: step {at} ran {times} times in {step.attempt} attempts")
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    redis.close()


def events_of(run: Run) -> Counter[str]:
    return Counter(event.type for event in run.events(follow=False))


def main() -> None:
    parser = kills.parser(__doc__, kill_every=0.5)
    parser.add_argument("--runs", type=int, default=1_000, help="(default 1,000)")
    kills.main(campaign, parser.parse_args())


if __name__ == "__main__":
    main()
