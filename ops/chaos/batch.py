"""Run a batch, or several at once, while everything is killed: `python ops/chaos/batch.py --rows 2000`.

Each row is a run of five nodes: a script, two model calls that are answered after 200 ms, a question that a robot
answers, and another script. The batches run once without faults, and then once more while one of two schedulers, two
script workers, two llm workers and a redis-server with an append-only file is killed (SIGKILL) and started again every
few seconds (kills.py), from their submission on. The scripted model server and the robot are not killed. With `--nodes`
the state is on a Redis Cluster: each node begins with as many batches, nodes are killed one by one, and slots move
between them, some of them with batches. With `--replicas 1` nodes also fail over, and lose what their replicas have
not received (failovers.py). Submissions wait for replicas then (`ack_wait_replicas`), and what a node has lost is told
again by the others: so each row still has its result, and only runs that have lost writes may execute a node again.
Afterwards:

* `sleipnir batch results` has each row once, with the output that follows from it, and the counts of the batches agree;
* each row has one run, and no run is there that is of no row;
* each journal has each node once, and the state is the fold of it;
* a script ran again, and a model was called again, at most as often as a worker with the visit died, or a fail-over
  lost writes of its run;
* no message waits in a queue, no lease is held, and only the keys of an ended batch are left.

Prints one line of figures with the seed, and the ratio of the durations; exits with 1 if a guarantee was violated, or a
batch did not end in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import MOVED_AT_ONCE, retried, settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks, of_journal  # noqa: E402
from sleipnir.batches.records import BatchInfo, row_run_id  # noqa: E402
from sleipnir.client.client import Client  # noqa: E402
from sleipnir.errors import SleipnirError, StoreUnavailable  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.store.keys import Keys  # noqa: E402
from sleipnir.testing import ModelServer, Reply, Request  # noqa: E402
from tests.processes import FAST, RedisServer, wait_until, write_agent  # noqa: E402
from tests.redis_cluster import ServerCluster  # noqa: E402

ANSWER_S = 0.2
TOLD_EVERY_S = 10.0  # where there is no terminal
COUNTS = ("ended", "total", "active")
STEPS = ("take", "first", "second", "approve", "close")
BATCHES_PER_NODE = 2
OF_SCRIPTS, OF_MODELS = ("take", "close"), ("first", "second")

GRAPH = """
name: row
model: openai:gpt-test
start: take
nodes:
  take: {type: script, script: take.py, next: first}
  first: {type: llm, prompt: "[conversation {{initial_prompt}}.first] {{taken}}", next: second,
          state_updates: {one: "{{output}}"}}
  second: {type: llm, prompt: "[conversation {{initial_prompt}}.second] {{one}}", next: approve,
           state_updates: {two: "{{output}}"}}
  approve: {type: approval, question: "{{two}}?", options: [yes, no], routes: {yes: close, no: e}, on_other: e}
  close: {type: script, script: close.py, next: e}
  e: {type: end, output: "{{closed}}"}
"""
CODE = """
import json, os

file = os.environ.get("GRAPH_STATE_FILE")
state = json.load(open(file)) if file else json.loads(os.environ["GRAPH_STATE"])
with open(EFFECTS, "a") as effects:
    effects.write(state["initial_prompt"] + ".STEP\\n")
print(json.dumps(RESULT))
"""
TAKEN = '{"taken": state["initial_prompt"].upper()}'
CLOSED = '{"closed": " + ".join([state["taken"], state["one"], state["two"]])}'


def prompt_of(batch: str, row: int) -> str:
    return f"{batch}.{row}"


def answer_text(conversation: str) -> str:
    """The model's answer; `conversation` names the row and the node."""
    return f"answer to {conversation}"


def output_of(batch: str, row: int) -> str:
    """The expected result of the row."""
    prompt = prompt_of(batch, row)
    return " + ".join([prompt.upper(), *(answer_text(f"{prompt}.{node}") for node in OF_MODELS)])


def answer(request: Request) -> Reply:
    return Reply(answer_text(str(request.conversation)), delay_s=ANSWER_S)


class Fleet(kills.Fleet):
    """The processes of this campaign."""

    workers = ("scripts-1", "scripts-2", "models-1", "models-2")
    model: ModelServer
    slots: int
    batches: Sequence[str] = ()
    """Those that run."""
    batches_moved = 0
    """How often the slot of one of them was moved."""

    def launch_worker(self, name: str) -> None:
        queue, env = ("llm", self.model.env()) if name.startswith("models") else ("scripts", None)
        self.stack.start_worker(name, queue, concurrency=self.slots, env=env, ready=False)

    def blows_to_cluster(self) -> Sequence[Callable[[], None]]:
        """Slots move twice as often as in other campaigns, because few have batches."""
        blows = super().blows_to_cluster()
        return [*blows, self.move_slots] if blows else blows

    def partitions_to_move(self) -> Sequence[int]:
        """Half of them have batches, if enough have."""
        with_batches = sorted({self.stack.keys.partition_of_batch(batch) for batch in self.batches})
        chosen = self.chance.sample(with_batches, min(len(with_batches), MOVED_AT_ONCE // 2))
        self.batches_moved += len(chosen)
        return list(dict.fromkeys([*chosen, *super().partitions_to_move()]))[:MOVED_AT_ONCE]

    def by_kind(self) -> dict[str, int]:
        """Faults by what they struck."""
        faults = Counter({"redis": self.counts["kill_redis"], "schedulers": self.counts["kill_scheduler"]})
        for name, starts in self.starts.items():
            faults[f"{name.split('-')[0]} workers"] += starts - 1
        if isinstance(self.redis, ServerCluster):
            faults["slots"] += self.counts["move_slots"]
            faults["fail-overs"] += len(self.losses.all)
        return dict(faults)


class Robot:
    """Answers yes to every question, until it is stopped."""

    def __init__(self, client: Client) -> None:
        self._client, self._stop = client, threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            try:
                for gate in self._client.gates():
                    self._tried(lambda gate=gate: self._client.store.runs.answer(gate.run, gate.seq, "yes"))  # type: ignore[misc]
            except SleipnirError:
                pass  # Redis is away

    def _tried(self, call: Callable[[], None]) -> None:
        try:
            with self._client.store.errors():
                call()
        except SleipnirError:
            pass  # Redis is away, or it was answered although the reply was lost

    def __enter__(self) -> Robot:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Progress:
    """Lines on stderr of how far something is: one that changes on a terminal, else a new one now and then."""

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()

    def tell(self, text: str, *, last: bool) -> None:
        now_s, terminal = time.monotonic(), sys.stderr.isatty()
        if terminal or last or now_s - self._told_s > TOLD_EVERY_S:
            self._told_s = now_s
            begin, end = ("\r\033[K" if terminal else "", "\n" if last or not terminal else "")
            print(f"{begin}  {text}, {now_s - self._began_s:.0f} s", end=end, file=sys.stderr, flush=True)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """Runs the campaign. Returns the number of violated guarantees."""
    effects = folder / "effects.txt"
    scripts = {
        f"{step}_py": CODE.replace("EFFECTS", repr(str(effects))).replace("STEP", step).replace("RESULT", result)
        for step, result in (("take", TAKEN), ("close", CLOSED))
    }
    agent = write_agent(folder / "row", GRAPH, **scripts)
    leases = {} if options.fast else {name: getattr(Settings, name) for name in FAST}
    settings = {"ack_wait_replicas": 1} if options.replicas else {}
    chaos, rows, batches = Fleet(folder, options, **leases, **settings), dict[str, int](), dict[str, BatchInfo]()
    chaos.slots = options.slots
    try:
        with ModelServer(answer) as chaos.model, chaos.stack.client() as client:
            chaos.start()
            with Robot(client):
                rows = peace = rows_of("peace", options, chaos)
                batches = run(client, agent, peace, options, chaos)
                fire = rows_of("fire", options, chaos)
                rows = peace | fire
                chaos.batches = list(fire)
                chaos.under_fire(lambda: batches.update(run(client, agent, fire, options, chaos)))
                for name in fire.keys() - batches.keys():
                    batches[name] = retried(client.open_batch(name).info)
                chaos.losses.wait_for_runs(client)  # a run whose end was lost ends again, though its batch is over
            violations = settled(lambda: list(wrongs(client, batches, effects, chaos, rows, folder)))
            facts = retried(lambda: measured(options, chaos, batches, effects, rows, violations))
            print(json.dumps(facts) if options.json else in_words(facts))
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def rows_of(phase: str, options: argparse.Namespace, chaos: Fleet) -> dict[str, int]:
    """How many rows each batch of a phase has, by its name."""
    rows, batches = divmod(options.rows, options.batches)
    names = names_of(phase, options.batches, chaos.redis, chaos.stack.keys)
    return {name: rows + (number < batches) for number, name in enumerate(names)}


def names_of(phase: str, batches: int, redis: RedisServer | ServerCluster, keys: Keys) -> list[str]:
    """The names of so many batches: each node of a cluster has as many of them."""
    names = (f"{phase}-{number}" for number in count(1))
    if not isinstance(redis, ServerCluster):
        return list(islice(names, batches))
    chosen, most = list[str](), -(-batches // len(redis.primaries()))
    on_node = Counter[int]()
    while len(chosen) < batches:
        name = next(names)
        node = redis.primary_of(keys.of_batch(name).batch).port
        if on_node[node] < most:
            on_node[node] += 1
            chosen.append(name)
    return chosen


def run(
    client: Client, agent: Path, rows: Mapping[str, int], options: argparse.Namespace, chaos: Fleet
) -> dict[str, BatchInfo]:
    """Submit batches, and wait for their ends. An interrupted call is repeated."""
    phase, progress = next(iter(rows)).partition("-")[0], Progress()

    def submitted(name: str) -> bool:
        its_rows = [{"prompt": prompt_of(name, row), "id": row} for row in range(rows[name])]
        try:
            client.batch(agent, its_rows, id=name, key="id", parallel=max(100, rows[name]))
        except StoreUnavailable:
            return False  # the same again adds what it lacks
        return True

    def over() -> dict[str, BatchInfo] | None:
        try:
            infos = {name: client.open_batch(name).info() for name in rows}
        except StoreUnavailable:
            return None  # Redis is away
        ended, total, active = (sum(getattr(info, each) for info in infos.values()) for each in COUNTS)
        are_over = all(info.is_over for info in infos.values())
        text = f"{phase}: {ended:,} of {total:,} rows over, {active:,} under way"
        progress.tell(f"{text}, {chaos.counts.total()} faults", last=are_over)
        return infos if are_over else None

    for name in rows:
        wait_until(lambda name=name: submitted(name), f"{name} is submitted", options.limit)  # type: ignore[misc]
    ended = wait_until(over, f"the batches {', '.join(rows)} are over", options.limit, every_s=0.25)
    assert ended is not None
    return ended


def wrongs(
    client: Client,
    batches: Mapping[str, BatchInfo],
    effects: Path,
    chaos: Fleet,
    rows_of: Mapping[str, int],
    folder: Path,
) -> Iterator[Wrong]:
    done = Counter(effects.read_text().split())
    done.update({place: sum(turns.values()) for place, turns in chaos.model.counts().items()})
    for name, info in batches.items():
        if not info.is_over:
            yield Wrong("stuck", f"{name}: {info}")
            return
        rows = rows_of[name]
        yield from of_counts(name, info, rows)
        yield from of_results(name, chaos, rows, folder)
        progress = Progress()
        for row in range(rows):
            yield from of_run(client, name, row, done, chaos)
            progress.tell(f"{name}: {row + 1:,} of {rows:,} journals read", last=row + 1 == rows)
    yield from of_runs([info.id for info in client.store.runs.recent(2 * sum(rows_of.values()) + 100)], rows_of)
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    yield from left_of(client, batches, redis)
    redis.close()


def of_counts(name: str, info: BatchInfo, rows: int) -> Iterator[Wrong]:
    if (info.total, info.completed, info.ended, info.waiting, info.active) != (rows, rows, rows, 0, 0):
        yield Wrong("lost", f"{name}: its counts say {info}")


def of_runs(run_ids: Collection[str], rows_of: Mapping[str, int]) -> Iterator[Wrong]:
    """Checks that these runs are those of the rows."""
    expected = {row_run_id(*row) for row in all_rows(rows_of)}
    for stranger in {*run_ids} - expected:
        yield Wrong("double", f"{stranger}: a run that is of no row")
    for missing in expected - {*run_ids}:
        yield Wrong("lost", f"{missing}: a row without a run")


def of_results(name: str, chaos: Fleet, rows: int, folder: Path) -> Iterator[Wrong]:
    """Reads the reported results."""
    file = folder / f"{name}.jsonl"
    done = chaos.stack.sleipnir("batch", "results", name, "-o", str(file), "--overwrite")
    if done.returncode:
        yield Wrong("lost", f"{name}: batch results: {done.stderr}")
        return
    yield from of_lines(name, [json.loads(line) for line in file.read_text().splitlines()], rows)


def of_lines(name: str, results: Sequence[Mapping[str, Any]], rows: int) -> Iterator[Wrong]:
    """Checks the result of each row."""
    times = Counter(result["key"] for result in results)
    for row in range(rows):
        if times[str(row)] != 1:
            yield Wrong("double" if times[str(row)] else "lost", f"{name}.{row}: has {times[str(row)]} results")
    if len(results) != rows:
        yield Wrong("double", f"{name}: {len(results)} results of {rows} rows")
    for result in results:
        row = int(result["key"])
        outcome = (result["status"], result["output"], result["row"], result["run"])
        if outcome != ("completed", output_of(name, row), row + 1, row_run_id(name, row)):
            yield Wrong("differs", f"{result['run']}: {name}.{row} has ended so: {result}")


def of_run(client: Client, name: str, row: int, done: Counter[str], chaos: Fleet) -> Iterator[Wrong]:
    """Its journal, and how often each of its nodes really ran."""
    run_handle = client.run(row_run_id(name, row))
    steps = run_handle.history()
    yield from of_journal(client, run_handle, steps)
    of_nodes = [step for step in steps if step.node in STEPS]
    if tuple(step.node for step in of_nodes) != STEPS:
        yield Wrong("double", f"{run_handle.id}: {name}.{row}: in the journal are {[step.node for step in of_nodes]}")
    for step in of_nodes:
        if step.node != "approve":
            most = 1 + chaos.deaths(run_handle, step) + chaos.losses.by_run[run_handle.id]
            yield from of_executions(run_handle.id, f"{prompt_of(name, row)}.{step.node}", done, most)


def of_executions(run_id: str, place: str, done: Counter[str], most: int) -> Iterator[Wrong]:
    if not 1 <= done[place] <= most:
        yield Wrong("effect", f"{run_id}: {place} ran {done[place]} times, at most {most}")


def left_of(client: Client, batches: Mapping[str, BatchInfo], redis: Any) -> Iterator[Wrong]:
    """Keys and messages that ended batches should not leave."""
    for queue, length in client.health().queues.items():
        if length:
            yield Wrong("leak", f"queue {queue}: {length} messages left")
    for name in batches:
        keys = client.store.keys.of_batch(name)
        part = client.store.keys.of_partition(client.store.keys.partition_of_batch(name))
        if redis.sismember(part.open_batches, name):
            yield Wrong("leak", f"a batch that is open: {name}")
        for key in (keys.rows, keys.failures):
            if redis.exists(key):
                yield Wrong("leak", f"{key}: left over")
        for key in (keys.batch, keys.numbers, keys.names, keys.states, keys.ends):
            if redis.pttl(key) <= 0:
                yield Wrong("leak", f"{key}: would never expire, or is gone")


def measured(
    options: argparse.Namespace,
    chaos: Fleet,
    batches: Mapping[str, BatchInfo],
    effects: Path,
    rows_of: Mapping[str, int],
    violations: list[Wrong],
) -> dict[str, Any]:
    took_s = {phase: duration_s(phase, batches) for phase in ("peace", "fire")}
    ran = sum(1 for line in effects.read_text().split() if line.startswith("fire-"))
    asked = sum(sum(turns.values()) for name, turns in chaos.model.counts().items() if str(name).startswith("fire-"))
    return {
        "seed": options.seed,
        "rows": options.rows,
        "batches": options.batches,
        "nodes": options.nodes,
        "slots": options.slots,
        "fault_every_s": options.kill_every,
        "faults": chaos.by_kind(),
        "batches_moved": chaos.batches_moved,
        "peace_s": round(took_s["peace"], 1),
        "fire_s": round(took_s["fire"], 1),
        "ratio": round(took_s["fire"] / took_s["peace"], 2),
        "scripts_repeated": ran - len(OF_SCRIPTS) * options.rows,
        "calls_repeated": asked - len(OF_MODELS) * options.rows,
        "held": len(chaos.blows.visits),
        "lost_by_redis": {
            "fail_overs": len(chaos.losses.all),
            "runs": len(chaos.losses.by_run.keys() & {row_run_id(*row) for row in all_rows(rows_of)}),
            "keys_of_batches": sum(":batch:" in key for loss in chaos.losses.all for key in loss.keys),
        },
        "broken": dict(Counter(wrong.kind for wrong in violations)),
    }


def all_rows(rows_of: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The batch and the number of each row."""
    return ((name, row) for name, rows in rows_of.items() for row in range(rows))


def duration_s(phase: str, batches: Mapping[str, BatchInfo]) -> float:
    """From the beginning of the first batch to the end of the last one."""
    infos = [info for name, info in batches.items() if name.startswith(f"{phase}-")]
    return (max(info.ended_ms or info.now_ms for info in infos) - min(info.created_ms for info in infos)) / 1000


def in_words(facts: Mapping[str, Any]) -> str:
    broken = Counter(facts["broken"])
    moved = f" on {facts['nodes']} nodes, whose slots moved {facts['batches_moved']} times"
    where = moved if facts["nodes"] else ""
    lost = facts["lost_by_redis"]
    losses = f"fail-overs lost writes of {lost['runs']} runs and to {lost['keys_of_batches']} keys of batches; "
    return (
        f"seed {facts['seed']}: {facts['rows']:,} rows of five nodes in {facts['batches']} batches{where}, "
        f"{sum(facts['faults'].values())} faults, one every {facts['fault_every_s']:g} s {facts['faults']}: "
        f"{broken['lost']} lost, {broken['double']} doubled, "
        f"{broken['differs']} other results, {broken['state']} states that are not the fold of their journal, "
        f"{broken['effect']} repeated without a death, {broken['stuck']} stuck, {broken['leak']} keys left over; "
        f"killed workers held {facts['held']} visits; "
        f"{losses if lost['fail_overs'] else ''}{facts['scripts_repeated']} scripts and "
        f"{facts['calls_repeated']} model calls were repeated; {facts['peace_s']:.1f} s without faults, "
        f"{facts['fire_s']:.1f} s under fire: {facts['ratio']:.2f}x"
    )


def main() -> None:
    parser = kills.parser(__doc__, kill_every=5.0, replicas=True)
    parser.add_argument("--rows", type=int, default=2000, help="of all batches (default 2000)")
    parser.add_argument(
        "--batches", type=int, metavar="N", help=f"at once (default 1, on a cluster {BATCHES_PER_NODE} for each node)"
    )
    parser.add_argument("--slots", type=int, default=4, help="of each worker (default 4)")
    parser.add_argument("--fast", action="store_true", help="leases of 2 s, for a short campaign")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    options.batches = options.batches or BATCHES_PER_NODE * options.nodes or 1
    if not 1 <= options.batches <= options.rows or options.slots < 1:
        parser.error("--slots must be at least 1, and --rows at least --batches")
    kills.main(campaign, options)


if __name__ == "__main__":
    main()
