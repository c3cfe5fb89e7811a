"""A pause with a deadline over the store in memory: the runner stops what runs, and runs it again with its input."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from sleipnir.memory.store import MemoryStore
from sleipnir.messages import VisitCall, VisitResult
from sleipnir.runs.claims import Claim
from sleipnir.runs.run import RunSpec
from sleipnir_inprocess.runner import Executed, Runner
from tests.model_store import graph_of

RUN = "run000000001"
GRAPH = """
name: g
version: sleipnir/1
engine: ENGINE
start: split
state: {value: string, seen: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [slow, quick]}
  slow: {type: script, script: s.sh}
  quick: {type: script, script: q.sh}
"""


class Nodes:
    """The first execution of `slow` ends only when it is lost."""

    def __init__(self) -> None:
        self.saw: list[Any] = []
        self.began = threading.Event()

    def __call__(self, call: VisitCall, claim: Claim, lost: threading.Event) -> Executed:
        if call.node == "quick":
            assert self.began.wait(30)
            return VisitResult(ok=True, delta={"value": "new"}), {"value": '"new"'}
        self.saw.append(json.loads(claim.state["value"]))
        if len(self.saw) == 1:
            self.began.set()
            assert lost.wait(30), "the pause stops it"
            return None
        text = json.dumps([self.saw[-1]])
        return VisitResult(ok=True, delta={"seen": [self.saw[-1]]}), {"seen": text}


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_what_runs_is_stopped_and_runs_again_with_its_input(engine: str) -> None:
    store, nodes, graph = MemoryStore(), Nodes(), graph_of(GRAPH.replace("ENGINE", engine))
    store.create(RUN, RunSpec("agent", "digest"), {"value": '"old"', "seen": "[]"})
    runner = Runner(store, RUN, lambda _: graph, nodes, inline=False, look_s=0.01)
    was_paused = False
    for _ in runner.steps():
        if not was_paused and any(step.node == "quick" for step, _ in store.runs[RUN].values.journal):
            store.pause(RUN, "ann", timeout_ms=0)
            was_paused = True
    assert store.runs[RUN].status == "paused"
    store.resume(RUN, "ann")
    runner.drive()
    run = store.runs[RUN]
    assert run.status == "completed"
    assert nodes.saw == ["old", "old"]
    assert {key: json.loads(text) for key, text in run.values.state.items()} == {"value": "new", "seen": ["old"]}
    assert [step.kind for step, _ in run.values.journal if step.by] == ["paused", "stopped", "resumed"]
