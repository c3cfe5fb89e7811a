"""What must not grow: the cost of a visit with the size of the state and with the length of the run, and the memory of
a run that waits. All end to end, on real processes; each figure is a ratio or a size, not a speed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from ops.bench.engine import Stack, finish, stack, write_agent
from ops.bench.figures import BenchFailed, Values
from ops.bench.model_server import model_server
from sleipnir.client.client import Client, StepInfo
from sleipnir.store.connect import connect
from tests.waiting import wait_until

READERS = 10
FILLINGS = {"small": "{}", "value": "{'big': 'x' * 10_000_000}", "keys": "{f'k{i}': 'x' * 3_300 for i in range(3_000)}"}
"""What a run's state holds besides the 1 kB that is read: nothing, 10 MB in one value, or 10 MB in 3,000 keys."""

EARLY, LATE = range(5, 55, 5), range(975, 1025, 5)  # journal steps around the 10th and the 1,000th, in blocks of five


def large_state(repeats: int) -> Values:
    """A visit that reads one key of 1 kB, in runs whose whole state is that and in runs with 10 MB beside it.

    The node is an llm node, as it is the kind that names its keys (scripts and functions get the whole state); the
    model is the tests' scripted server, so the time of a visit includes a call over loopback. The large state is
    written by a first visit, and a gate holds the run until Redis has written it to disk.
    """
    with model_server() as server, llm_stack(server.url) as engine:
        agents = {name: reading_agent(engine.home, name, filling) for name, filling in FILLINGS.items()}
        for agent in agents.values():
            reader_times_ms(engine, agent)  # the first model call of a process imports and connects
        took: dict[str, list[int]] = defaultdict(list)
        for _ in range(repeats):
            for name, agent in agents.items():
                took[name] += reader_times_ms(engine, agent)
    ms = {name: typical_ms(values) for name, values in took.items()}
    return {
        "large_state_ratio": max(ms["value"], ms["keys"]) / ms["small"],
        **{f"reader_{name}_ms": value for name, value in ms.items()},
    }


def reader_times_ms(engine: Stack, agent: Path) -> list[int]:
    """The time of each reader of a new run, from delivery to delivery; the first counts from the answer to the gate."""
    run = engine.client.submit(agent)
    wait_until(run.gates, "the run waits at its gate")
    wait_until(lambda: is_quiet(engine.redis_url), "Redis has written everything")
    run.answer("go")
    finish([run], engine.client)
    steps = [step for step in run.history() if step.kind in ("input", "llm")]
    if not all(step.ok for step in steps):
        raise BenchFailed(f"a model call failed: {next(step.error for step in steps if not step.ok)}")
    return [after.at_ms - before.at_ms for before, after in pairwise(steps)]


def is_quiet(url: str) -> bool:
    client: Any = connect(url)
    state = client.info("persistence")
    client.close()
    busy = ("aof_pending_bio_fsync", "aof_buffer_length", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
    return not any(state[name] for name in busy)


@contextmanager
def llm_stack(model_url: str) -> Iterator[Stack]:
    """One worker for all nodes: it is the visits of one run that are timed, one after the other."""
    env = {"OPENAI_API_BASE": model_url}
    with stack(queue="llm,functions", pool="threads", workers=1, **env) as engine:
        yield engine


def reading_agent(home: Path, name: str, filling: str) -> Path:
    readers = "\n".join(
        f"  r{i}: {{type: llm, prompt: '{{{{small}}}}', next: {f'r{i + 1}' if i + 1 < READERS else 'done'}}}"
        for i in range(READERS)
    )
    graph = f"""\
name: {name}
model: openai:gpt-test
start: fill
initial_state: {{small: '{"s" * 1000}'}}
nodes:
  fill: {{type: function, call: 'fill.py:fill', next: hold}}
  hold: {{type: input, question: 'On?', next: r0}}
{readers}
  done: {{type: end}}
"""
    return write_agent(home / name, graph, "fill.py", f"def fill(state):\n    return {filling}\n")


def thousandth_visit(repeats: int) -> Values:
    """A visit of the window around the 1,000th of a loop against one of the window around the 10th."""
    with stack() as engine:
        agent = looping_agent(engine.home)
        finish([engine.client.submit(agent)], engine.client)  # the first run pays for imports and caches
        early, late = [], []
        for _ in range(repeats):
            run = engine.client.submit(agent)
            finish([run], engine.client)
            steps = run.history()
            early += block_times_ms(steps, EARLY)
            late += block_times_ms(steps, LATE)
    return {"thousandth_visit_ratio": typical_ms(late) / typical_ms(early)}


def block_times_ms(steps: Sequence[StepInfo], window: range) -> list[int]:
    """The time of each block of five visits of a window, from delivery to delivery."""
    at_ms = {step.step: step.at_ms for step in steps}
    return [at_ms[start + window.step] - at_ms[start] for start in window]


def typical_ms(times_ms: Sequence[int]) -> float:
    """The median, which a machine's other guests move least; grouped, as the times are whole milliseconds."""
    return statistics.median_grouped(times_ms, interval=1)


def looping_agent(home: Path) -> Path:
    graph = """\
name: loop
start: again
settings: {max_loop_iterations: 2000}
nodes:
  again: {type: function, call: 'loop.py:again', next: done}
  done: {type: end}
"""
    code = f"""\
def again(state):
    count = state.get("count", 0) + 1
    return {{"count": count, "_next": "again" if count <= {LATE.stop} else "done"}}
"""
    return write_agent(home / "loop", graph, "loop.py", code)


def waiting_run(runs: int) -> Values:
    """What Redis holds for a run that waits for an answer: its own keys (MEMORY USAGE), and the growth of all of
    Redis' memory over `runs` of them, which also counts their entries in indices."""
    with stack() as engine:
        agent = asking_agent(engine.home)
        wait_at_gates(engine.client, agent, 20)
        client: Any = connect(engine.redis_url)
        before = client.info("memory")["used_memory"]
        wait_at_gates(engine.client, agent, runs)
        after = client.info("memory")["used_memory"]
        sizes: dict[str, int] = defaultdict(int)
        for key in client.scan_iter(match="*:run:*", count=1000):
            sizes[key.split(":")[3]] += client.memory_usage(key, samples=0)
        client.close()
    return {"waiting_run_bytes": statistics.median(sizes.values()), "waiting_run_memory_bytes": (after - before) / runs}


def wait_at_gates(client: Client, agent: Path, runs: int) -> None:
    """Submit runs and wait until each of them waits."""
    wanted = len(client.gates()) + runs
    for _ in range(runs):
        client.submit(agent)
    wait_until(lambda: len(client.gates()) == wanted, "all runs wait")


def asking_agent(home: Path) -> Path:
    graph = """\
name: ask
start: approve
nodes:
  approve: {type: approval, question: 'On?', options: ['yes'], routes: {'yes': done}, on_other: done}
  done: {type: end}
"""
    return write_agent(home / "ask", graph)
