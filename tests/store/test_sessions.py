"""Sessions on a real Redis: one run at a time, what it adds with the commit that completes it, and nothing else."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sleipnir.errors import SessionBusy, UsageError
from sleipnir.graph.load import load_graph
from sleipnir.messages import ANSWER, INSTEAD, MESSAGES, SAID, ResultHeader, ToolCall, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import TEMPORARY_MS, SessionName
from sleipnir.runs.visits import Visit
from sleipnir.store.scripts import run_batch
from sleipnir.store.sessions import _CHANGE
from sleipnir.store.store import Store
from sleipnir_scheduler.services.advance import Advance
from tests.store.test_advance import advance_of
from tests.store.test_loops import LOOP, REPLY, TOLD

LOOP_THEN_SCRIPT = LOOP.replace("next: e,", "next: check,") + (
    "  check: {type: script, script: check.sh, next: e}\nsettings: {max_loop_iterations: 1}\n"
)
DESK = SessionName("agent", "desk")
SPEC = RunSpec("agent", "digest", session="desk")
QUESTION = {"role": "user", "content": "Wo?"}
REPLIED = {"role": "assistant", "content": "Dort, in 3 {} []"}


class Chat:
    """Runs of one session."""

    def __init__(self, store: Store, spec: RunSpec = SPEC, graph: str = LOOP, *, first: int = 0) -> None:
        self.store, self.spec = store, spec
        name = SessionName.of(spec)
        assert name is not None
        self.name = name
        self.advance: Advance = advance_of(store, graph)
        partition = store.keys.partition_of(str(self.name))
        ids = (f"run{number:09}" for number in itertools.count(first))
        self._ids = (run for run in ids if store.keys.partition_of(run) == partition)

    def start(self) -> str:
        run = next(self._ids)
        assert self.store.runs.create(run, self.spec, {})
        self.advance.run_once()
        return run

    def visit(self, run: str) -> Visit:
        """The one that a worker has to do."""
        [visit] = [visit for visit in self.store.partitions.load([run])[run].frontier.values() if visit.queue]
        return visit

    def talk(self, run: str) -> StoredConversation:
        return self.claim(self.visit(run), run).talk

    def claim(self, visit: Visit, run: str) -> Claim:
        call = VisitCall(run, visit.node, visit.seq, visit.attempt, "agent", self.spec.bundle, visit.role)
        claim = self.store.visits.claim(call, worker="w", token="t", lease_ms=60_000, wanted=())
        assert isinstance(claim, Claim)
        return claim

    def deliver(self, run: str, *, calls: tuple[ToolCall, ...] = (), next: str | None = None, **delta: Any) -> None:
        visit = self.visit(run)
        self.claim(visit, run)
        call = VisitCall(run, visit.node, visit.seq, visit.attempt, "agent", self.spec.bundle, visit.role)
        texts = {key: value if key == SAID else json.dumps(value) for key, value in delta.items()}
        header = ResultHeader(ok=True, keys=tuple(set(delta) - {SAID}), calls=calls, next=next, worker="w")
        assert self.store.visits.deliver(call, header, texts, worker="w", token="t")
        self.advance.run_once()

    def say(self, run: str, *messages: dict[str, Any], instead: bool = False) -> None:
        """The run's last turn, which says what the session gets."""
        lines = [INSTEAD] if instead else []
        self.deliver(run, said="fine", **{SAID: "\n".join([*lines, *map(json.dumps, messages)])})

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.store.sessions.messages(self.name)


def test_a_completed_run_adds_its_messages_and_the_next_one_begins_with_them(store: Store) -> None:
    chat = Chat(store)
    first = chat.start()
    assert chat.talk(first) == StoredConversation(history="[]")
    chat.say(first, QUESTION, REPLIED)
    assert store.runs.info(first).status == "completed"
    assert (chat.messages, store.runs.state(first)) == ([QUESTION, REPLIED], {"said": "fine"})
    assert [step.keys for step in store.runs.history(first) if step.role == "node"][1] == ("said",)
    second = chat.start()
    assert json.loads(chat.talk(second).history) == [QUESTION, REPLIED]
    chat.say(second, {"role": "user", "content": "in sum"}, instead=True)
    assert chat.messages == [{"role": "user", "content": "in sum"}]


def test_a_session_keeps_a_number_of_messages_and_drops_complete_oldest_turns(store: Store) -> None:
    """Finding C25 of the second review: the messages of a session were without a bound."""
    store.partitions._session_messages = 5
    chat = Chat(store)
    turns = [[{"role": "user", "content": str(n)}, {"role": "assistant", "content": str(n)}] for n in range(4)]
    for turn in turns[:2]:
        chat.say(chat.start(), *turn)
    [info] = store.sessions.page("agent", None, 500, None)
    assert (chat.messages, info.dropped) == ([*turns[0], *turns[1]], 0)
    for turn in turns[2:]:
        chat.say(chat.start(), *turn)
    [info] = store.sessions.page("agent", None, 500, None)
    assert (chat.messages, info.messages, info.dropped) == ([*turns[2], *turns[3]], 4, 4)


def test_only_the_first_turn_gets_the_history(store: Store) -> None:
    chat = Chat(store)
    run = chat.start()
    chat.deliver(run, calls=(ToolCall("c1", "a"), ToolCall("c2", "b")), **{MESSAGES: TOLD, ANSWER: REPLY})
    talk = chat.talk(run)
    assert (talk.history, json.loads(talk.told)) == ("", TOLD)


def test_a_session_takes_one_run_at_a_time_and_names_it(store: Store) -> None:
    chat = Chat(store)
    run = chat.start()
    with pytest.raises(SessionBusy, match=f"'desk' of agent 'agent' is busy with run {run}.*sleipnir cancel {run}"):
        chat.start()
    assert store.runs.create(run, SPEC, {}) is False  # the same submit again is no second run
    [info] = store.sessions.page("agent", None, 500, None)
    assert (info.name, info.run, info.messages) == ("desk", run, 0)
    chat.say(run, QUESTION)
    chat.start()


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_run_that_does_not_complete_adds_nothing_and_frees_the_session(store: Store, how: str) -> None:
    chat = Chat(store, graph=LOOP_THEN_SCRIPT)
    run = chat.start()
    chat.say(run, QUESTION)  # and then comes a script
    assert chat.messages == []
    if how == "cancelled":
        store.runs.cancel(run)
        chat.advance.run_once()
    else:
        chat.deliver(run, next="check")
    assert store.runs.info(run).status == how
    assert chat.messages == []
    assert chat.talk(chat.start()).history == "[]"


def test_a_retried_run_has_the_session_again_and_adds_its_messages(store: Store) -> None:
    chat = Chat(store, graph=LOOP_THEN_SCRIPT)
    run = chat.start()
    chat.say(run, QUESTION, REPLIED)
    chat.deliver(run, next="check")
    assert (store.runs.info(run).status, chat.messages) == ("failed", [])
    store.runs.retry(run)
    with pytest.raises(SessionBusy):
        chat.start()
    chat.advance.run_once()
    with pytest.raises(SessionBusy):
        chat.start()
    chat.deliver(run)
    assert (store.runs.info(run).status, chat.messages) == ("completed", [QUESTION, REPLIED])
    chat.start()


def test_a_failed_run_cannot_be_retried_once_its_session_has_continued(store: Store) -> None:
    chat = Chat(store, graph=LOOP_THEN_SCRIPT)
    run = chat.start()
    chat.say(run, QUESTION)
    chat.deliver(run, next="check")
    other = chat.start()
    for _ in range(2):
        with pytest.raises(UsageError, match="its session 'desk' has continued without it"):
            store.runs.retry(run)
    chat.say(other, REPLIED)
    chat.deliver(other)
    assert (store.runs.info(run).status, chat.messages) == ("failed", [REPLIED])


def test_a_temporary_session_dies_a_day_after_its_last_run_and_not_while_it_has_one(store: Store) -> None:
    chat = Chat(store, RunSpec("agent", "digest", session="temp-1"))
    keys = store.keys.of_session(chat.name)
    chat.say(chat.start(), QUESTION)
    for key in (keys.session, keys.messages):
        assert 0 < store.runs._client.pttl(key) <= TEMPORARY_MS
    assert store.sessions.page("agent", None, 500, None) == []
    assert store.sessions.add(chat.name, [REPLIED])
    run = chat.start()
    assert [store.runs._client.pttl(key) for key in (keys.session, keys.messages)] == [-1, -1]
    chat.say(run, QUESTION)
    assert 0 < store.runs._client.pttl(keys.messages) <= TEMPORARY_MS


def test_a_session_is_added_to_and_removed_only_while_it_has_no_run(store: Store) -> None:
    chat = Chat(store)
    assert (store.sessions.add(DESK, [QUESTION]), store.sessions.remove(DESK)) == (False, False)
    run = chat.start()
    with pytest.raises(SessionBusy):
        store.sessions.add(DESK, [QUESTION])
    with pytest.raises(SessionBusy):
        store.sessions.remove(DESK)
    chat.say(run, QUESTION)
    assert store.sessions.add(DESK, [REPLIED])
    assert chat.messages == [QUESTION, REPLIED]
    assert store.sessions.remove(DESK)
    assert (chat.messages, store.sessions.info(DESK), store.sessions.page("agent", None, 500, None)) == ([], None, [])


DYNAMIC = load_graph("name: agent\ndynamic_instructions: true", "config.yaml", "agent")


class Instructed(Chat):
    """Runs of an agent whose instructions are dynamic. `makes` are the runs that have made theirs."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        graphs: Any = SimpleNamespace(get=lambda *_: DYNAMIC)
        self.advance._graphs, self.makes = graphs, list[str]()

    def says(self, spec: RunSpec, instructions: str, *, ends: bool = True) -> str:
        """What a run is told, which makes these if it has to make some."""
        self.spec = spec
        run = self.start()
        if self.visit(run).node == "instructions":
            self.makes.append(run)
            self.deliver(run, _instructions=instructions)
        told: str = self.store.runs.state(run)["_instructions"]
        if ends:
            self.say(run, QUESTION)
        else:
            self.store.runs.cancel(run)
            self.advance.run_once()
        return told


@pytest.mark.one_redis
def test_dynamic_instructions_are_made_once_for_a_session(store: Store) -> None:
    chat = Instructed(store)
    assert chat.says(SPEC, "Be brief.", ends=False) == "Be brief."
    assert chat.says(SPEC, "Be kind.") == "Be kind."  # the run before has left nothing
    assert chat.says(SPEC, "Be quick.") == "Be kind."
    assert chat.says(replace(SPEC, session="temp-1"), "Be loud.") == "Be loud."
    last = replace(SPEC, variables={"name": "Ada"})
    assert chat.says(last, "Be bold.") == "Be bold."
    assert chat.says(last, "Be sad.") == "Be bold."
    assert chat.says(replace(last, bundle="edited"), "Be sly.") == "Be sly."
    assert len(chat.makes) == 5
    run = chat.start()
    assert [step.keys for step in store.runs.history(run)] == [("_instructions",)]
    chat.say(run, QUESTION)
    assert store.sessions.remove(DESK)
    assert chat.says(chat.spec, "Be new.") == "Be new."


def test_a_run_without_a_session_makes_its_own_instructions(store: Store) -> None:
    chat = Instructed(store)
    for number in range(2):
        run = f"alone000000{number}"
        assert store.runs.create(run, RunSpec("agent", "digest"), {})
        chat.advance.run_once()
        assert chat.visit(run).node == "instructions"


def test_runs_without_a_session_keep_a_state_key_of_any_name(store: Store) -> None:
    chat = Chat(store)
    assert store.runs.create("other0000001", RunSpec("agent", "digest"), {})
    chat.advance.run_once()
    chat.deliver("other0000001", said="fine", **{SAID: '"kept"'})
    assert store.runs.state("other0000001") == {"said": "fine", SAID: "kept"}


def test_a_change_that_is_repeated_as_its_reply_was_lost_is_made_once(store: Store) -> None:
    """Finding C23: redis-py repeats the script. Messages were added twice, and a removal said there was no session."""
    chat = Chat(store)
    chat.say(chat.start(), QUESTION)
    before = len(store.sessions.messages(DESK))
    keys, slots = store.keys.of_session(DESK), store.keys.of_partition(store.keys.partition_of(str(DESK)))
    names = {"session": keys.session, "messages": keys.messages, "sessions": slots.sessions}
    add = _CHANGE.vector(names, {"name": str(DESK), "remove": 0, "token": "t1"}, [json.dumps(QUESTION)])
    assert run_batch(store._client, _CHANGE, [add, add]) == [[1, ""], [1, ""]]
    assert len(store.sessions.messages(DESK)) == before + 1
    remove = _CHANGE.vector(names, {"name": str(DESK), "remove": 1, "token": "t2"})
    assert run_batch(store._client, _CHANGE, [remove, remove]) == [[1, ""], [1, ""]]
    assert (store.sessions.info(DESK), store.sessions.all()) == (None, [])
    assert 0 < store._client.pttl(keys.session) <= 60_000
    assert not store.sessions.remove(DESK)
    chat.start()
    assert store._client.ttl(keys.session) == -1


def test_sessions_of_two_namespaces_share_nothing_but_their_name(store: Store) -> None:
    spec = replace(SPEC, namespace="acme")
    own, other = Chat(store), Chat(store, spec.naming_in_its_namespace(), first=1_000)
    runs = own.start(), other.start()
    with pytest.raises(SessionBusy):
        other.start()
    own.say(runs[0], QUESTION)
    other.say(runs[1], REPLIED)
    assert (own.messages, other.messages) == ([QUESTION], [REPLIED])
    assert json.loads(own.talk(own.start()).history) == [QUESTION]
    seen = {
        of: [info.namespace for info in store.sessions.page("agent", of, 500, None)]
        for of in ("default", "acme", "none")
    }
    assert seen == {"default": ["default"], "acme": ["acme"], "none": []}
    assert store.sessions.remove(other.name) and store.sessions.info(own.name) is not None
    assert store.sessions.info(other.name) is None


def test_a_run_of_an_earlier_release_goes_on_in_the_session_that_it_began_in(store: Store) -> None:
    chat = Chat(store, replace(SPEC, namespace="acme"))
    chat.say(chat.start(), REPLIED)
    assert (chat.name, store.sessions.messages(DESK)) == (DESK, [REPLIED])
