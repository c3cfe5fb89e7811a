"""The state of a run after any of its steps, and what steps have changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Run
from sleipnir.errors import RunNotFound, UsageError
from tests.processes import Stack, write_agent

GRAPH = """\
version: sleipnir/1
name: meet
state:
  log: {type: list, reducer: append, default: []}
  only: {type: list}
start: begin
nodes:
  begin: {type: function, call: "work.py:begin", next: [left, right]}
  left: {type: function, call: "work.py:left", next: join}
  right: {type: function, call: "work.py:right", next: join}
  join: {type: function, call: "work.py:join", next: done}
  done: {type: end, output: "{{text}}"}
"""
WORK = """
def begin(state): return {"log": "begin", "text": "x" * 1000, "only": [1]}
def left(state): return {"log": "left"}
def right(state): return {"log": "right", "only": [2]}
def join(state): return {"log": "join", "text": "end"}
"""


@pytest.fixture
def run(stack: Stack, tmp_path: Path) -> Iterator[Run]:
    with stack.client() as client:
        ended = client.submit(write_agent(tmp_path / "meet", GRAPH, work_py=WORK), "hi", state={"only": []})
        assert ended.wait(60).status == "completed"
        yield ended


def test_the_state_after_each_step_is_what_its_visits_had_written_then(run: Run) -> None:
    steps = run.history()
    assert [step.step for step in steps if step.checkpoint] == [0, 1, 3, 4, 5], "2 is one of two parallel visits"
    found = [run.state_at(step.step) for step in steps]
    assert [state["log"] for state in found] == [
        [],
        ["begin"],
        ["begin"],
        ["begin", "left", "right"],
        ["begin", "left", "right", "join"],
        ["begin", "left", "right", "join"],
    ]
    assert [state["only"] for state in found] == [[], [1], [1], [2], [2], [2]]
    assert found[-1] == run.state()
    assert [run.checkpoint(step.step) for step in steps] == [0, 1, 1, 3, 4, 5]
    difference = run.state_difference(1, 4)
    assert difference.changed.keys() == {"log", "only", "text"}
    assert difference.changed["only"] == ([1], [2]) and not difference.added and not difference.removed
    assert run.state_difference(5, 1).changed["only"] == ([2], [1])
    assert run.state_difference(0, 1).added == {"text": "x" * 1000}


def test_a_step_that_the_run_does_not_have_is_named_with_those_it_has(run: Run, stack: Stack) -> None:
    for wrong in (6, -1, 2**70):
        with pytest.raises(UsageError, match=rf"has no step {wrong:,}; it has the steps 0 to 5: `sleipnir history"):
            run.state_at(wrong)
    with pytest.raises(UsageError, match="has no step 9"):
        run.state_difference(0, 9)
    with pytest.raises(UsageError, match="a step is a whole number, not '1'"):
        run.state_at("1")  # type: ignore[arg-type]
    with stack.client() as client, pytest.raises(RunNotFound):
        Run(client.store, "000000000000", client.settings).state_at(0)


def test_the_command_shows_a_step_two_steps_and_what_is_open(run: Run, stack: Stack) -> None:
    assert json.loads(stack.sleipnir("state", run.id, "--json").stdout) == run.state()
    now = stack.sleipnir("state", run.id).stdout.splitlines()
    assert now[0].split() == ["KEY", "VALUE"] and "only            [2]" in now
    within = stack.sleipnir("state", run.id, "--at", "2", "--json")
    assert json.loads(within.stdout) == run.state_at(1)
    assert "step 2 is no checkpoint; the last one before it is 1" in within.stderr
    text = next(line for line in stack.sleipnir("state", run.id, "--at", "1").stdout.splitlines() if "xxx" in line)
    assert text.endswith("x…") and len(text) < 150
    rows = stack.sleipnir("state", run.id, "--diff", "0", "4").stdout.splitlines()
    assert rows[0].split() == ["CHANGE", "KEY", "AT", "0", "AT", "4"]
    assert sorted(row.split()[:2] for row in rows[1:]) == [["added", "text"], ["changed", "log"], ["changed", "only"]]
    difference = json.loads(stack.sleipnir("state", run.id, "--diff", "0", "4", "--json").stdout)
    assert difference["changed"]["only"] == {"before": [], "after": [2]}
    assert difference["added"] == {"text": "end"} and difference["removed"] == {}
    history = json.loads(stack.sleipnir("history", run.id, "--json").stdout)
    assert [step["checkpoint"] for step in history] == [True, True, False, True, True, True]
    for words, said in (
        (("--at", "6"), "has no step 6; it has the steps 0 to 5"),
        (("--at", "1", "--diff", "0", "1"), "--at and --diff exclude each other"),
        (("--at", "-1"), "-1"),
    ):
        wrong = stack.sleipnir("state", run.id, *words)
        assert (wrong.returncode, wrong.stdout) == (2, "") and said in wrong.stderr


def test_the_checkpoints_of_a_run_are_completed(run: Run, stack: Stack) -> None:
    words = f"sleipnir state {run.id} --at "
    pressed = {"_SLEIPNIR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    assert stack.sleipnir(**pressed).stdout.split() == [f"plain,{step}" for step in (0, 1, 3, 4, 5)]
    words = f"sleipnir fork {run.id} --before "
    nodes = stack.sleipnir(_SLEIPNIR_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="4").stdout.split()
    assert nodes == [f"plain,{node}" for node in ("begin", "done", "join", "left", "right")]
