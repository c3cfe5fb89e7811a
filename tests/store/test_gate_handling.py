"""People claim, release, assign and snooze open questions, and find those that they want to see."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sleipnir.client.access import Access
from sleipnir.client.gate_inbox import GateInbox
from sleipnir.errors import AnswerRefused, GateAnswered, GateClaimed, GateError, UsageError
from sleipnir.runs.actor import Person
from sleipnir.runs.handling import MOST_COMMENT, MOST_COMMENTS, VoiceCount
from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import GateInfo
from sleipnir.settings import Settings
from sleipnir.store.runs import gate_lists
from sleipnir.store.store import Store
from tests.store.keepers import RedisKeeper, graphs_of
from tests.store.test_gate_rules import ASKS, RUN, World
from tests.waiting import wait_until


def inbox(store: Store, name: str, role: str | None = "approver", **settings: object) -> GateInbox:
    of = store.acting_as(f"{name}@desk (api)", Person(name, role))
    return GateInbox(of, Settings(redis_url=store.url, broker_url=store._settings.broker_url, **settings))  # type: ignore[arg-type]


def gate_of(store: Store) -> GateInfo:
    [gate] = store.runs.gates(RUN)
    return gate


def audited(store: Store) -> list[tuple[str, str, object, object]]:
    return [
        (entry.what, entry.by, entry.before, entry.after)
        for entry in Access(store, "test").audit()
        if entry.what.startswith("question")
    ]


def test_a_claim_holds_others_off_until_it_is_taken_over_or_released(store: Store) -> None:
    world = World(store, "")
    gate = gate_of(store)
    until_ms = inbox(store, "anna").claim(gate)
    assert 0 < until_ms - store.now_ms() <= 900_000
    with pytest.raises(GateClaimed, match=r"anna has claimed question 1 .* take it over") as held:
        world.of("bob").answer("yes")
    assert (held.value.person, held.value.until_ms) == ("anna", until_ms)
    for refused in (inbox(store, "bob").claim, inbox(store, "bob").release):
        with pytest.raises(GateClaimed):
            refused(gate)
    inbox(store, "bob").claim(gate, take_over=True)
    assert gate_of(store).handling.holder(store.now_ms()) == "bob"
    inbox(store, "bob").release(gate)
    inbox(store, "bob").release(gate)
    assert gate_of(store).handling.holder(store.now_ms()) is None
    assert world.of("carl").answer("yes") is None
    question = {"question": 1, "attempt": 1}
    assert audited(store) == [
        ("question claimed", "anna@desk (api)", None, question),
        ("question claimed", "bob@desk (api)", {"claimed_by": "anna"}, question),
        ("question released", "bob@desk (api)", {"claimed_by": "bob"}, question),
    ]
    with pytest.raises(GateAnswered):
        inbox(store, "anna").claim(gate)
    assert world.output() == "done"
    with pytest.raises(GateError, match=r"has no open question|needs no answer"):
        inbox(store, "anna").claim(gate)


def test_a_claim_ends_by_itself_and_the_one_who_has_it_can_make_it_longer(store: Store) -> None:
    world = World(store, "")
    gate = gate_of(store)
    first_ms = inbox(store, "anna").claim(gate, for_s=1)
    second_ms = inbox(store, "anna").claim(gate, for_s=1)
    assert second_ms >= first_ms
    assert [what for what, *_ in audited(store)] == ["question claimed"]
    wait_until(lambda: store.now_ms() > second_ms, "the claim has ended")
    assert world.of("bob").answer("yes") is None
    wait_until(lambda: not store._client.keys(f"{store.keys.prefix}:*:gates:claimed"), "what lists claims has gone")
    with pytest.raises(UsageError, match="lasts from a second to 24 h"):
        inbox(store, "anna").claim(gate, for_s=10**6)


def test_of_ten_who_claim_at_once_one_holds_it(store: Store) -> None:
    World(store, "")
    gate = gate_of(store)

    def claim(number: int) -> bool:
        try:
            inbox(store, f"p{number}").claim(gate)
        except GateClaimed:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(claim, range(10))) == 1


def test_who_has_given_a_voice_holds_the_question_no_more(store: Store) -> None:
    world = World(store, "quorum: 2")
    inbox(store, "anna").claim(gate_of(store))
    assert world.of("anna").answer("yes") == VoiceCount(1, 2)
    assert world.of("bob").answer("yes") is None


def test_who_may_not_answer_can_neither_claim_nor_get_a_question(store: Store) -> None:
    World(store, "assignees: [anna, bob]\n    not_author: true", author="bob")
    gate = gate_of(store)
    with pytest.raises(AnswerRefused, match="is not for carl; it is for anna, bob"):
        inbox(store, "carl").claim(gate)
    with pytest.raises(AnswerRefused, match="is not for carl"):
        inbox(store, "anna").assign(gate, "carl")
    with pytest.raises(AnswerRefused, match="bob, who has submitted the run"):
        inbox(store, "anna").assign(gate, "bob")
    inbox(store, "carl").assign(gate, "anna")
    inbox(store, "carl").assign(gate, "anna")
    assert (assigned := gate_of(store).handling.assigned) is not None
    assert (assigned.person, assigned.by) == ("anna", "carl@desk (api)")
    inbox(store, "carl").assign(gate, None)
    assert gate_of(store).handling.assigned is None
    assert [(before, after) for _, _, before, after in audited(store)] == [
        (None, {"question": 1, "attempt": 1, "assigned_to": "anna"}),
        ({"assigned_to": "anna"}, {"question": 1, "attempt": 1, "assigned_to": None}),
    ]


def test_a_question_is_assigned_to_users_only_where_there_are_users(store: Store) -> None:
    World(store, "")
    gate = gate_of(store)
    inbox(store, "anna").assign(gate, "whoever")
    Access(store, "test").add_user("bob", None, {"default": "approver"})
    with pytest.raises(UsageError, match="there is no user 'whoeverelse'"):
        inbox(store, "anna").assign(gate, "whoeverelse")
    with pytest.raises(UsageError, match="is no name of a person"):
        inbox(store, "anna").assign(gate, "a b")
    inbox(store, "anna").assign(gate, "bob")


def test_the_end_of_a_login_releases_what_its_person_holds(store: Store) -> None:
    World(store, "")
    gate = gate_of(store)
    inbox(store, "anna").claim(gate)
    assert inbox(store, "bob").release_all() == 0
    assert inbox(store, "anna").release_all() == 1
    assert gate_of(store).handling.holder(store.now_ms()) is None


def test_a_snooze_hides_a_question_from_one_person_until_its_time(store: Store) -> None:
    World(store, "")
    gate = gate_of(store)
    anna, bob = inbox(store, "anna"), inbox(store, "bob")
    anna.snooze(gate, store.now_ms() + 1_500)
    assert (len(anna.page(view="role")), len(anna.page(view="snoozed")), len(anna.page())) == (0, 1, 1)
    assert (len(bob.page(view="role")), anna.counts().snoozed, anna.counts().role) == (1, 1, 0)
    wait_until(lambda: len(anna.page(view="role")) == 1, "it is seen again")
    assert len(anna.page(view="snoozed")) == 0
    anna.snooze(gate, store.now_ms() + 60_000)
    anna.snooze(gate, None)
    assert len(anna.page(view="role")) == 1
    assert [what for what, *_ in audited(store)] == ["question snoozed"] * 3
    with pytest.raises(UsageError, match="within the next 366 days"):
        anna.snooze(gate, store.now_ms() - 1)
    assert not store._client.keys(f"{store.keys.prefix}:*:gates:snoozed:*")


def test_comments_are_kept_with_the_question_and_then_in_the_journal(store: Store) -> None:
    world = World(store, "assignees: [anna]")
    gate = gate_of(store)
    inbox(store, "carl").comment(gate, "  The supplier says yes.\nSee ticket 4711. ")
    inbox(store, "anna").claim(gate)
    inbox(store, "carl").comment(gate, "The supplier says yes.\nSee ticket 4711.")
    inbox(store, "anna").comment(gate, "thanks")
    comments = gate_of(store).handling.comments
    assert [(each.person, each.by, each.text) for each in comments] == [
        ("carl", "carl@desk (api)", "The supplier says yes.\nSee ticket 4711."),
        ("anna", "anna@desk (api)", "thanks"),
    ]
    assert world.of("anna").answer("yes") is None
    with pytest.raises(GateAnswered):
        inbox(store, "carl").comment(gate, "too late")
    assert world.output() == "done"
    steps = [(step.kind, step.by, step.reason, step.gate) for step in store.runs.history(RUN) if step.by]
    assert steps[:2] == [
        ("commented", "carl@desk (api)", "The supplier says yes.\nSee ticket 4711.", gate.seq),
        ("commented", "anna@desk (api)", "thanks", gate.seq),
    ]
    entries = [entry for entry in Access(store, "test").audit() if entry.what == "run commented"]
    assert [(entry.by, entry.on, entry.reason) for entry in entries] == [
        ("carl@desk (api)", f"run {RUN}", "The supplier says yes.\nSee ticket 4711."),
        ("anna@desk (api)", f"run {RUN}", "thanks"),
    ]
    [change] = [change for change in world.of("anna").info().changes if change.what == "commented"]
    assert change.reason == "thanks"


def test_a_question_keeps_a_bounded_number_of_comments(store: Store) -> None:
    World(store, "")
    gate, anna = gate_of(store), inbox(store, "anna")
    for number in range(MOST_COMMENTS):
        anna.comment(gate, f"comment {number}")
    anna.comment(gate, "comment 7")
    with pytest.raises(UsageError, match=f"has {MOST_COMMENTS} comments already"):
        anna.comment(gate, "one more")
    for wrong in (" \n", "x" * (MOST_COMMENT + 1)):
        with pytest.raises(UsageError, match="the comment"):
            anna.comment(gate, wrong)
    assert len(gate_of(store).handling.comments) == MOST_COMMENTS


def asking(store: Store, count: int, rules: str = "", agent: str = "agent", namespace: str = "default") -> list[str]:
    """So many runs, each with an open question."""
    keeper = RedisKeeper(store)
    keeper.graphs |= graphs_of(**{agent: ASKS.replace("RULES", rules)})
    names = [f"{agent}{number:08}" for number in range(count)]
    for name in names:
        keeper.create(name, RunSpec(agent, agent, by_version=True, namespace=namespace), {"initial_prompt": ""})
        keeper.go_on()
    return names


def test_pages_go_on_by_cursor_also_among_questions_of_one_moment(store: Store) -> None:
    names = asking(store, 7)
    for number in range(store.keys.partitions):
        for index in store._client.scan_iter(f"{store.keys.of_partition(number).gates}*", _type="zset"):
            store._client.zadd(index, dict.fromkeys(store._client.zrange(index, 0, -1), 5), xx=True)
    anna, found, after = inbox(store, "anna"), [], None
    for _ in range(4):
        page = anna.page(limit=2, after=after)
        found += [gate.run for gate in page]
        after = page.after
    assert (found, after) == (sorted(names), None)
    with pytest.raises(UsageError, match="is no cursor"):
        anna.page(after="x")


def test_questions_are_found_by_view_node_agent_and_namespace(store: Store) -> None:
    [named] = asking(store, 1, "assignees: [anna]", "named")
    [ranked] = asking(store, 1, "role: operator", "ranked")
    [free] = asking(store, 1, "", "free")
    asking(store, 1, "", "elsewhere", "other")
    anna, eve = inbox(store, "anna"), inbox(store, "eve", "operator")

    def runs(of: GateInbox, **query: Any) -> list[str]:
        return [gate.run for gate in of.page(**query)]

    assert runs(anna) == [named, ranked, free]
    assert (runs(anna, view="role"), runs(eve, view="role")) == ([named, free], [ranked, free])
    assert (runs(anna, view="mine"), runs(eve, view="mine")) == ([named], [])
    assert (runs(anna, agent="free"), runs(anna, node="sure", agent="ranked"), runs(anna, node="none")) == (
        [free], [ranked], [],
    )  # fmt: skip
    assert len(runs(anna, namespace="*")) == 4
    [gate] = store.runs.gates(free)
    anna.claim(gate)
    eve.assign(store.runs.gates(ranked)[0], "eve")
    assert (runs(anna, view="mine"), runs(eve, view="mine")) == ([named, free], [ranked])
    assert runs(anna, view="overdue") == []
    hasty = inbox(store, "anna", gate_overdue_s=0.001)
    wait_until(lambda: runs(hasty, view="overdue") == [named, ranked, free], "they are overdue")
    assert hasty.counts().overdue == 3
    counts = anna.counts()
    assert (counts.all, counts.overdue, counts.mine, counts.role, counts.is_exact) == (3, 0, 2, 2, True)


def test_a_page_looks_at_a_bounded_number_of_questions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_lists, "MOST_LOOKED", 4)
    monkeypatch.setattr(gate_lists, "PAGE", 2)
    asking(store, 5, "", "some")
    [last] = asking(store, 1, "", "wanted")
    page = inbox(store, "anna").page(agent="wanted")
    assert (len(page), page.looked, page.after is not None) == (0, 4, True)
    assert [gate.run for gate in inbox(store, "anna").page(agent="wanted", after=page.after)] == [last]
    assert not inbox(store, "anna").counts().is_exact
