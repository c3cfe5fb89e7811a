#!/usr/bin/env python3
"""Up to where throughput grows with the nodes of a Redis Cluster, with schedulers and with workers: a simulation with
measured costs. No deployment of that size was run.

    python ops/scale_out.py [--bench .build/bench/latest.json] [--partitions 256] [--json FILE]

Runs are hashed to partitions, partitions are in slots, slots are on nodes, as in a real deployment, so some nodes have
more to do than others. A visit is published to the broker, waits for a worker, which waits for its node to claim it and
to deliver its result, and then waits for the round of its scheduler. A scheduler has one core: it takes what is in its
inboxes, plans it, and waits until all nodes have committed, so that the fullest node delays what is on others. A run
has ten visits that do nothing; when it ends, another one begins. There are more active runs than all cores can work on,
so that something is always full: the table says what.

Not in it: the network, other work on the nodes' machines (replicas, rewrites of files), and what nodes of graphs do
themselves, for which only the workers need more cores.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import json
import math
import random
import sys
import textwrap
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parents[1])]

from sleipnir.store.cluster import slot_of  # noqa: E402
from sleipnir.store.keys import Keys  # noqa: E402

SLOTS: Final = 16_384
VISITS_OF_RUN: Final = 10
PROCESSES_OF_CORE: Final = 1.5
"""Solo workers, which wait for a node a third of their time: docs/performance.md, Tuning."""
MOST_SCHEDULERS: Final = 16
MOST_NODES: Final = 32
PLANNED_FULL: Final = 2 / 3
"""Of a core, in what a load takes: the rest is for peaks, and for what a node takes over from another."""
WAITING_BYTES: Final = 3_800
"""Of Redis, for a waiting run with almost no state: ops/sizing.py."""
NODE_BYTES: Final = 64e9


@dataclass(frozen=True)
class Costs:
    """CPU in microseconds: of an empty visit, unless it is said otherwise. The defaults are medians of five rounds of
    `make bench ARGS='--only cluster'` on two cores."""

    worker: float = 222
    scheduler: float = 259
    node: float = 171
    """Of all nodes together; it is in the slot of the run."""
    broker: float = 9
    client: float = 52
    row: float = 73
    """Of the batch's node, for a run that is a row: its admission, and its end."""
    row_scheduler: float = 623
    """Of the scheduler of the batch, for such a run: to start it, and to record its end. With it are the looks of the
    one scheduler that admits the rows of all batches, a fifth of a core."""
    exchange: float = 17
    """Of a scheduler, for each node that a round trip has commands for (a pipeline of 24 commands, over one to six
    nodes)."""
    idle_partition: float = 178
    """Of its node, per second: what its scheduler looks after without visits."""
    idle_node: float = 3_500
    """Of a node, per second."""
    idle_scheduler: float = 80_000
    """Of all schedulers together, per second, with 256 partitions."""

    @classmethod
    def of_bench(cls, figures: Mapping[str, float]) -> Costs:
        """From the figures of the bench. What is idle is in the CPU of the load too: a visit costs that much less."""
        per_s = figures["cluster_visits_per_s"]
        return cls(
            worker=figures["cluster_workers_us"],
            scheduler=figures["cluster_scheduler_us"] - figures["cluster_idle_scheduler_us"] / per_s,
            node=figures["cluster_redis_us"] - figures["cluster_idle_redis_us"] / per_s,
            broker=figures["cluster_broker_us"],
            row=figures["cluster_row_us"],
            row_scheduler=figures["cluster_row_scheduler_us"],
            idle_partition=(figures["cluster_idle_redis_us"] - 3 * cls.idle_node) / 256,
            idle_scheduler=figures["cluster_idle_scheduler_us"],
        )


@dataclass(frozen=True)
class Size:
    """A deployment. `batches`: all runs are rows of so many batches at once; 0: none is one. `even`: slots were moved,
    so that all nodes have as many partitions; otherwise each has an equal part of the slots, as
    `redis-cli --cluster create` gives."""

    nodes: int
    schedulers: int
    worker_cores: int
    partitions: int = 256
    batches: int = 0
    even: bool = False


@dataclass(frozen=True)
class Outcome:
    """How full the cores are, in parts of one; of nodes and schedulers the fullest, of workers all of them."""

    size: Size
    visits_per_s: float
    node: float
    scheduler: float
    workers: float
    broker: float

    @property
    def full(self) -> str:
        use = {"a node": self.node, "a scheduler": self.scheduler, "workers": self.workers, "the broker": self.broker}
        return max(use, key=lambda name: use[name])


class Core:
    """Does one thing after the other. `idle_us`: what it does besides, per second."""

    def __init__(self, idle_us: float = 0.0) -> None:
        self._slower, self._free_us = 1 / (1 - idle_us / 1e6), 0.0
        self.busy_us = 0.0

    def work(self, now_us: float, cpu_us: float) -> float:
        """When it is done with this, which comes at `now_us`: never before what came earlier."""
        took_us = cpu_us * self._slower
        self._free_us = max(now_us, self._free_us) + took_us
        self.busy_us += took_us
        return self._free_us


class Workers:
    """The cores of their processes: the first that is free does what is next. `free` processes have no visit."""

    def __init__(self, cores: int) -> None:
        self._free_us = [0.0] * cores
        self.free = round(cores * PROCESSES_OF_CORE)
        self.busy_us = 0.0

    def work(self, now_us: float, cpu_us: float) -> float:
        done_us = max(now_us, self._free_us[0]) + cpu_us
        heapq.heapreplace(self._free_us, done_us)
        self.busy_us += cpu_us
        return done_us


def keys_of(size: Size) -> Keys:
    return Keys(known_partitions=size.partitions, of_cluster=True)


def nodes_of_partitions(size: Size) -> list[int]:
    """The node of each partition."""
    keys = keys_of(size)
    slots = [slot_of(keys.of_partition(partition).inbox) for partition in range(size.partitions)]
    if not size.even:
        return [slot * size.nodes // SLOTS for slot in slots]
    place = {slot: number for number, slot in enumerate(sorted(slots))}
    return [place[slot] * size.nodes // size.partitions for slot in slots]


class Deployment:
    """What happens, in the order of its time. An event: when, a number that keeps the order, what happens, to what."""

    def __init__(self, size: Size, costs: Costs, seed: int) -> None:
        self.size, self._costs, self._random = size, costs, random.Random(seed)
        self._keys, self._node_of = keys_of(size), nodes_of_partitions(size)
        of_node = Counter(self._node_of)
        self.nodes = [Core(costs.idle_node + costs.idle_partition * of_node[node]) for node in range(size.nodes)]
        idle_us = costs.idle_scheduler / 256 * size.partitions / size.schedulers
        self.schedulers = [Core(idle_us) for _ in range(size.schedulers)]
        self.workers, self.broker = Workers(size.worker_cores), Core()
        self._queue: deque[Visit] = deque()
        self._inboxes: list[list[Visit]] = [[] for _ in range(size.schedulers)]
        self._at_work = [False] * size.schedulers
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self.visits, self.now_us = 0, 0.0

    def start(self, runs: int) -> None:
        for _ in range(runs):
            self._publish(0.0, [self._new_run(self._random.randrange(VISITS_OF_RUN))])

    def run(self, visits: int) -> None:
        """Until so many visits were committed."""
        until = self.visits + visits
        while self.visits < until:
            self.now_us, _, kind, subject = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(subject)

    def _at(self, at_us: float, kind: str, subject: Any) -> None:
        heapq.heappush(self._events, (at_us, next(self._order), kind, subject))

    def _new_run(self, done: int = 0) -> Visit:
        return Visit(self._random.randrange(self.size.partitions), done)

    def _publish(self, at_us: float, visits: Sequence[Visit]) -> None:
        """One batch, as of a round."""
        self._at(self.broker.work(at_us, self._costs.broker / 2 * len(visits)), "published", visits)

    def _published(self, visits: Sequence[Visit]) -> None:
        self._queue += visits
        self._fetch()

    def _fetch(self) -> None:
        while self._queue and self.workers.free:
            self.workers.free -= 1
            self._at(self.broker.work(self.now_us, self._costs.broker / 2), "fetched", self._queue.popleft())

    def _fetched(self, visit: Visit) -> None:
        self._at(self.workers.work(self.now_us, self._costs.worker / 2), "claim", visit)

    def _claim(self, visit: Visit) -> None:
        self._at(self._node(visit).work(self.now_us, self._costs.node / 3), "claimed", visit)

    def _claimed(self, visit: Visit) -> None:
        self._at(self.workers.work(self.now_us, self._costs.worker / 2), "deliver", visit)

    def _deliver(self, visit: Visit) -> None:
        self._at(self._node(visit).work(self.now_us, self._costs.node / 3), "delivered", visit)

    def _delivered(self, visit: Visit) -> None:
        self.workers.free += 1
        self._fetch()
        scheduler = visit.partition % self.size.schedulers
        self._inboxes[scheduler].append(visit)
        if not self._at_work[scheduler]:
            self._round(scheduler)

    def _round(self, scheduler: int) -> None:
        """Read and plan what there is."""
        visits, self._inboxes[scheduler] = self._inboxes[scheduler], []
        self._at_work[scheduler] = bool(visits)
        if visits:
            touched = len({self._node_of[visit.partition] for visit in visits})
            cpu_us = self._costs.scheduler * len(visits) + 2 * self._costs.exchange * touched
            self._at(self.schedulers[scheduler].work(self.now_us, cpu_us), "commit", (scheduler, visits))

    def _commit(self, planned: tuple[int, list[Visit]]) -> None:
        """All nodes at once; the slowest ends it."""
        scheduler, visits = planned
        done_us = max(self._node(visit).work(self.now_us, self._costs.node / 3) for visit in visits)
        self._at(done_us, "committed", (scheduler, visits))

    def _committed(self, planned: tuple[int, list[Visit]]) -> None:
        scheduler, visits = planned
        self.visits += len(visits)
        following = [Visit(visit.partition, visit.done + 1) for visit in visits if visit.done + 1 < VISITS_OF_RUN]
        ended = len(visits) - len(following)
        if self.size.batches:
            for _ in range(ended):
                self._admit()
        else:
            following += [self._new_run() for _ in range(ended)]
        self._publish(self.now_us, following)
        self._round(scheduler)

    def _admit(self) -> None:
        """A run has ended: its batch notes it, and admits the next row, on the node that has the batch."""
        partition = self._keys.partition_of_batch(f"batch{self._random.randrange(self.size.batches)}")
        done_us = self.nodes[self._node_of[partition]].work(self.now_us, self._costs.row)
        self._at(done_us, "admitted", partition)

    def _admitted(self, partition: int) -> None:
        scheduler = self.schedulers[partition % self.size.schedulers]
        self._at(scheduler.work(self.now_us, self._costs.row_scheduler), "started", self._new_run())

    def _started(self, visit: Visit) -> None:
        self._publish(self.now_us, [visit])

    def _node(self, visit: Visit) -> Core:
        return self.nodes[self._node_of[visit.partition]]


@dataclass(frozen=True)
class Visit:
    """Of a run in a partition, which has `done` others behind it."""

    partition: int
    done: int


def simulate(size: Size, costs: Costs, *, active: int = 100, seed: int = 1) -> Outcome:
    """With so many active runs per node, scheduler and core of a worker."""
    deployment = Deployment(size, costs, seed)
    runs = active * (size.nodes + size.schedulers + size.worker_cores) // 3
    deployment.start(runs)
    deployment.run(5 * runs)  # until they have gathered where they wait for longest
    cores: list[Core | Workers] = [*deployment.nodes, *deployment.schedulers, deployment.workers, deployment.broker]
    for each in cores:
        each.busy_us = 0.0
    began_us, before = deployment.now_us, deployment.visits
    deployment.run(5 * runs)
    took_us = deployment.now_us - began_us
    return Outcome(
        size,
        (deployment.visits - before) / took_us * 1e6,
        node=max(core.busy_us for core in deployment.nodes) / took_us,
        scheduler=max(core.busy_us for core in deployment.schedulers) / took_us,
        workers=deployment.workers.busy_us / took_us / size.worker_cores,
        broker=deployment.broker.busy_us / took_us,
    )


def growing(costs: Costs, partitions: int, batches: int = 0) -> list[Size]:
    """Nodes, with as many schedulers and workers as they can use."""
    per_node = 1e6 / costs.node
    return [
        Size(
            nodes,
            min(MOST_SCHEDULERS, math.ceil(1.5 * nodes * per_node * costs.scheduler / 1e6)),
            math.ceil(2 * nodes * per_node * costs.worker / 1e6),
            partitions,
            batches,
        )
        for nodes in (1, 2, 3, 4, 6, 8, 12, 16, 24, MOST_NODES)
    ]


@dataclass(frozen=True)
class Needed:
    """What a load takes, with every core PLANNED_FULL at most. Each of the `deployments` has this size."""

    deployments: int
    size: Size
    client_cores: float
    memory_bytes: float
    """Of all nodes, with the room that a fork needs."""
    nodes_by_memory: int


def needed(costs: Costs, partitions: int, visits_per_s: float, waiting: int, *, active: int = 100) -> Needed:
    most = Size(MOST_NODES, MOST_SCHEDULERS, math.ceil(4e6 / costs.broker * costs.worker / 1e6), partitions, even=True)
    # What the largest carries, it carries with far fewer nodes too, if it is a tenth less.
    deployments = math.ceil(visits_per_s / PLANNED_FULL / (0.9 * simulate(most, costs, active=active).visits_per_s))
    wanted = visits_per_s / PLANNED_FULL / deployments

    def fewest(limit: int, with_number: Callable[[int], Size]) -> Size:
        def carries(number: int) -> bool:
            return simulate(with_number(number), costs, active=active).visits_per_s >= wanted

        return with_number(1 + bisect.bisect_left(range(1, limit), True, key=carries))

    size = fewest(MOST_NODES, lambda number: replace(most, nodes=number))
    size = fewest(MOST_SCHEDULERS, lambda number, size=size: replace(size, schedulers=number))  # type: ignore[misc]
    size = fewest(most.worker_cores, lambda number, size=size: replace(size, worker_cores=number))  # type: ignore[misc]
    memory = 2 * waiting * WAITING_BYTES
    return Needed(deployments, size, visits_per_s * costs.client / 1e6, memory, math.ceil(memory / NODE_BYTES))


HEAD: Final = "nodes  schedulers  worker cores  visits/s   node  scheduler  workers  broker  full"


def row(outcome: Outcome) -> str:
    size, used = outcome.size, (outcome.node, outcome.scheduler, outcome.workers, outcome.broker)
    node, scheduler, workers, broker = (f"{min(1.0, part):.0%}" for part in used)
    return (
        f"{size.nodes:5}  {size.schedulers:10}  {size.worker_cores:12}  {outcome.visits_per_s:8,.0f}  {node:>5}"
        f"  {scheduler:>9}  {workers:>7}  {broker:>6}  {outcome.full}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--bench", type=Path, help="JSON of `make bench` with the subject cluster: the costs")
    parser.add_argument("--partitions", type=int, default=256)
    parser.add_argument("--visits", type=float, default=100_000, help="per second, of which to say what they take")
    parser.add_argument("--waiting", type=int, default=100_000_000, help="runs, of which to say what they take")
    parser.add_argument("--json", type=Path, help="write everything here too")
    for name, default in asdict(Costs()).items():
        parser.add_argument(f"--{name.replace('_', '-')}-us", type=float, help=f"default {default:g}")
    args = parser.parse_args()
    costs = Costs() if args.bench is None else Costs.of_bench(json.loads(args.bench.read_text())["figures"])
    given = {name: getattr(args, f"{name}_us") for name in asdict(costs)}
    costs = replace(costs, **{name: us for name, us in given.items() if us is not None})
    said = ", ".join(f"{name} {us:g}" for name, us in asdict(costs).items())
    print(textwrap.fill(f"CPU in us: {said}", 100))
    grown = growing(costs, args.partitions)
    enough = replace(grown[-1], even=True)
    tables = {
        "Nodes": grown,
        "Nodes, with the same number of partitions on each": [replace(size, even=True) for size in grown],
        "Nodes, if all runs are rows of one batch": growing(costs, args.partitions, batches=1),
        "Nodes, if all runs are rows of 100 batches": growing(costs, args.partitions, batches=100),
        "Schedulers": [replace(enough, schedulers=number) for number in (1, 2, 4, 8, 12, 16)],
        "Cores of workers": [replace(enough, worker_cores=number) for number in (2, 4, 8, 16, 32, 64)],
    }
    outcomes: dict[str, list[Outcome]] = {}
    for title, sizes in tables.items():
        print(f"\n{title}\n{HEAD}")
        outcomes[title] = []
        for size in sizes:
            outcomes[title].append(simulate(size, costs))
            print(row(outcomes[title][-1]), flush=True)
    load = needed(costs, args.partitions, args.visits, args.waiting)
    size = load.size
    print(
        f"\n{args.visits:,.0f} visits/s, with each core at most two thirds full: {load.deployments} deployments, each "
        f"with {size.nodes} nodes, {size.schedulers} schedulers, {size.worker_cores} cores of workers and a broker; "
        f"{load.client_cores:.0f} cores of clients\n{args.waiting:,} waiting runs with almost no state: "
        f"{load.memory_bytes / 1e9:,.0f} GB of memory, half of it for a fork; {load.nodes_by_memory} nodes of 64 GB"
    )
    if args.json is not None:
        tables_json = {title: [asdict(each) | {"full": each.full} for each in rows] for title, rows in outcomes.items()}
        report = {"costs": asdict(costs), "tables": tables_json, "needed": asdict(load)}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
