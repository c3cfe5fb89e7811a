"""What is said in a loop, on a real Redis: kept by commits, given to claims, forgotten at the end."""

from __future__ import annotations

import json
from typing import Any

from sleipnir.messages import ANSWER, FOLLOW_UP, MESSAGES, RESULT, ResultHeader, ToolCall, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.conversation import SILENCE, StoredConversation
from sleipnir.runs.run import RunSpec
from sleipnir.runs.visits import Visit
from sleipnir.store.store import Store
from tests.store.test_advance import advance_of

RUN = "run000000001"
LOOP = """
name: g
start: ask
nodes:
  ask: {type: llm, prompt: hi, tools: [a, b], next: e, state_updates: {said: "{{output}}"}}
  e: {type: end, output: "{{said}}"}
"""
TOLD = [{"role": "user", "content": "hi"}]
REPLY = {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]}


class World:
    """A scheduler, and workers that say what the test says."""

    def __init__(self, store: Store, graph: str = LOOP, state: dict[str, str] | None = None) -> None:
        self.store, self.advance = store, advance_of(store, graph)
        store.runs.create(RUN, RunSpec("agent", "digest"), state or {})
        self.advance.run_once()

    def visits(self, role: str) -> list[Visit]:
        """Of one role, by number."""
        live = self.store.partitions.load([RUN])[RUN].frontier
        return [live[seq] for seq in sorted(live) if live[seq].role == role]

    def claim(self, visit: Visit) -> Claim:
        call = VisitCall(RUN, visit.node, visit.seq, visit.attempt, "agent", "digest", visit.role)
        claim = self.store.visits.claim(call, worker="w", token=str(visit.seq), lease_ms=60_000, wanted=())
        assert isinstance(claim, Claim)
        return claim

    def work(self, visit: Visit, calls: tuple[ToolCall, ...] = (), **delta: Any) -> StoredConversation:
        """Claim a visit and deliver; what had been said when it was claimed."""
        talk = self.claim(visit).talk
        assert self.deliver(visit, calls, **delta)
        self.advance.run_once()
        return talk

    def deliver(self, visit: Visit, calls: tuple[ToolCall, ...] = (), **delta: Any) -> bool:
        """Deliver for a claimed visit. A turn with a follow-up goes on."""
        call = VisitCall(RUN, visit.node, visit.seq, visit.attempt, "agent", "digest", visit.role)
        texts = {key: json.dumps(value) for key, value in delta.items()}
        header = ResultHeader(ok=True, keys=tuple(delta), calls=calls, goes_on=FOLLOW_UP in delta, worker="w")
        return self.store.visits.deliver(call, header, texts, worker="w", token=str(visit.seq))


def test_each_turn_gets_all_earlier_messages_and_each_call_the_reply_that_requests_it(store: Store) -> None:
    world = World(store)
    calls = (ToolCall("c1", "a", "scripts"), ToolCall("c2", "b", "llm"), ToolCall("c3", "nope"))
    [turn] = world.visits("turn")
    said = {MESSAGES: TOLD, ANSWER: REPLY, f"{RESULT}.2": "no such tool"}
    assert world.work(turn, calls, **said) == SILENCE
    first, second = world.visits("tool")
    assert [world.claim(visit).part for visit in (first, second)] == [first.part, second.part]
    assert world.work(second, _result="two") == StoredConversation("", ((json.dumps(REPLY), ()),))
    world.work(first, _result={"x": 1})
    [turn] = world.visits("turn")
    turns = ((json.dumps(REPLY), ('{"x": 1}', '"two"', '"no such tool"')),)
    assert world.work(turn, calls[:1], _answer={"role": "assistant"}) == StoredConversation(json.dumps(TOLD), turns)
    world.work(world.visits("tool")[0], _result=None)
    [turn] = world.visits("turn")
    turns = (*turns, ('{"role": "assistant"}', ("null",)))
    assert world.work(turn, said="the end") == StoredConversation(json.dumps(TOLD), turns)
    assert (store.runs.output(RUN), store.runs.state(RUN)) == ("the end", {"said": "the end"})
    parts = [
        (step.role, step.part and step.part.turn, step.part and step.part.tool) for step in store.runs.history(RUN)
    ]
    assert parts[1:] == [
        ("turn", 0, ""), ("tool", 0, "b"), ("tool", 0, "a"), ("turn", 1, ""), ("tool", 1, "a"), ("turn", 2, ""),
        ("node", None, None), ("node", None, None),
    ]  # fmt: skip


FURTHER = {"role": "user", "content": "Go on."}
SO_FAR = {"role": "assistant", "content": "so far"}


def test_a_continued_turn_gives_later_turns_the_continuation_message(store: Store) -> None:
    world = World(store)
    calls = (ToolCall("c1", "a", "scripts"),)
    world.work(world.visits("turn")[0], **{MESSAGES: TOLD, ANSWER: SO_FAR, FOLLOW_UP: FURTHER})
    turns = ((json.dumps(SO_FAR), ()),)
    [turn] = world.visits("turn")
    assert world.work(turn, calls, _answer=REPLY) == StoredConversation(
        json.dumps(TOLD), turns, {0: json.dumps(FURTHER)}
    )
    world.work(world.visits("tool")[0], _result="one")
    world.work(world.visits("turn")[0], **{ANSWER: SO_FAR, FOLLOW_UP: FURTHER | {"n": 2}})
    [turn] = world.visits("turn")
    turns = (*turns, (json.dumps(REPLY), ('"one"',)), turns[0])
    follow_ups = {0: json.dumps(FURTHER), 2: json.dumps(FURTHER | {"n": 2})}
    assert world.work(turn, said="the end") == StoredConversation(json.dumps(TOLD), turns, follow_ups)
    assert store.runs.state(RUN) == {"said": "the end"}
    assert not store.partitions._client.exists(store.keys.of_run(RUN).items)
    assert [step.goes_on for step in store.runs.history(RUN) if step.role == "turn"] == [True, False, True, False]


def test_announcements_besides_results_are_given_to_later_turns(store: Store) -> None:
    world = World(store)
    world.work(world.visits("turn")[0], (ToolCall("c1", "a", "scripts"),), **{MESSAGES: TOLD, ANSWER: REPLY})
    world.work(world.visits("tool")[0], _result="one")
    store._client.hset(store.keys.of_run(RUN).items, "1.0.user", "look")
    [turn] = world.visits("turn")
    turns = ((json.dumps(REPLY), ('"one"',)),)
    assert world.work(turn, said="the end") == StoredConversation(json.dumps(TOLD), turns, announced={0: "look"})
    assert not store.partitions._client.exists(store.keys.of_run(RUN).items)


def test_a_continued_reply_counts_once_even_if_delivered_repeatedly(store: Store) -> None:
    world = World(store)
    said = {MESSAGES: TOLD, ANSWER: SO_FAR, FOLLOW_UP: FURTHER}
    [first] = world.visits("turn")
    world.claim(first)
    assert world.deliver(first, **said)
    assert world.deliver(first, **said | {FOLLOW_UP: "again"}), "a delivery whose answer was lost is told the same"
    world.advance.run_once()
    assert not world.deliver(first, **said | {FOLLOW_UP: "late"})
    world.advance.run_once()
    [second] = world.visits("turn")
    assert (second.part and second.part.turn, second.attempt) == (1, 1)
    assert world.claim(second).talk == StoredConversation(
        json.dumps(TOLD), ((json.dumps(SO_FAR), ()),), {0: json.dumps(FURTHER)}
    )


def test_a_loop_that_continued_up_to_its_last_turn_leaves_no_conversation(store: Store) -> None:
    world = World(store, LOOP.replace("prompt: hi,", "prompt: hi, max_iterations: 2,"))
    for number in range(2):
        said = {ANSWER: SO_FAR, FOLLOW_UP: FURTHER} | ({} if number else {MESSAGES: TOLD})
        world.work(world.visits("turn")[0], **said)
    assert store.runs.output(RUN) == "LLM node failed: llm node hit max_iterations (2) before LLM concluded"
    assert not store.partitions._client.exists(store.keys.of_run(RUN).items)


def test_a_run_that_ends_in_the_middle_of_a_turn_leaves_no_conversation(store: Store) -> None:
    world = World(store)
    items = store.keys.of_run(RUN).items
    client = store.partitions._client
    [turn] = world.visits("turn")
    calls = (ToolCall("c1", "a", "scripts"), ToolCall("c2", "b", "llm"))
    world.work(turn, calls, **{MESSAGES: TOLD, ANSWER: REPLY})
    world.work(world.visits("tool")[1], _result="two")
    assert set(client.hgetall(items)) == {"1.first", "1.0", "1.0.1"}
    store.runs.cancel(RUN)
    world.advance.run_once()
    assert not client.exists(items)


def test_a_turn_reports_its_limit_and_a_call_its_item(store: Store) -> None:
    world = World(
        store,
        """
name: g
start: m
nodes:
  m: {type: map, over: "{{xs}}", as: x, branch: ask, collect_into: all, next: e}
  ask: {type: llm, prompt: hi, tools: [a]}
  e: {type: end}
""",
        {"xs": "[1, 2]"},
    )
    one, other = world.visits("turn")
    world.work(one, (ToolCall("c1", "a", "scripts"),), **{MESSAGES: TOLD, ANSWER: REPLY})
    call = VisitCall(RUN, "ask", other.seq, 1, "agent", "digest", "turn")
    world.claim(other)
    header = ResultHeader(ok=False, error="limit 'm'", error_kind="limit", later_ms=store.now_ms() + 60_000)
    assert store.visits.deliver(call, header, {}, worker="w", token=str(other.seq))
    world.advance.run_once()
    info = store.runs.info(RUN)
    assert info is not None
    found = {(visit.role, visit.item): visit.reason for visit in info.visits if visit.part}
    assert {key: reason.code for key, reason in found.items()} == {
        ("tool", (1, 0)): "queued",
        ("turn", (1, 1)): "limit",
    }
    assert found["turn", (1, 1)].error == "limit 'm'"


def test_an_error_that_quotes_half_a_surrogate_pair_is_delivered(store: Store) -> None:
    world = World(store)
    [turn] = world.visits("turn")
    world.claim(turn)
    call, header = (
        VisitCall(RUN, "ask", turn.seq, 1, "agent", "digest", "turn"),
        ResultHeader(ok=False, error="a\ud800"),
    )
    assert store.visits.deliver(call, header, {"said": '"no"'}, worker="w", token=str(turn.seq))
    world.advance.run_once()
    assert store.runs.history(RUN)[-3].error == "a?"


def test_a_conversation_of_sixty_turns_with_a_hundred_calls_each_is_kept_given_and_removed(store: Store) -> None:
    world = World(store, LOOP.replace("prompt: hi,", "prompt: hi, max_iterations: 100,"))
    calls = tuple(ToolCall(f"c{number}", "a") for number in range(100))
    for turn in range(60):
        said = {f"{RESULT}.{number}": f"{turn}.{number}" for number in range(100)} | {ANSWER: REPLY | {"n": turn}}
        world.work(world.visits("turn")[0], calls, **said, **({} if turn else {MESSAGES: TOLD}))
    big = "x" * 4_000_000
    world.work(world.visits("turn")[0], (ToolCall("c", "a"),), **{ANSWER: REPLY, f"{RESULT}.0": big})
    talk = world.work(world.visits("turn")[0], said="the end")
    assert [(json.loads(reply).get("n"), len(results)) for reply, results in talk.turns[:-1]] == [
        (turn, 100) for turn in range(60)
    ]
    assert [json.loads(text) for text in talk.turns[59][1]] == [f"59.{number}" for number in range(100)]
    assert talk.turns[60][1] == (json.dumps(big),)
    assert store.runs.output(RUN) == "the end"
    assert not store.partitions._client.exists(store.keys.of_run(RUN).items)
