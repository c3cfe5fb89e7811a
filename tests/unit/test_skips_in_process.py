"""`skip` of a run in this process: no Redis, the same planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import UsageError
from sleipnir_inprocess.agent_run import AgentRun

GRAPH = """
version: sleipnir/1
name: letters
state: {words: int}
start: count
nodes:
  count: {type: function, call: "steps.py:count", next: ask}
  ask: {type: approval, question: go on?, options: ["yes"], routes: {"yes": done}, on_other: done}
  done: {type: end, output: "{{words}}"}
"""


def begun(folder: Path) -> AgentRun:
    (folder / "letters").mkdir()
    (folder / "letters" / "graph.yaml").write_text(GRAPH)
    (folder / "letters" / "steps.py").write_text("def count(state): raise ValueError('no')\n")
    run = AgentRun(folder / "letters", by="ann")
    drive(run)
    return run


def drive(run: AgentRun) -> None:
    for _ in run.steps():
        pass


def test_a_failed_visit_and_then_a_question_are_skipped(tmp_path: Path) -> None:
    run = begun(tmp_path)
    assert run.status == "failed"
    for node, value, why in (("count", {"words": "x"}, "must be int"), ("ask", "yes", "has 0 visits 'ask' to skip")):
        with pytest.raises(UsageError, match=why):
            run.skip(node, value)
    run.skip("count", {"words": 3}, reason="counted by hand")
    drive(run)
    assert [gate.node for gate in run.gates()] == ["ask"]
    run.skip("ask", "yes")
    drive(run)
    assert (run.status, run.output) == ("completed", "3")
    assert [step.by for step, _ in run.record.values.journal if step.skipped] == ["ann", "ann"]
