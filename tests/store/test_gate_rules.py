"""Who may answer a gate, and how many must: checked in Redis where the answer is taken, and kept with the gate."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sleipnir.client.access import Access
from sleipnir.client.run import Run
from sleipnir.errors import AnswerRefused, GateAnswered, GateError
from sleipnir.runs.actor import Person
from sleipnir.runs.handling import VoiceCount
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from tests.store.keepers import RedisKeeper, graphs_of

RUN = "run000000001"
ASKS = """
name: asks
version: sleipnir/1
start: sure
nodes:
  sure:
    type: approval
    question: "sure?"
    options: ["yes", "no"]
    routes: {"yes": done, "no": kept}
    on_other: kept
    RULES
  done: {type: end, output: done}
  kept: {type: end, output: kept}
  late: {type: end, output: late}
"""


class World:
    """A run of a graph with such rules, and people."""

    def __init__(self, store: Store, rules: str, author: str | None = None) -> None:
        self.store, self.keeper = store, RedisKeeper(store)
        self.keeper.graphs |= graphs_of(b1=ASKS.replace("RULES", rules))
        spec = RunSpec("agent", "b1", by_version=True, author=author)
        self.keeper.create(RUN, spec, {"initial_prompt": ""})
        self.keeper.go_on()

    def of(self, name: str, role: str | None = "approver") -> Run:
        store = self.store.acting_as(f"{name}@desk (api)", Person(name, role))
        return Run(store, RUN, Settings(redis_url=self.store.url, broker_url=self.store._settings.broker_url))

    def output(self) -> str | None:
        self.keeper.go_on()
        return self.of("anna").output


def test_only_those_who_are_named_or_have_the_role_may_answer(store: Store) -> None:
    world = World(store, "assignees: [anna, bob]\n    role: operator")
    with pytest.raises(
        AnswerRefused, match="is not for carl; it is for anna, bob, people with the role operator"
    ) as no:
        world.of("carl").answer("yes")
    assert (no.value.why, no.value.assignees, no.value.role) == ("people", ("anna", "bob"), "operator")
    with pytest.raises(AnswerRefused):
        world.of("dora", "viewer").answer("yes")
    assert world.output() is None
    assert world.of("eve", "admin").answer("yes") is None
    assert world.output() == "done"


def test_who_has_the_password_of_redis_has_the_role_of_its_user_or_that_of_an_operator(store: Store) -> None:
    world = World(store, "role: admin")
    with pytest.raises(AnswerRefused):
        world.of("root", None).answer("yes")
    Access(store, "test").add_user("root", None, {"default": "approver"})
    with pytest.raises(AnswerRefused):
        world.of("root", None).answer("yes")
    Access(store, "test").add_user("anna", None, {"*": "admin"})
    assert world.of("anna", None).answer("yes") is None
    assert world.output() == "done"


def test_the_author_of_a_run_may_not_answer_even_as_an_assignee(store: Store) -> None:
    world = World(store, "assignees: [anna, bob]\n    not_author: true", author="anna")
    with pytest.raises(AnswerRefused, match="anna, who has submitted the run") as no:
        world.of("anna", "admin").answer("yes")
    assert no.value.why == "author"
    world.of("bob").answer("yes")
    assert world.output() == "done"


def test_a_required_comment_is_kept_with_the_answer(store: Store) -> None:
    world = World(store, "comment: required")
    for nothing in (None, "", "  "):
        with pytest.raises(AnswerRefused, match="needs a comment"):
            world.of("anna").answer("yes", comment=nothing)
    world.of("anna").answer("yes", comment="it is cheap")
    assert world.output() == "done"
    (step,) = (step for step in world.of("anna").history() if step.answer)
    assert (step.answer, step.by, step.reason) == ("yes", "anna@desk (api)", "it is cheap")


def test_several_people_must_give_the_same_answer(store: Store) -> None:
    world = World(store, "quorum: 2")
    assert world.of("anna").answer("yes", comment="fine") == VoiceCount(1, 2)
    assert world.of("anna").answer("yes", comment="fine") == VoiceCount(1, 2), "a person has one voice"
    assert world.of("bob").answer("no") == VoiceCount(1, 2), "they do not agree"
    assert world.output() is None
    (gate,) = world.of("anna").gates()
    assert [(voice.person, voice.answer, voice.comment) for voice in gate.handling.voices] == [
        ("anna", "yes", "fine"), ("bob", "no", None),
    ]  # fmt: skip
    assert world.of("bob").answer("yes") is None, "the second answer of a person replaces the first"
    with pytest.raises(GateAnswered, match="already answered with 'yes' by bob@desk") as late:
        world.of("carl").answer("no", gate)
    assert late.value.by == "bob@desk (api)"
    assert late.value.at_ms > gate.opened_ms
    assert world.output() == "done"
    (step,) = (step for step in world.of("anna").history() if step.answer)
    assert [(voice.person, voice.answer) for voice in step.voices] == [("anna", "yes"), ("bob", "yes")]
    assert [entry.what for entry in store.access.entries()] == [
        "question voiced", "question voiced", "question voiced", "run answered",
    ]  # fmt: skip


def test_of_people_who_answer_at_once_each_is_counted_once(store: Store) -> None:
    world = World(store, "quorum: 5")
    with ThreadPoolExecutor(5) as people:
        counts = list(people.map(lambda name: world.of(name).answer("yes"), "abcde"))
    assert sorted(count.voices for count in counts if count) == [1, 2, 3, 4]
    assert counts.count(None) == 1
    assert world.output() == "done"


def test_voices_do_not_keep_a_gate_from_expiring(store: Store) -> None:
    world = World(store, "quorum: 2\n    timeout: 60\n    on_timeout: late")
    (gate,) = world.of("anna").gates()
    assert gate.due_ms == gate.opened_ms + 60_000
    world.of("anna").answer("yes")
    world.of("bob").answer("no")
    world.keeper.let_timers_fire()
    assert world.output() == "late"
    with pytest.raises(GateError, match="needs no answer any more"):
        world.of("bob").answer("yes", gate)
    assert store._client.hgetall(store.keys.of_run(RUN).gates) == {}


def test_an_answer_that_an_earlier_release_took_without_a_check_is_asked_for_again(store: Store) -> None:
    world = World(store, "assignees: [anna]")
    (gate,) = world.of("anna").gates()
    keys, partition = store.keys.of_run(RUN), store.keys.of_partition(store.keys.partition_of(RUN))
    store._client.hset(keys.gates, f"{gate.seq}:answer", '"yes"')
    entry = {"t": "answered", "run": RUN, "seq": gate.seq, "attempt": 1, "text": '"yes"', "by": "eve@desk (cli)"}
    store._client.xadd(partition.inbox, entry)  # type: ignore[arg-type]
    assert world.output() is None
    (again,) = world.of("anna").gates()
    assert "does not know who may answer" in again.question
    with pytest.raises(AnswerRefused):
        world.of("eve").answer("yes")
    world.of("anna").answer("no")
    assert world.output() == "kept"


@pytest.fixture(autouse=True)
def _no_users(store: Store) -> Iterator[None]:
    yield
    store._client.delete(store.keys.access.users)
