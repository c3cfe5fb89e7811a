"""The cost of planning a result for a reader: the calls, functions and files through which one event of a run goes.

`python ops/trace_result.py` plans two results of a linear graph: that of the middle one of three nodes, after which the
next one starts, and that of the last one, which ends the run. Of each it prints how many functions are called, how
often, in how many files, and how often a call is in another file than the one before it: what a reader of the
planner has to keep in mind. `--list` prints the calls of the first one.

A lambda is a function of its own; so are comprehensions, until Python 3.12, and each value that a generator gives is a
call. Compare figures of one Python only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from sleipnir.graph.load import load_graph
from sleipnir.graph.model import Graph
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Event, Resulted, Submitted
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir_scheduler.planner import plan as planner

GRAPH = """
name: linear
start: first
nodes:
  first: {type: script, script: s.sh, next: middle}
  middle: {type: script, script: s.sh, next: last}
  last: {type: script, script: s.sh, next: done}
  done: {type: end}
"""
FOLDER = Path(planner.__file__).parent


@dataclass(frozen=True)
class Call:
    """One call of a Python function."""

    file: Path
    line: int
    name: str

    @property
    def is_of_planner(self) -> bool:
        return self.file.is_relative_to(FOLDER)

    def __str__(self) -> str:
        file = self.file.relative_to(FOLDER) if self.is_of_planner else self.file.name
        return f"{file}:{self.line} {self.name}"


def traced(graph: Graph, run: RunView, event: Event, now_ms: int) -> tuple[RunView, list[Call]]:
    """The run after an event, and the calls by which it was planned."""
    calls: list[Call] = []

    def note(frame: FrameType, what: str, _: Any) -> None:
        code = frame.f_code
        if what == "call":
            calls.append(Call(Path(code.co_filename), code.co_firstlineno, code.co_qualname))

    sys.setprofile(note)
    try:
        outcome = planner.plan(graph, run, event, now_ms)
    finally:
        sys.setprofile(None)
    assert isinstance(outcome, Transition), outcome
    return outcome.apply(run), calls


def figures(calls: Sequence[Call]) -> str:
    switches = sum(before.file != call.file for before, call in pairwise(calls))
    files = len({call.file for call in calls})
    return f"{len(calls)} calls, {len(set(calls))} functions, {files} files, {switches} switches of file"


def main() -> None:
    """Print the figures, and with --list the calls."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the calls of the first result, in their order")
    prints_calls = parser.parse_args().list
    graph = load_graph(GRAPH, "graph.yaml", "linear")
    submitted = RunView(id="run1", spec=RunSpec("linear", "digest", by_version=True))
    for warm in (False, True):  # what is made once is made in the first round
        run, _ = traced(graph, submitted, Submitted(), 1_000)
        for seq, what in ((1, ""), (2, "a result after which the next node starts"), (3, "a result that ends the run")):
            run, calls = traced(graph, run, Resulted(seq, 1, ResultHeader(ok=True)), 1_000 + seq)
            if warm and what:
                print(what)
                print(f"  in the planner  {figures([call for call in calls if call.is_of_planner])}")
                print(f"  in all          {figures(calls)}")
                if prints_calls and seq == 2:
                    print("\n".join(f"    {call}" for call in calls))


if __name__ == "__main__":
    main()
