"""Forks: runs that go on from a checkpoint of another run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import RunNotFound, UsageError
from tests.processes import Stack, write_agent

GRAPH = """\
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
WORK = """
import pathlib
def note(name):
    with open(%(file)r, "a") as file: file.write(name + "\\n")
    return {"log": [name]}
def first(state): return note("first")
def left(state): return note("left") | {"fee": 7}
def right(state): return note("right")
def third(state): %(third)s
"""
BROKEN, MENDED = "raise ValueError('no')", "return note('third')"


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def folder(place: Path, third: str, graph: str = GRAPH) -> Path:
    return write_agent(place / "chain", graph, work_py=WORK % {"file": str(place / "done"), "third": third})


def visited(place: Path) -> list[str]:
    return (place / "done").read_text().split()


def ended(run: Run, status: str = "completed") -> Run:
    assert run.wait(60).status == status, run.error
    return run


@pytest.mark.conformance("CK-12")
def test_a_failed_run_goes_on_in_a_fork_with_the_mended_agent_and_repeats_nothing(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    source = ended(client.submit(folder(tmp_path, BROKEN), "hi"), "failed")
    before = (source.info(), source.state(), source.history())
    assert sorted(visited(tmp_path)) == ["first", "left", "right"]
    again = stack.sleipnir("fork", source.id, "--before", "third", "--agent", str(folder(tmp_path, MENDED)), "--json")
    assert again.returncode == 0, again.stderr
    made = json.loads(again.stdout)
    assert (made["source"], made["step"]) == (source.id, 3)
    fork = ended(client.run(made["run"]))
    assert fork.output == '["first","left","right","third"] 7'
    assert visited(tmp_path)[3:] == ["third"], "nothing of the past ran again"
    assert (source.info(), source.state(), source.history()) == before, "the source stays as it is"
    assert fork.info().forked_from == source.id and fork.info().forked_at == 3
    assert f"from {source.id} after step 3" in stack.sleipnir("show", fork.id).stdout
    begin, *later = fork.history()
    assert (begin.kind, begin.reason) == ("forked", f"from run {source.id} after step 3")
    assert [step.node for step in later] == ["third", "done"]


def test_a_fork_begins_with_the_state_of_its_checkpoint_and_the_values_it_is_given(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    source = ended(client.submit(folder(tmp_path, MENDED), "hi"))
    early = ended(client.run(stack.sleipnir("fork", source.id, "--at", "1", "--set", "fee=30").stdout.strip()))
    assert early.state_at(0) == {**source.state_at(1), "fee": 30}
    assert early.output == '["first","left","right","third"] 7'
    late = ended(source.fork(at=3, state={"fee": 40}))
    assert late.output == '["first","left","right","third"] 40'
    again = ended(late.fork(at=0, state={"log": ["new"]}))
    assert again.output == '["new","third"] 40', "a fork of a fork"
    for run in (early, late, again):
        last = run.history()[-1].step
        assert run.state_at(last) == run.state()
    assert again.state_at(0) == {**source.state_at(3), "fee": 40, "log": ["new"]}
    assert again.state_difference(0, 1).changed == {"log": (["new"], ["new", "third"])}
    latest = ended(source.fork())
    assert (latest.info().forked_at, latest.output) == (4, source.output), "the last checkpoint that leads anywhere"


def test_a_fork_that_cannot_go_on_is_refused_before_anything_runs(client: Client, stack: Stack, tmp_path: Path) -> None:
    source = ended(client.submit(folder(tmp_path, MENDED), "hi"))
    other = folder(tmp_path / "other", MENDED, GRAPH.replace("third", "fourth").replace("py:fourth", "py:third"))
    runs = len(client.runs())
    for arguments, said in (
        ({"at": 2}, "step 2 of run .* is no checkpoint: .* The last one before it is 1"),
        ({"at": 9}, "has no step 9; it has the steps 0 to 5"),
        ({"at": 5}, "cannot be forked at step 5: it ended there, and nothing follows"),
        ({"before": "gone"}, "no checkpoint of run .* leads to node 'gone'"),
        ({"at": 1, "before": "third"}, "not both"),
        ({"before": "third", "agent": other}, "the graph 'chain' lacks the node to go on at: 'third'"),
        ({"at": 1, "state": {"fee": "much"}}, "state key 'fee' must be int, not string 'much'"),
        ({"at": 1, "state": {"_next": "third"}}, "'_next' is written by the runtime"),
    ):
        with pytest.raises(UsageError, match=said):
            source.fork(**arguments)  # type: ignore[arg-type]
    assert len(client.runs()) == runs
    wrong = stack.sleipnir("fork", source.id, "--at", "2")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "is no checkpoint" in wrong.stderr
    text = stack.sleipnir("fork", source.id, "--at", "1", "--set", "fee=much")
    assert text.returncode == 2 and "a text is written in quotes: --set" in text.stderr


def test_a_run_whose_next_visits_have_values_of_their_own_is_not_forked_there(client: Client, tmp_path: Path) -> None:
    graph = GRAPH.replace("next: [left, right]}", "next: [left, right]}", 1)
    work = WORK.replace(
        'def first(state): return note("first")',
        """
def first(state): return {"_next": [{"to": "left", "update": {"fee": 3}}, {"to": "right"}]}""",
    )
    agent = write_agent(tmp_path / "chain", graph, work_py=work % {"file": str(tmp_path / "done"), "third": MENDED})
    source = ended(client.submit(agent, "hi"))
    with pytest.raises(UsageError, match=r"at step 1: it leads to 2 visits with values of their own \(commands\)"):
        source.fork(at=1)
    assert ended(source.fork(before="third")).output == source.output


def test_the_past_of_a_fork_is_missing_once_its_source_has_expired(client: Client, tmp_path: Path) -> None:
    source = ended(client.submit(folder(tmp_path, MENDED), "hi"))
    fork = ended(source.fork(before="third"))
    store = client.store
    keys = store.keys.of_run(source.id)
    store._client.delete(keys.journal, keys.run, keys.spec, keys.state)
    assert fork.state()["log"] == ["first", "left", "right", "third"]
    with pytest.raises(RunNotFound, match=f"was forked from run '{source.id}', which has expired"):
        fork.state_at(0)
    with pytest.raises(RunNotFound):
        source.fork(before="third")
