"""Run a batch while everything is killed: `python ops/chaos/batch.py --rows 2000`.

Each row is a run of five nodes: a script, two model calls that are answered after 200 ms, a question that a robot
answers, and another script. The batch runs once without faults, and then once more while one of two schedulers, two
script workers, two llm workers and a redis-server with an append-only file is killed (SIGKILL) and started again every
few seconds (kills.py), from its submission on. The scripted model server and the robot are not killed. Afterwards:

* `sleipnir batch results` has each row once, with the output that follows from it, and the counts of the batch agree;
* each row has one run, and no run is there that is of no row;
* each journal has each node once, and the state is the fold of it;
* a script ran again, and a model was called again, at most as often as a worker with the visit died;
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import retried, settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks, of_journal  # noqa: E402
from sleipnir.batches.records import BatchInfo, row_run_id  # noqa: E402
from sleipnir.client.client import Client  # noqa: E402
from sleipnir.errors import SleipnirError, StoreUnavailable  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.testing import ModelServer, Reply, Request  # noqa: E402
from tests.processes import FAST, wait_until, write_agent  # noqa: E402

ANSWER_S = 0.2
TOLD_EVERY_S = 10.0  # where there is no terminal
STEPS = ("take", "first", "second", "approve", "close")
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

    def launch_worker(self, name: str) -> None:
        queue, env = ("llm", self.model.env()) if name.startswith("models") else ("scripts", None)
        self.stack.start_worker(name, queue, concurrency=self.slots, env=env, ready=False)

    def by_kind(self) -> dict[str, int]:
        """Kills by what was killed."""
        kills_by_target = Counter({"redis": self.counts["kill_redis"], "schedulers": self.counts["kill_scheduler"]})
        for name, starts in self.starts.items():
            kills_by_target[f"{name.split('-')[0]} workers"] += starts - 1
        return dict(kills_by_target)


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
    effects, violations = folder / "effects.txt", list[Wrong]()
    scripts = {
        f"{step}_py": CODE.replace("EFFECTS", repr(str(effects))).replace("STEP", step).replace("RESULT", result)
        for step, result in (("take", TAKEN), ("close", CLOSED))
    }
    agent = write_agent(folder / "row", GRAPH, **scripts)
    leases = {} if options.fast else {name: getattr(Settings, name) for name in FAST}
    chaos, batches = Fleet(folder, options, **leases), dict[str, BatchInfo]()
    chaos.slots = options.slots
    try:
        with ModelServer(answer) as chaos.model, chaos.stack.client() as client:
            chaos.start()
            with Robot(client):
                batches["peace"] = run(client, agent, "peace", options, chaos)
                chaos.under_fire(lambda: batches.update(fire=run(client, agent, "fire", options, chaos)))
                if "fire" not in batches:
                    batches["fire"] = retried(client.open_batch("fire").info)
            violations = settled(lambda: list(wrongs(client, batches, effects, chaos, options.rows, folder)))
            facts = retried(lambda: measured(options, chaos, batches, effects, violations))
            print(json.dumps(facts) if options.json else in_words(facts))
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def run(client: Client, agent: Path, name: str, options: argparse.Namespace, chaos: Fleet) -> BatchInfo:
    """Submit the batch, and wait for its end. An interrupted call is repeated."""
    rows = [{"prompt": prompt_of(name, row), "id": row} for row in range(options.rows)]
    progress = Progress()

    def submitted() -> bool:
        try:
            client.batch(agent, rows, id=name, key="id", parallel=max(100, options.rows))
        except StoreUnavailable:
            return False  # the same again adds what it lacks
        return True

    def over() -> BatchInfo | None:
        try:
            info = client.open_batch(name).info()
        except StoreUnavailable:
            return None  # Redis is away
        text = f"{name}: {info.ended:,} of {info.total:,} rows over, {info.active:,} under way"
        progress.tell(f"{text}, {chaos.counts.total()} kills", last=info.is_over)
        return info if info.is_over else None

    wait_until(submitted, f"{name} is submitted", options.limit)
    ended = wait_until(over, f"{name} is over", options.limit, every_s=0.25)
    assert ended is not None
    return ended


def wrongs(
    client: Client, batches: Mapping[str, BatchInfo], effects: Path, chaos: Fleet, rows: int, folder: Path
) -> Iterator[Wrong]:
    done = Counter(effects.read_text().split())
    done.update({place: sum(turns.values()) for place, turns in chaos.model.counts().items()})
    for name, info in batches.items():
        if not info.is_over:
            yield Wrong("stuck", f"{name}: {info}")
            return
        if (info.total, info.completed, info.ended, info.waiting, info.active) != (rows, rows, rows, 0, 0):
            yield Wrong("lost", f"{name}: its counts say {info}")
        yield from of_results(name, chaos, rows, folder)
        progress = Progress()
        for row in range(rows):
            yield from of_run(client, name, row, done, chaos)
            progress.tell(f"{name}: {row + 1:,} of {rows:,} journals read", last=row + 1 == rows)
    expected = {row_run_id(name, row) for name in batches for row in range(rows)}
    for stranger in {info.id for info in client.store.runs.recent(4 * rows + 100)} ^ expected:
        yield Wrong("double", f"{stranger}: a run that is of no row, or a row without a run")
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    yield from left_of(client, batches, redis)
    redis.close()


def of_results(name: str, chaos: Fleet, rows: int, folder: Path) -> Iterator[Wrong]:
    """Checks the reported result of each row."""
    file = folder / f"{name}.jsonl"
    done = chaos.stack.sleipnir("batch", "results", name, "-o", str(file), "--overwrite")
    if done.returncode:
        yield Wrong("lost", f"{name}: batch results: {done.stderr}")
        return
    results = [json.loads(line) for line in file.read_text().splitlines()]
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
        place, most = f"{prompt_of(name, row)}.{step.node}", 1 + chaos.deaths(run_handle, step)
        times = 1 if step.node == "approve" else done[place]
        if not 1 <= times <= most:
            yield Wrong("effect", f"{run_handle.id}: {place} ran {times} times, at most {most}")


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
    options: argparse.Namespace, chaos: Fleet, batches: Mapping[str, BatchInfo], effects: Path, violations: list[Wrong]
) -> dict[str, Any]:
    took_s = {name: ((info.ended_ms or info.now_ms) - info.created_ms) / 1000 for name, info in batches.items()}
    ran = sum(1 for line in effects.read_text().split() if line.startswith("fire."))
    asked = sum(sum(turns.values()) for name, turns in chaos.model.counts().items() if str(name).startswith("fire."))
    return {
        "seed": options.seed,
        "rows": options.rows,
        "slots": options.slots,
        "kill_every_s": options.kill_every,
        "kills": chaos.by_kind(),
        "peace_s": round(took_s["peace"], 1),
        "fire_s": round(took_s["fire"], 1),
        "ratio": round(took_s["fire"] / took_s["peace"], 2),
        "scripts_repeated": ran - len(OF_SCRIPTS) * options.rows,
        "calls_repeated": asked - len(OF_MODELS) * options.rows,
        "held": len(chaos.blows.visits),
        "broken": dict(Counter(wrong.kind for wrong in violations)),
    }


def in_words(facts: Mapping[str, Any]) -> str:
    broken = Counter(facts["broken"])
    return (
        f"seed {facts['seed']}: {facts['rows']:,} rows of five nodes, {sum(facts['kills'].values())} kills, one every "
        f"{facts['kill_every_s']:g} s {facts['kills']}: {broken['lost']} lost, {broken['double']} doubled, "
        f"{broken['differs']} other results, {broken['state']} states that are not the fold of their journal, "
        f"{broken['effect']} repeated without a death, {broken['stuck']} stuck, {broken['leak']} keys left over; "
        f"killed workers held {facts['held']} visits; {facts['scripts_repeated']} scripts and "
        f"{facts['calls_repeated']} model calls were repeated; {facts['peace_s']:.1f} s without faults, "
        f"{facts['fire_s']:.1f} s under fire: {facts['ratio']:.2f}x"
    )


def main() -> None:
    parser = kills.parser(__doc__, kill_every=5.0)
    parser.add_argument("--rows", type=int, default=2000, help="of the batch (default 2000)")
    parser.add_argument("--slots", type=int, default=4, help="of each worker (default 4)")
    parser.add_argument("--fast", action="store_true", help="leases of 2 s, for a short campaign")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.rows < 1 or options.slots < 1:
        parser.error("--rows and --slots must be at least 1")
    kills.main(campaign, options)


if __name__ == "__main__":
    main()
