"""Answers that a client sends: checked before any is sent, and compared with what the journal has."""

from __future__ import annotations

import pytest

from sleipnir.client.run import Run
from sleipnir.errors import GateError
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Step
from sleipnir.settings import Settings
from sleipnir.store.record_text import record
from sleipnir.store.store import Store
from tests.store.keepers import RedisKeeper, graphs_of

RUN = "run000000001"
ASKS = """
name: asks
start: both
nodes:
  both: {type: router, next: [left, right]}
  left: {type: input, question: "left?", state_updates: {l: "{{input}}"}, next: e}
  right: {type: input, question: "right?", state_updates: {r: "{{input}}"}, next: e}
  e: {type: end, wait_for: [left, right]}
"""


@pytest.fixture
def keeper(store: Store) -> RedisKeeper:
    made = RedisKeeper(store)
    made.graphs |= graphs_of(b1=ASKS)
    made.create(RUN, RunSpec("agent", "b1", by_version=True), {"initial_prompt": ""})
    made.go_on()
    return made


@pytest.fixture
def run(store: Store, keeper: RedisKeeper) -> Run:
    return Run(store, RUN, Settings(redis_url=store.url, broker_url=store._settings.broker_url))


def test_no_answer_is_sent_if_one_is_for_an_unknown_number(run: Run) -> None:
    assert [gate.node for gate in run.gates()] == ["left", "right"]
    with pytest.raises(GateError, match="has no open question 99"):
        run.answer_all({"left": "l", "99": "x"})
    assert [gate.node for gate in run.gates()] == ["left", "right"]


def test_an_answer_that_no_scheduler_has_seen_yet_counts_once(run: Run, keeper: RedisKeeper) -> None:
    left, right = run.gates()
    run.answer("l", left.seq)
    run.answer("l", left.seq)
    with pytest.raises(GateError, match="already answered with 'l'"):
        run.answer("other", left.seq)
    with pytest.raises(GateError, match="already answered with 'l'"):
        run.answer_all({str(right.seq): "r", str(left.seq): "other"})
    run.answer_all({str(left.seq): "l", str(right.seq): "r"})
    keeper.go_on()
    assert run.info().status == "completed"
    with pytest.raises(GateError, match="needs no answer any more"):
        run.answer("l", left.seq)


@pytest.mark.parametrize("more", [0, 1, 98, 99, 100, 1_203])
def test_the_newest_steps_are_the_history_from_its_end(store: Store, keeper: RedisKeeper, more: int) -> None:
    journal = store.keys.of_run(RUN).journal
    steps = [record(Step(number, "script", 5, seq=number, node="a")) for number in range(1, more + 1)]
    for step in steps:
        store._client.rpush(journal, step)
    assert list(store.runs.newest_steps(RUN)) == list(reversed(store.runs.history(RUN)))
