"""An agent whose nodes note that they ran, for tests of the past of runs: a chain with two parallel visits in it."""

from __future__ import annotations

from pathlib import Path

from sleipnir.client.client import Run
from tests.processes import write_agent

CHAIN = """\
version: sleipnir/1
name: chain
state:
  log: {type: list, reducer: append, default: []}
  fee: {type: int, default: 1}
start: first
nodes:
  first: {type: function, call: "work.py:first", next: [left, right]}
  left: {type: function, call: "work.py:left", next: third}
  right: {type: function, call: "work.py:right", next: third}
  third: {type: function, call: "work.py:third", next: done}
  done: {type: end, output: "{{log}} {{fee}}"}
"""
_WORK = """
def note(name):
    with open(%(file)r, "a") as file: file.write(name + "\\n")
    return {"log": [name]}
def first(state): return note("first")
def left(state): return note("left") | {"fee": 7}
def right(state): return note("right")
def third(state): %(third)s
"""
BROKEN, MENDED = "raise ValueError('no')", "return note('third')"
"""What the node `third` does."""


def chain_agent(place: Path, third: str = MENDED, graph: str = CHAIN) -> Path:
    """The folder of the agent, in `place`."""
    return write_agent(place / "chain", graph, work_py=_WORK % {"file": str(place / "done"), "third": third})


def visited(place: Path) -> list[str]:
    """The nodes of the agent in `place` that ran."""
    return (place / "done").read_text().split()


def ended(run: Run, status: str = "completed") -> Run:
    """The run, when it is over."""
    assert run.wait(60).status == status, run.error
    return run
