"""What emitting costs a node: the time of a node that emits 10,000 times a second, against the same work without. For a
script, the work includes making its lines."""

from __future__ import annotations

import statistics
from pathlib import Path

from ops.bench.engine import finish, stack, write_agent
from ops.bench.figures import BenchFailed, Values

EVENTS = 30_000
WORK_S = 100e-6
"""Of computing per event: together they take 3 s."""

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
"""
FUNCTIONS = (
    WORK
    + """

def measure(state):
    from sleipnir import emit

    rounds = rounds_of()
    pairs = []
    for _ in range(state["repeats"]):
        quiet = work(rounds, lambda number: None)
        pairs.append([quiet, work(rounds, lambda number: emit("measured", {"number": number, "text": "x" * 30}))])
    return {"pairs": pairs}
"""
)
SCRIPT = (
    WORK
    + """
import json, os

events = open(int(os.environ["GRAPH_EVENTS_FD"]), "w", buffering=1)
nowhere = open(os.devnull, "w")
rounds = rounds_of()


def line(number):
    return json.dumps({"type": "measured", "payload": {"number": number, "text": "x" * 30}}) + "\\n"


repeats = json.loads(os.environ["GRAPH_STATE"])["repeats"]
pairs = []
for _ in range(repeats):
    quiet = work(rounds, lambda number: nowhere.write(line(number)))
    pairs.append([quiet, work(rounds, lambda number: events.write(line(number)))])
print(json.dumps({"pairs": pairs}))
"""
)


def measure(repeats: int) -> Values:
    """The ratio for functions and for scripts, each the median of pairs that are measured next to each other."""
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
            found[f"emit_{name}_ratio"] = statistics.median(emitting / quiet for quiet, emitting in pairs)
            found[f"emit_{name}_per_s"] = statistics.median(EVENTS / emitting for _, emitting in pairs)
    return found


def agent_of(folder: Path, node: str, code: str) -> Path:
    graph = f"name: emits\nstart: work\nnodes:\n  work: {node}\n  done: {{type: end}}\n"
    return write_agent(folder, graph, "work.py", code)
