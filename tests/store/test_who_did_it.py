"""Who wanted what of a run or a batch, from where and when: in the journal, in the record, in events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.batches.records import BatchPlan
from sleipnir.client.batch import Batch
from sleipnir.runs.actor import Change
from sleipnir.runs.run import Hold, RunSpec
from sleipnir.store.batches import Batches
from sleipnir.store.runs import Runs
from sleipnir.store.runs.deployment_hold import _RESUME_ALL
from sleipnir.store.runs.gates import _ANSWER
from sleipnir.store.scripts import run_batch
from sleipnir.store.store import Store
from sleipnir_scheduler.services.advance import Advance
from tests.store.test_advance import advance_of
from tests.store.test_batches import ID, SPEC, rows

RUN = "run000000001"
ANN, BOB = "ann@desk (cli)", "bob@ops (python)"
ASKS = """
name: g
start: ask
nodes:
  ask: {type: input, question: "who?", validation: "len(input) > 1", state_updates: {who: "{{input}}"}, next: again}
  again: {type: approval, question: "sure?", options: [yes], routes: {yes: e}, on_other: e, state_updates: {}}
  e: {type: end, output: "{{who}}"}
"""


def test_a_deployment_is_continued_in_parts_and_records_by_whom(store: Store) -> None:
    """Gaps after the second review: one script went through all that was queued, and only the pause had a name."""
    bob = Runs(store._client, store.keys, BOB)
    part = store.keys.of_partition(0)
    visits = {f"run{number:09}/1/1": 5.5 + number for number in range(4500)}
    store._client.zadd(part.outbox, visits)
    store.runs.pause_all(Hold(ANN, 1))
    assert bob.resumed() is None
    keys = {
        "paused": part.paused,
        "outbox": part.outbox,
        "resumed": part.resumed,
        "audit": part.audit,
        "holds": part.holds,
    }
    piece = _RESUME_ALL.vector(keys, {"by": "died@desk (cli)", "entry": "", "keep_ms": 1})
    assert run_batch(store._client, _RESUME_ALL, [piece]) == [1]
    assert (store._client.zcount(part.outbox, 0, 0), store._client.exists(part.paused)) == (2000, 1)
    assert bob.held() is not None
    assert bob.resume_all()
    assert (store._client.zcount(part.outbox, 0, 0), store._client.zcard(part.outbox)) == (4500, 4500)
    assert (bob.held(), bob.resume_all()) == (None, False)
    [found] = [store.runs.resumed()]
    assert found is not None
    assert (found.what, found.by) == ("resumed", BOB)
    assert 0 <= store.now_ms() - found.at_ms < 60_000


def go_on(advance: Advance) -> None:
    while advance.run_once() > 0:
        pass


def wishes(store: Store) -> list[tuple[Any, ...]]:
    steps = store.runs.history(RUN)
    assert all(step.at_ms > 0 for step in steps)
    return [(step.kind, step.by, step.reason, step.answer) for step in steps if step.by or step.answer]


def test_the_journal_and_the_record_have_the_actor_of_each_request(store: Store) -> None:
    """Finding S10 and item 5 of the issue."""
    ann, bob = Runs(store._client, store.keys, ANN), Runs(store._client, store.keys, BOB)
    advance = advance_of(store, ASKS)
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(advance)
    ann.pause(RUN, reason="costs")
    go_on(advance)
    assert [(hold.owner, hold.by, hold.reason) for hold in store.runs.info(RUN).holds] == [("person", ANN, "costs")]
    bob.resume(RUN)
    go_on(advance)
    ann.answer(RUN, 1, "x")
    go_on(advance)
    assert store.runs.info(RUN).status == "failed"
    bob.retry(RUN)
    go_on(advance)
    [gate] = store.runs.gates(RUN)
    ann.answer(RUN, gate.seq, "Ann")
    go_on(advance)
    bob.cancel(RUN)
    go_on(advance)
    assert wishes(store) == [
        ("paused", ANN, "costs", None),
        ("resumed", BOB, None, None),
        ("input", ANN, None, "x"),
        ("retried", BOB, None, None),
        ("input", ANN, None, "Ann"),
        ("cancelled", BOB, None, None),
    ]
    changes = store.runs.info(RUN).changes
    assert [(change.what, change.by) for change in sorted(changes, key=lambda change: change.what)] == [
        ("answered", ANN), ("cancelled", BOB), ("paused", ANN), ("resumed", BOB), ("retried", BOB)
    ]  # fmt: skip
    events = {event.type: event.data for event in store.runs.events(RUN, "0")}
    told = {name: events[name]["by"] for name in ("run_paused", "run_resumed", "gate_answered", "run_retried")}
    assert told == {"run_paused": ANN, "run_resumed": BOB, "gate_answered": ANN, "run_retried": BOB}


def test_an_answer_about_a_budget_is_journaled_though_it_ends_no_visit_of_the_graph(store: Store) -> None:
    ann, advance = Runs(store._client, store.keys, ANN), advance_of(store, ASKS)
    store.runs.create(RUN, RunSpec("agent", "digest", max_tokens=10), {})
    go_on(advance)
    child = {"t": "child_ended", "run": RUN, "seq": "9", "attempt": "1", "child": "c", "status": "completed"}
    usage = json.dumps({"calls": 1, "input_tokens": 20, "output_tokens": 0})
    inbox = store.keys.of_partition(store.keys.partition_of(RUN)).inbox
    store._client.xadd(inbox, {**child, "error": "", "usage": usage})
    go_on(advance)
    [asks] = [gate for gate in store.runs.gates(RUN) if gate.kind == "budget"]
    assert [hold.owner for hold in store.runs.info(RUN).holds] == ["budget"]
    ann.answer(RUN, asks.seq, "yes")
    go_on(advance)
    [step] = [step for step in store.runs.history(RUN) if step.by]
    assert (step.kind, step.by, step.answer, step.gate, step.seq) == ("answered", ANN, "yes", asks.seq, None)


@pytest.mark.parametrize("place", ["node", "key"])
def test_an_answer_that_is_a_secret_by_its_name_is_in_no_journal_and_no_event(store: Store, place: str) -> None:
    name = "api_key" if place == "node" else "ask"
    key = "who" if place == "node" else "db_password"
    text = ASKS.replace("start: ask", f"start: {name}").replace("  ask: {", f"  {name}: {{")
    advance = advance_of(store, text.replace('{who: "{{input}}"}', f'{{{key}: "{{{{input}}}}"}}'))
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(advance)
    Runs(store._client, store.keys, ANN).answer(RUN, 1, "hush-hush")
    go_on(advance)
    [step] = [step for step in store.runs.history(RUN) if step.by]
    assert (step.by, step.answer) == (ANN, "[redacted]")
    [told] = [event.data for event in store.runs.events(RUN, "0") if event.type == "gate_answered"]
    assert told["answer"] == "[redacted]"


def test_entries_of_an_older_release_without_an_actor_are_applied(store: Store) -> None:
    advance = advance_of(store, ASKS)
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(advance)
    inbox = store.keys.of_partition(store.keys.partition_of(RUN)).inbox
    for fields in (
        {"t": "paused", "by": "ann@desk", "reason": ""},
        {"t": "resumed"},
        {"t": "answered", "seq": "1", "text": '"Ann"'},
        {"t": "cancelled"},
    ):
        store._client.xadd(inbox, {**fields, "run": RUN})
    go_on(advance)
    assert store.runs.info(RUN).status == "cancelled"
    assert wishes(store) == [("paused", "ann@desk", None, None), ("input", "", None, "Ann")]


def test_an_answer_with_a_lost_reply_is_accepted_after_its_gate_was_closed(store: Store) -> None:
    """Item b of the issue: redis-py repeats the script, and the scheduler may have been faster."""
    advance = advance_of(store, ASKS)
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(advance)
    run = store.keys.of_run(RUN)
    part = store.keys.of_partition(store.keys.partition_of(RUN))
    keys = {"gates": run.gates, "inbox": part.inbox, "run": run.run, "events": run.events, "audit": part.audit}
    args: dict[str, Any] = {
        "run_id": RUN, "seq": 1, "text": '"Ann"', "attempt": 1, "by": ANN, "token": "token0000001", "person": "ann",
        "role": "operator", "comment": "", "most": 9, "entry": "{}", "keep_ms": 1,
    }  # fmt: skip
    assert _ANSWER(store._client, keys, args) == [1]
    go_on(advance)
    assert _ANSWER(store._client, keys, args) == [1]
    assert _ANSWER(store._client, keys, {**args, "token": "token0000002"}) == [-1]
    go_on(advance)
    assert [step.node for step in store.runs.history(RUN)] == [None, "ask"]


def test_a_batch_records_who_paused_resumed_replanned_retried_and_cancelled_it(store: Store) -> None:
    """Item 5 of the issue: limit and budget changes too."""
    store.batches = Batches(store._client, store.keys, retention_ms=60_000, by=ANN)
    store.batches.add(ID, SPEC, BatchPlan(max_tokens=5), rows(0, 1))
    batch = Batch(store, ID)
    assert batch.info().changes == ()
    batch.pause()
    batch.resume(max_tokens=50)
    batch.set_parallel(1)
    batch.retry_failed()
    batch.cancel()
    changes = batch.info().changes
    assert [change.what for change in changes] == ["paused", "resumed", "replanned", "retried", "cancelled"]
    assert {change.by for change in changes} == {ANN}
    assert all(isinstance(change, Change) and change.at_ms > 0 for change in changes)
