"""What emitting costs a node: how much longer it takes to emit 10,000 times in a second of work. For a script, the work
includes making its lines.

The speed of a machine's cores changes by itself, so the pairs of work with and without are short and many, and every
second pair is measured the other way round. A pause keeps the sending of what was emitted out of the work without. How
much work there is per event does not matter: what counts is the time that one event adds."""

from __future__ import annotations

import statistics
from pathlib import Path

from ops.bench.engine import finish, stack, write_agent
from ops.bench.figures import BenchFailed, Values

EVENTS = 4_000
WORK_S = 100e-6
"""Of computing per event: together they take 0.4 s."""
PAIRS = 9
"""Of each repeat."""
PER_S = 10_000

WORK = f"""\
import time


def computed(rounds):
    return sum(number * number for number in range(rounds))


def rounds_of():
    best = min(timed(1000) for _ in range(200))
    return int(1000 * {WORK_S} / best)


def timed(rounds):
    begin = time.perf_counter()
    computed(rounds)
    return time.perf_counter() - begin


def work(rounds, emit):
    begin = time.perf_counter()
    for number in range({EVENTS}):
        computed(rounds)
        emit(number)
    return time.perf_counter() - begin


def pairs_of(repeats, quiet, emitting):
    rounds = rounds_of()
    pairs = []
    for number in range({PAIRS} * repeats):
        if number % 2:
            emits_s = work(rounds, emitting)
            time.sleep(0.2)
            pairs.append([work(rounds, quiet), emits_s])
        else:
            pairs.append([work(rounds, quiet), work(rounds, emitting)])
            time.sleep(0.2)
    return pairs
"""
FUNCTIONS = (
    WORK
    + """

def measure(state):
    from sleipnir import emit

    def emitting(number):
        emit("measured", {"number": number, "text": "x" * 30})

    return {"pairs": pairs_of(state["repeats"], lambda number: None, emitting)}
"""
)
SCRIPT = (
    WORK
    + """
import json, os

events = open(int(os.environ["GRAPH_EVENTS_FD"]), "w", buffering=1)
nowhere = open(os.devnull, "w")


def line(number):
    return json.dumps({"type": "measured", "payload": {"number": number, "text": "x" * 30}}) + "\\n"


repeats = json.loads(os.environ["GRAPH_STATE"])["repeats"]
pairs = pairs_of(repeats, lambda number: nowhere.write(line(number)), lambda number: events.write(line(number)))
print(json.dumps({"pairs": pairs}))
"""
)


def measure(repeats: int) -> Values:
    """The ratio for functions and for scripts, each from the median of pairs."""
    with stack(queue="functions,scripts", workers=1) as engine:
        found = {}
        for name, node in {
            "function": "{type: function, call: 'work.py:measure', timeout: 600, next: done}",
            "script": "{type: script, script: work.py, timeout: 600, next: done}",
        }.items():
            agent = agent_of(engine.home / name, node, FUNCTIONS if name == "function" else SCRIPT)
            run = engine.client.submit(agent, state={"repeats": repeats})
            finish([run], engine.client)
            if run.status != "completed":
                raise BenchFailed(f"the node that emits failed: {run.info().error}")
            pairs = run.state()["pairs"]
            added_s = statistics.median((emitting - quiet) / EVENTS for quiet, emitting in pairs)
            found[f"emit_{name}_ratio"] = 1 + PER_S * added_s
            found[f"emit_{name}_per_s"] = statistics.median(EVENTS / emitting for _, emitting in pairs)
    return found


def agent_of(folder: Path, node: str, code: str) -> Path:
    graph = f"name: emits\nstart: work\nnodes:\n  work: {node}\n  done: {{type: end}}\n"
    return write_agent(folder, graph, "work.py", code)
