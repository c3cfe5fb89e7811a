"""The contract that the store in Redis and the store in memory keep: the same operations, with the same outcomes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from sleipnir.errors import GateError, RunNotFound, UsageError
from sleipnir.messages import ANSWER, MESSAGES, RESULT, ResultHeader, Send, ToolCall, Usage, VisitCall, overlay_text
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.conversation import SILENCE, StoredConversation
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.runs.visits import Failure
from sleipnir.store.store import Store
from tests.processes import wait_until
from tests.store.keepers import Keeper, MemoryKeeper, RedisKeeper, graphs_of

RUN, OTHER = "run000000001", "run000000002"
CHILD = child_id(RUN, 1)


@pytest.fixture(params=["redis", "memory"])
def keeper(request: pytest.FixtureRequest) -> Keeper:
    if request.param == "memory":
        return MemoryKeeper()
    store: Store = request.getfixturevalue("store")
    return RedisKeeper(store)


def submit(keeper: Keeper, graph: str, state: dict[str, Any] | None = None, run: str = RUN, **spec: Any) -> None:
    keeper.graphs |= graphs_of(b1=graph)
    assert keeper.create(
        run, RunSpec("agent", "b1", by_version=True, **spec), {"initial_prompt": "hi", **(state or {})}
    )


def done(keeper: Keeper, call: VisitCall, /, *, ok: bool = True, usage: Usage | None = None, **values: Any) -> Claim:
    """Claim a visit and deliver its result."""
    claim = keeper.claim(call)
    assert isinstance(claim, Claim), claim
    error = None if ok else "it broke"
    header = ResultHeader(ok=ok, keys=tuple(values), error=error, usage=asdict(usage) if usage else None)
    assert keeper.deliver(call, header, {key: json.dumps(value) for key, value in values.items()})
    return claim


TWO_SCRIPTS = """
name: g
start: a
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: e}
  e: {type: end, output: "{{n}}"}
"""


def test_a_run_is_created_once(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    assert keeper.info(RUN).status == "submitted"
    assert not keeper.create(RUN, RunSpec("agent", "b1"), {"n": 7})
    [call] = keeper.go_on()
    assert (call.run, call.node, call.seq, call.attempt) == (RUN, "a", 1, 1)
    assert keeper.go_on() == []
    assert (keeper.info(RUN).status, keeper.state(RUN)) == ("running", {"initial_prompt": "hi", "n": 0})
    with pytest.raises(RunNotFound):
        keeper.info("run000000009")


def test_a_run_goes_from_visit_to_visit_to_its_end(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [first] = keeper.go_on()
    assert done(keeper, first, n=1, text="ü").state == {"initial_prompt": '"hi"', "n": "0"}
    [second] = keeper.go_on()
    assert done(keeper, second, n=2).state["n"] == "1"
    assert keeper.go_on() == []
    info = keeper.info(RUN)
    assert (info.status, info.error, keeper.output(RUN), info.step) == ("completed", None, "2", 3)
    assert info.ended_ms is not None and info.created_ms <= info.ended_ms
    assert keeper.state(RUN) == {"initial_prompt": "hi", "n": 2, "text": "ü"}
    assert keeper.steps(RUN) == [
        ("submitted", None, True, {"initial_prompt": "hi", "n": 0}),
        ("script", "a", True, {"n": 1, "text": "ü"}),
        ("script", "b", True, {"n": 2}),
        ("end", "e", True, {}),
    ]
    assert keeper.left(RUN) == 0
    assert [each for each in keeper.events(RUN) if each in ("run_started", "visit_started", "run_ended")] == [
        "run_started", "visit_started", "visit_started", "run_ended",
    ]  # fmt: skip


def test_a_claim_reads_what_it_wants(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0, "big": [1] * 9})
    [call] = keeper.go_on()
    claim = keeper.claim(call, ["n", "unknown"])
    assert isinstance(claim, Claim)
    assert (claim.state, claim.spec.agent, claim.item, claim.part, claim.talk) == (
        {"n": "0"}, "agent", None, None, SILENCE,
    )  # fmt: skip


def refusal(outcome: Claim | ClaimRefused) -> str:
    assert isinstance(outcome, ClaimRefused), outcome
    return outcome.reason


def test_claims_are_refused(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [call] = keeper.go_on()
    fields: dict[str, Any] = {
        name: getattr(call, name) for name in ("run", "node", "seq", "attempt", "agent", "bundle")
    }
    assert refusal(keeper.claim(VisitCall(**{**fields, "attempt": 2}))) == "stale"
    assert refusal(keeper.claim(VisitCall(**{**fields, "seq": 9}))) == "gone"
    assert refusal(keeper.claim(VisitCall(**{**fields, "run": OTHER}))) == "gone"
    assert refusal(keeper.claim(VisitCall(**{**fields, "node": "b"}))) == "forged"
    assert refusal(keeper.claim(VisitCall(**fields, role="turn"))) == "forged"
    keeper.pause(RUN)
    keeper.go_on()
    assert refusal(keeper.claim(call)) == "paused"
    keeper.resume(RUN)
    keeper.go_on()
    done(keeper, call, n=1)
    assert refusal(keeper.claim_again(call)) == "taken"
    keeper.go_on()
    assert refusal(keeper.claim(call)) == "gone"


def test_a_result_is_taken_once_and_only_from_the_claimer(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [call] = keeper.go_on()
    header = ResultHeader(ok=True, keys=("n",))
    assert not keeper.deliver(call, header, {"n": "5"})
    assert "late_result" in keeper.events(RUN)
    done(keeper, call, n=1)
    assert keeper.deliver(call, header, {"n": "9"}), "the first reply may have been lost; nothing changes"
    [second] = keeper.go_on()
    assert not keeper.deliver(call, header, {"n": "6"})
    assert (second.node, keeper.state(RUN)["n"]) == ("b", 1)


def test_a_visit_that_is_handed_back_is_executed_again(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [call] = keeper.go_on()
    assert not keeper.hand_back(call)
    keeper.claim(call)
    assert keeper.hand_back(call)
    assert not keeper.hand_back(call)
    [again] = keeper.go_on()
    assert (again.node, again.attempt) == ("a", 2)
    assert not keeper.deliver(call, ResultHeader(ok=True), {})
    done(keeper, again, n=3)
    keeper.go_on()
    assert keeper.state(RUN)["n"] == 3


ASKS = """
name: g
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", timeout: 60, on_timeout: late,
        state_updates: {said: "{{input}}"}, next: e}
  late: {type: end, output: "too late"}
  e: {type: end, output: "{{said}}"}
"""


def test_a_question_is_answered_once(keeper: Keeper) -> None:
    submit(keeper, ASKS)
    assert keeper.go_on() == []
    [gate] = keeper.gates(RUN)
    assert (keeper.info(RUN).status, gate.node, gate.question, gate.run, gate.path) == (
        "waiting",
        "ask",
        "hi?",
        RUN,
        (),
    )
    with pytest.raises(GateError, match="no open question"):
        keeper.answer(RUN, gate.seq, "x", attempt=2)
    keeper.answer(RUN, gate.seq, "yes")
    assert keeper.gates(RUN) == []
    keeper.answer(RUN, gate.seq, "yes")  # the first reply may have been lost
    with pytest.raises(GateError, match="already answered with 'yes'"):
        keeper.answer(RUN, gate.seq, "no")
    keeper.go_on()
    assert (keeper.info(RUN).status, keeper.output(RUN)) == ("completed", "yes")
    with pytest.raises(GateError, match="needs no answer any more"):
        keeper.answer(RUN, gate.seq, "yes")


def test_a_question_expires(keeper: Keeper) -> None:
    submit(keeper, ASKS)
    keeper.go_on()
    assert keeper.let_timers_fire() >= 1
    keeper.go_on()
    assert (keeper.output(RUN), keeper.gates(RUN)) == ("too late", [])
    assert keeper.let_timers_fire() == 0, "a run that is over has no timers"


def test_an_accepted_answer_counts_though_the_question_expires(keeper: Keeper) -> None:
    submit(keeper, ASKS)
    keeper.go_on()
    [gate] = keeper.gates(RUN)
    keeper.let_timers_fire()
    keeper.answer(RUN, gate.seq, "just in time")
    keeper.go_on()
    assert keeper.output(RUN) == "just in time"


def test_a_failure_is_tried_again_when_its_timer_fires(keeper: Keeper) -> None:
    graph = TWO_SCRIPTS.replace("name: g", "name: g\nversion: sleipnir/1")
    graph = graph.replace("script: a.sh,", "script: a.sh, retry: {max_attempts: 2, initial_interval: 30s},")
    submit(keeper, graph, {"n": 0})
    [call] = keeper.go_on()
    claim = keeper.claim(call)
    assert isinstance(claim, Claim)
    assert keeper.deliver(call, ResultHeader(ok=False, error="away", transient=True), {})
    assert keeper.go_on() == []
    assert keeper.let_timers_fire() >= 1
    [again] = [each for each in keeper.go_on() if each.node == "a"]
    assert again.attempt == 2


MAP = """
name: g
start: m
nodes:
  m: {type: map, over: "{{xs}}", as: x, branch: one, collect_into: ys, max_concurrency: 2, next: e}
  one: {type: script, script: s.sh}
  e: {type: end, output: "{{ys}}"}
"""


def test_items_see_their_value_and_are_collected_in_order(keeper: Keeper) -> None:
    submit(keeper, MAP, {"xs": ["a", "b", "c"]})
    waiting = keeper.go_on()
    assert len(waiting) == 2
    seen = []
    while waiting:
        call = waiting.pop()
        claim = keeper.claim(call)
        assert isinstance(claim, Claim) and claim.item is not None
        seen.append((claim.item.index, claim.state["x"]))
        value = json.dumps(f"{json.loads(claim.state['x'])}!")
        assert keeper.deliver(call, ResultHeader(ok=True, keys=("output",)), {"output": value})
        waiting += keeper.go_on()
    assert sorted(seen) == [(0, '"a"'), (1, '"b"'), (2, '"c"')]
    assert (keeper.state(RUN)["ys"], keeper.left(RUN)) == (["a!", "b!", "c!"], 0)
    assert "x" not in keeper.state(RUN)


COMMANDS = """
version: sleipnir/1
name: g
reducers: {seen: append}
start: split
nodes:
  split: {type: script, script: s.sh, ends: [work]}
  work: {type: script, script: w.sh, next: e}
  e: {type: end, output: "{{seen}}"}
"""


def test_commands_lay_values_over_the_state_and_writes_fold_when_the_step_closes(keeper: Keeper) -> None:
    submit(keeper, COMMANDS, {"x": 0})
    [split] = keeper.go_on()
    assert isinstance(keeper.claim(split), Claim)
    sends = [Send("work", {"x": 1}), Send("work", {"x": 2})]
    overlays = "\x1e".join(overlay_text({"x": str(send.update["x"])}) for send in sends)
    header = ResultHeader(ok=True, sends=tuple(send.to for send in sends))
    assert keeper.deliver(split, header, {"_next": overlays})
    first, second = sorted(keeper.go_on(), key=lambda call: call.seq)
    assert done(keeper, second, seen="second").state["x"] == "2"
    keeper.go_on()
    assert "seen" not in keeper.state(RUN), "the step has not closed"
    assert done(keeper, first, seen="first").state["x"] == "1"
    keeper.go_on()
    assert keeper.state(RUN) == {"initial_prompt": "hi", "x": 0, "seen": ["first", "second"]}
    assert (keeper.info(RUN).status, keeper.left(RUN)) == ("completed", 0)


LOOP = """
name: g
start: ask
nodes:
  ask: {type: llm, prompt: hi, tools: [a], state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""


def test_a_loop_keeps_its_conversation_until_it_ends(keeper: Keeper) -> None:
    submit(keeper, LOOP)
    [turn] = keeper.go_on()
    claim = keeper.claim(turn)
    assert isinstance(claim, Claim)
    assert (turn.role, claim.talk) == ("turn", StoredConversation())
    calls = (ToolCall("c1", "a", "scripts"),)
    values = {MESSAGES: '["told"]', ANSWER: '{"tool_calls": []}'}
    assert keeper.deliver(turn, ResultHeader(ok=True, keys=tuple(values), calls=calls), values)
    [call] = keeper.go_on()
    claim = keeper.claim(call, ())
    assert isinstance(claim, Claim)
    assert (call.role, claim.state, claim.talk.turns) == ("tool", {}, (('{"tool_calls": []}', ()),))
    assert keeper.deliver(call, ResultHeader(ok=True, keys=(RESULT,)), {RESULT: "5"})
    [turn] = keeper.go_on()
    claim = keeper.claim(turn)
    assert isinstance(claim, Claim)
    assert claim.talk == StoredConversation('["told"]', (('{"tool_calls": []}', ("5",)),))
    assert keeper.left(RUN) > 0
    assert keeper.deliver(turn, ResultHeader(ok=True, keys=("said",)), {"said": '"the end"'})
    keeper.go_on()
    assert (keeper.output(RUN), keeper.left(RUN)) == ("the end", 0)


def test_usage_adds_up_and_is_unpriced_as_soon_as_one_call_is(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [first] = keeper.go_on()
    done(keeper, first, usage=Usage(10, 5, 1, "m", 0.25))
    [second] = keeper.go_on()
    assert keeper.info(RUN).usage == Usage(10, 5, 1, None, 0.25)
    done(keeper, second, usage=Usage(1, 1, 2, "m", None))
    keeper.go_on()
    assert keeper.info(RUN).usage == Usage(11, 6, 3, None, None)


def test_a_cancelled_run_leaves_no_values_of_its_visits(keeper: Keeper) -> None:
    submit(keeper, MAP, {"xs": ["a", "b"]})
    keeper.go_on()
    assert keeper.left(RUN) > 0
    keeper.cancel(RUN)
    keeper.go_on()
    assert keeper.left(RUN) == 0


@pytest.mark.parametrize("how", ["before", "while"])
def test_a_cancelled_run_takes_no_results(keeper: Keeper, how: str) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [call] = keeper.go_on()
    if how == "while":
        keeper.claim(call)
    keeper.cancel(RUN)
    keeper.go_on()
    assert keeper.info(RUN).status == "cancelled"
    assert not keeper.deliver(call, ResultHeader(ok=True), {})
    with pytest.raises(UsageError, match="already cancelled; nothing to cancel"):
        keeper.cancel(RUN)
    with pytest.raises(UsageError, match="only a failed run can be retried"):
        keeper.retry(RUN)


def test_a_failed_run_goes_on_where_it_failed(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0}, strict=True)
    [first] = keeper.go_on()
    done(keeper, first, n=1)
    [second] = keeper.go_on()
    done(keeper, second, ok=False)
    assert keeper.go_on() == []
    info = keeper.info(RUN)
    assert (info.status, info.failed_visits.count, info.retries) == ("failed", 1, 0)
    assert "it broke" in str(info.error)
    keeper.retry(RUN)
    assert keeper.info(RUN).status == "running"
    with pytest.raises(UsageError, match="already being retried"):
        keeper.retry(RUN)
    [again] = keeper.go_on()
    assert (again.node, keeper.info(RUN).error, keeper.info(RUN).retries) == ("b", None, 1)
    done(keeper, again, n=2)
    keeper.go_on()
    info = keeper.info(RUN)
    assert (info.status, keeper.output(RUN), info.failed_visits.count) == ("completed", "2", 0)


PARALLEL = """
version: sleipnir/1
name: g
start: a
nodes:
  a: {type: script, script: a.sh, next: [b, c]}
  b: {type: script, script: b.sh}
  c: {type: script, script: c.sh}
"""


FOUR_SCRIPTS = """
name: g
start: a
nodes:
  a: {type: script, script: s.sh, next: b}
  b: {type: script, script: s.sh, next: c}
  c: {type: script, script: s.sh, next: d}
  d: {type: script, script: s.sh, next: e}
  e: {type: end}
"""


def test_a_retry_gives_a_run_its_limit_of_super_steps_again_and_tells_its_nodes(keeper: Keeper) -> None:
    submit(keeper, FOUR_SCRIPTS, config={"recursion_limit": 1})
    [call] = keeper.go_on()
    assert done(keeper, call).limited_from == 0
    assert (keeper.go_on(), keeper.info(RUN).status, keeper.info(RUN).failure) == ([], "failed", Failure("steps"))
    keeper.retry(RUN)
    for step in (2, 3, 4):
        [call] = keeper.go_on()
        claim = done(keeper, call)
        assert (claim.step, claim.limited_from) == (step, 3)
    assert (keeper.go_on(), keeper.info(RUN).status) == ([], "failed")
    keeper.retry(RUN)
    keeper.go_on()
    assert keeper.info(RUN).status == "completed"


def test_the_cause_of_a_failure_is_kept_with_its_visit_and_its_run_until_a_retry(keeper: Keeper) -> None:
    submit(keeper, PARALLEL)
    [first] = keeper.go_on()
    done(keeper, first)
    second, third = keeper.go_on()
    keeper.claim(third)
    header = ResultHeader(ok=False, error="it broke", error_type="builtins:KeyError")
    assert keeper.deliver(third, header, {})
    assert keeper.go_on() == []
    assert (keeper.info(RUN).status, keeper.info(RUN).failure) == ("running", None)
    done(keeper, second)
    assert keeper.go_on() == []
    assert (keeper.info(RUN).status, keeper.info(RUN).failure) == ("failed", Failure("visit", 3, "builtins:KeyError"))
    keeper.retry(RUN)
    [again] = keeper.go_on()
    done(keeper, again)
    keeper.go_on()
    assert (keeper.info(RUN).status, keeper.info(RUN).failure) == ("completed", None)


PARENT = """
name: parent
start: call
nodes:
  call: {type: agent, agent: child, prompt: "ann", state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
CHILD_ASKS = """
name: child
start: q
nodes:
  q: {type: input, question: "Well, {{initial_prompt}}?", state_updates: {a: "{{input}}"}, next: s}
  s: {type: script, script: s.sh, next: e}
  e: {type: end, output: "so {{a}}"}
"""


def family(keeper: Keeper, **spec: Any) -> None:
    keeper.graphs |= graphs_of(c1=CHILD_ASKS)
    submit(keeper, PARENT, agents={"child": "c1"}, **spec)
    keeper.go_on()


def test_a_child_run_asks_works_and_gives_its_output(keeper: Keeper) -> None:
    family(keeper)
    [gate] = keeper.gates_below(RUN)
    assert (gate.run, gate.question, gate.path, gate.place) == (CHILD, "Well, ann?", ("call",), "call/q")
    assert keeper.gates(RUN) == []
    info = keeper.info(CHILD)
    assert (info.parent, info.root, info.agent, info.status) == (RUN, RUN, "child", "waiting")
    keeper.answer(CHILD, gate.seq, "well")
    [call] = keeper.go_on()
    done(keeper, call, usage=Usage(7, 3, 1, "m", 0.5))
    keeper.go_on()
    assert (keeper.output(CHILD), keeper.output(RUN)) == ("so well", "so well")
    assert keeper.info(RUN).usage == Usage(7, 3, 1, None, 0.5)
    assert "gate_opened" in keeper.events(RUN), "watchers of the root see the questions below"


def test_a_child_that_cannot_start_fails_its_visit(keeper: Keeper) -> None:
    submit(keeper, PARENT)
    keeper.go_on()
    why = "there was no agent 'child' when the run was submitted"
    assert str(keeper.info(RUN).error).endswith(f"Agent 'child' failed: {why}")


def test_a_run_fails_for_what_its_child_failed_for(keeper: Keeper) -> None:
    family(keeper, strict=True)
    [gate] = keeper.gates_below(RUN)
    keeper.answer(CHILD, gate.seq, "well")
    [call] = keeper.go_on()
    keeper.claim(call)
    assert keeper.deliver(call, ResultHeader(ok=False, error="it broke", error_type="builtins:KeyError"), {})
    keeper.go_on()
    assert keeper.info(CHILD).failure == Failure("visit", call.seq, "builtins:KeyError")
    assert keeper.info(RUN).failure == Failure("visit", 1, "builtins:KeyError")


def test_a_cancelled_parent_takes_its_child_along(keeper: Keeper) -> None:
    family(keeper)
    keeper.cancel(RUN)
    keeper.go_on()
    assert [keeper.info(run).status for run in (RUN, CHILD)] == ["cancelled", "cancelled"]
    assert keeper.gates_below(RUN) == []


def test_a_pause_goes_down_and_ends_with_the_resume(keeper: Keeper) -> None:
    family(keeper)
    keeper.pause(RUN)
    keeper.go_on()
    assert [keeper.info(run).status for run in (RUN, CHILD)] == ["paused", "paused"]
    [gate] = keeper.gates_below(RUN)
    keeper.answer(CHILD, gate.seq, "well")
    assert keeper.go_on() == []
    keeper.resume(RUN)
    [call] = keeper.go_on()
    assert (call.run, call.node) == (CHILD, "s")


def test_a_retry_goes_down_to_where_it_failed(keeper: Keeper) -> None:
    family(keeper, strict=True)
    [gate] = keeper.gates_below(RUN)
    keeper.answer(CHILD, gate.seq, "well")
    [call] = keeper.go_on()
    done(keeper, call, ok=False, usage=Usage(1, 1, 1, "m", 0.5))
    keeper.go_on()
    assert [keeper.info(run).status for run in (RUN, CHILD)] == ["failed", "failed"]
    keeper.retry(RUN)
    [again] = keeper.go_on()
    assert (again.run, again.node) == (CHILD, "s")
    done(keeper, again, usage=Usage(1, 1, 1, "m", 0.25))
    keeper.go_on()
    assert [keeper.info(run).status for run in (RUN, CHILD)] == ["completed", "completed"]
    assert [keeper.info(run).retries for run in (RUN, CHILD)] == [1, 1]
    assert keeper.info(RUN).usage == Usage(2, 2, 2, None, 0.75), "what the child cost counts once"


def test_slots_let_one_run_after_the_other_go_on(keeper: Keeper) -> None:
    limited = TWO_SCRIPTS.replace("name: g", "name: g\nversion: sleipnir/1\nconcurrency: {key: all, limit: 1}")
    submit(keeper, limited, {"n": 0})
    [first] = keeper.go_on()
    submit(keeper, limited, {"n": 0}, OTHER)
    assert keeper.go_on() == []
    slot = keeper.info(OTHER).slot
    assert slot is not None and (slot.key, slot.limit, slot.granted) == ("all", 1, False)
    done(keeper, first, n=1)
    [second] = keeper.go_on()
    assert second.run == RUN
    done(keeper, second, n=2)
    [other] = keeper.go_on()
    assert (other.run, other.node) == (OTHER, "a")
    keeper.cancel(OTHER)
    keeper.go_on()
    submit(keeper, limited, {"n": 0}, "run000000003")
    assert len(keeper.go_on()) == 1, "a cancelled run frees its slot"


PAUSED = """
name: g
version: sleipnir/1
engine: ENGINE
start: split
state: {n: int}
nodes:
  split: {type: router, next: [slow, quick, queued]}
  slow: {type: script, script: s.sh}
  quick: {type: script, script: q.sh}
  queued: {type: script, script: w.sh}
"""


@pytest.mark.parametrize("timeout_ms", [0, 50])
@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_pause_takes_claimed_visits_back_and_they_run_again_with_their_input(
    keeper: Keeper, engine: str, timeout_ms: int
) -> None:
    """The result of `quick` had come, and was not committed, when `slow` began: that sees the value before it again."""
    submit(keeper, PAUSED.replace("ENGINE", engine), {"n": 1})
    calls = {call.node: call for call in keeper.go_on()}
    done(keeper, calls["quick"], n=2)
    claim = keeper.claim(calls["slow"])
    assert isinstance(claim, Claim)
    assert claim.state["n"] == "1"
    keeper.go_on()
    assert keeper.state(RUN)["n"] == (2 if engine == "dag" else 1)
    keeper.pause(RUN, timeout_ms)
    keeper.go_on()

    def is_stopped() -> bool:
        keeper.let_timers_fire()  # too early, it changes nothing
        keeper.go_on()
        return "stopped" in [kind for kind, *_ in keeper.steps(RUN)]

    wait_until(is_stopped, "the deadline comes")
    assert not keeper.deliver(calls["slow"], ResultHeader(ok=True, keys=("n",)), {"n": "9"})
    assert keeper.claim(calls["slow"]) == ClaimRefused("stale")
    kinds = [kind for kind, *_ in keeper.steps(RUN)]
    assert kinds.count("stopped") == 1, "none had the third visit"
    keeper.resume(RUN)
    again = {call.node: call for call in keeper.go_on()}
    assert {node: call.attempt for node, call in again.items()} == {"slow": 2, "queued": 1}
    assert done(keeper, again["slow"], n=3).state["n"] == "1"
    assert done(keeper, again["queued"]).state["n"] == ("2" if engine == "dag" else "1")
    keeper.go_on()
    assert (keeper.info(RUN).status, keeper.state(RUN)["n"]) == ("completed", 3)


def test_a_result_that_was_delivered_before_the_deadline_counts(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS, {"n": 0})
    [call] = keeper.go_on()
    keeper.pause(RUN, 0)
    done(keeper, call, n=1)
    keeper.go_on()
    assert keeper.state(RUN)["n"] == 1
    assert "stopped" not in [kind for kind, *_ in keeper.steps(RUN)]


def test_a_skip_ends_a_claimed_visit_and_a_failed_one(keeper: Keeper) -> None:
    submit(keeper, TWO_SCRIPTS.replace("name: g", "name: g\nversion: sleipnir/1"), {"n": 0})
    [call] = keeper.go_on()
    assert isinstance(keeper.claim(call), Claim)
    keeper.skip(RUN, call.seq, {"n": 1})
    [second] = keeper.go_on()
    assert not keeper.deliver(call, ResultHeader(ok=True, keys=("n",)), {"n": "9"})
    done(keeper, second, ok=False)
    keeper.go_on()
    assert keeper.info(RUN).status == "failed"
    keeper.skip(RUN, second.seq, {"n": 2})
    with pytest.raises(UsageError, match="skipped already"):
        keeper.skip(RUN, second.seq, {"n": 2})
    keeper.go_on()
    assert (keeper.info(RUN).status, keeper.output(RUN)) == ("completed", "2")
    with pytest.raises(UsageError, match="nothing to skip"):
        keeper.skip(RUN, second.seq, {"n": 2})
    assert keeper.left(RUN) == 0


def test_a_refused_skip_leaves_a_failed_run_failed_and_to_be_retried(keeper: Keeper) -> None:
    submit(keeper, PAUSED.replace("ENGINE", "bsp").replace("[slow, quick, queued]", "slow"), {"n": 0})
    [call] = keeper.go_on()
    done(keeper, call, ok=False)
    keeper.go_on()
    keeper.skip(RUN, call.seq, {"n": "many"})
    keeper.go_on()
    assert keeper.info(RUN).status == "failed"
    assert "a skip was refused" in (keeper.info(RUN).error or "")
    keeper.retry(RUN)
    [again] = keeper.go_on()
    done(keeper, again, n=5)
    keeper.go_on()
    assert keeper.info(RUN).status == "completed"
