"""Where the visits of a run are and why, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from sleipnir.runs.reasons import in_words, places, retry_in_words
from sleipnir.runs.views import KeptVisit, Reason, ReasonCode, RunInfo, SlotInfo, VisitInfo

NOW_MS = 1_000_000

SAID = [
    (Reason("queued", queue="scripts", position=3, consumers=2), "queued on 'scripts', 3rd in line, 2 consumers"),
    (Reason("queued", queue="scripts", position=1, consumers=1), "queued on 'scripts', 1st in line, 1 consumer"),
    (Reason("queued", queue="scripts", position=112, consumers=9), "queued on 'scripts', 112th in line, 9 consumers"),
    (Reason("queued", queue="scripts", consumers=2), "queued on 'scripts', 2 consumers"),
    (Reason("queued", queue="rag", position=7, consumers=0), "queued on 'rag': no worker serves it"),
    (Reason("queued", queue="llm"), "queued on 'llm'"),
    (Reason("paused", queue="llm", by="ann@desk"), "paused by ann@desk"),
    (Reason("retry", until_ms=NOW_MS + 12_000, error="Boom\nat 1"), "tries again in 12 s after: Boom"),
    (Reason("retry", until_ms=NOW_MS - 1), "tries again now"),
    (
        Reason("limit", until_ms=NOW_MS + 12_000, error="limit 'openai:*' until 14:03:11 UTC, held by r/1/0/1"),
        "limit 'openai:*' until 14:03:11 UTC, held by r/1/0/1, again in 12 s",
    ),
    (Reason("lease", worker="w1@host", until_ms=NOW_MS + 3_100), "runs on w1@host, lease expires in 4 s"),
    (Reason("lease", worker="w1@host", until_ms=NOW_MS - 3_000), "runs on w1@host, lease expired 3 s ago"),
    (Reason("lease", worker="w1@host"), "runs on w1@host"),
    (
        Reason("stream", worker="w1@host", stream="draft", writer="ask"),
        "runs on w1@host, waits for node 'ask' to begin the stream 'draft'",
    ),
    (Reason("result", worker="w1@host"), "result of w1@host waits for the scheduler"),
    (Reason("lost", worker="w1@host"), "lost by w1@host; waits for the scheduler"),
    (Reason("person"), "waits for a person's answer"),
    (Reason("person", until_ms=NOW_MS + 7_200_000), "waits for a person's answer, expires in 2h00m"),
    (Reason("answered"), "answered; waits for the scheduler"),
    (Reason("slot", under_way=8), "waits for a slot, 8 visits active"),
    (Reason("slot", under_way=1), "waits for a slot, 1 visit active"),
    (Reason("commands", progress=(128, 10_000)), "128 of its 10,000 commands are active, the others wait for slots"),
    (Reason("siblings"), "has ended, waits for the other visits of its step"),
    (Reason("siblings", error="Boom\nat 1"), "has failed, other visits of its step have not ended: Boom"),
    (Reason("items", progress=(237, 500), failed=2, under_way=8), "237 of 500 items, 2 failed, 8 at once"),
    (Reason("turns", turn=0, progress=(0, 0)), "turn 1, the model is asked"),
    (Reason("turns", turn=2, progress=(1, 3)), "turn 3, 1 of 3 calls answered"),
    (Reason("items", progress=(0, 10_000), failed=0, under_way=1), "0 of 10,000 items, 1 at once"),
    (Reason("timer", until_ms=NOW_MS + 30_000), "waits, continues in 30 s"),
    (Reason("event", event="order.17.paid"), "waits for event order.17.paid"),
    (Reason("event", event="e", until_ms=NOW_MS + 7_200_000), "waits for event e, at most for 2h00m"),
    (Reason("message", until_ms=NOW_MS), "waits for confirmation that its message reached an agent"),
    (Reason("child", run="0zd6m3p3250y", agent="echo"), "waits for run 0zd6m3p3250y of agent 'echo'"),
]


@pytest.mark.parametrize(("reason", "words"), SAID)
def test_a_reason_is_written_in_words(reason: Reason, words: str) -> None:
    assert in_words(reason, NOW_MS) == words


def test_every_code_has_words() -> None:
    assert {reason.code for reason, _ in SAID} == set(get_args(ReasonCode))


def live(seq: int, node: str, reason: Reason, **more: Any) -> VisitInfo:
    return VisitInfo(**({"seq": seq, "node": node, "kind": "function", "attempt": 1, "state": "queued",
                         "since_ms": 0, "reason": reason} | more))  # fmt: skip


def run_with(*visits: VisitInfo, kept: tuple[KeptVisit, ...] = ()) -> RunInfo:
    return RunInfo("r1", "x", "failed" if kept else "running", 0, visits=visits, kept=kept)


@pytest.mark.parametrize(("key", "who"), [("acme", "x 'acme'"), ("", "x")])
def test_a_run_that_waits_for_a_slot_of_its_agent_reports_it(key: str, who: str) -> None:
    waiting = replace(run_with(), slot=SlotInfo(key, 5, granted=False))
    assert places(waiting, NOW_MS, most=3) == [f"waits for a slot of {who}, limit 5"]
    started = replace(run_with(live(1, "a", Reason("person"))), slot=SlotInfo(key, 5, granted=True))
    assert places(started, NOW_MS, most=3) == ["a (waits for a person's answer)"]


def test_only_some_items_of_a_map_are_listed_and_the_others_counted() -> None:
    fan = live(1, "fan", Reason("items", progress=(2, 500), failed=0, under_way=498))
    items = [live(2 + index, "work", Reason("result", worker="w"), item=(1, index)) for index in range(498)]
    side = live(900, "side", Reason("siblings"), attempt=2)
    assert places(run_with(fan, *items, side), NOW_MS, most=12) == [
        "fan (2 of 500 items, 498 at once)",
        "side (has ended, waits for the other visits of its step, attempt 2)",
        "work, item 0 (result of w waits for the scheduler)",
        "work, item 1 (result of w waits for the scheduler)",
        "work, item 2 (result of w waits for the scheduler)",
        "and 495 more items",
    ]


def test_the_first_of_very_many_branches_are_listed_and_the_others_counted() -> None:
    visits = [live(seq, f"n{seq}", Reason("person")) for seq in range(5)]
    items = [live(9, "work", Reason("person"), item=(1, 0))]
    assert places(run_with(*visits, *items), NOW_MS, most=2)[1:] == [
        "n1 (waits for a person's answer)",
        "and 3 more visits",
        "and 1 more item",
    ]


def test_a_visit_that_folds_or_chooses_for_a_node_reports_it() -> None:
    (place,) = places(run_with(live(1, "a", Reason("queued", queue="functions"), role="reduce")), NOW_MS, most=3)
    assert place == "a (reduce: queued on 'functions')"


RETRIES = [
    ((KeptVisit(1, "b", True),), "runs again b"),
    (
        (
            KeptVisit(1, "a", False),
            KeptVisit(2, "b", True),
            KeptVisit(3, "fan", True, left=(2, 500)),
            KeptVisit(4, "work", True, item=(3, 7)),
            KeptVisit(5, "a", True, role="reduce"),
        ),
        "runs again b, 2 of 500 items of fan, a (reduce); a has ended",
    ),
    ((KeptVisit(1, "a", False), KeptVisit(2, "b", False)), "continues after a, b"),
    ((KeptVisit(1, "call", True, child="4kq0"),), "runs again call; child run 4kq0 continues"),
    (
        (
            KeptVisit(1, "fan", True, left=(2, 6)),
            KeptVisit(3, "call", True, item=(1, 0), child="4kq0"),
            KeptVisit(5, "call", True, item=(1, 2), child="7mzt"),
        ),
        "runs again 2 of 6 items of fan; child runs 4kq0, 7mzt continue",
    ),
    (
        tuple(KeptVisit(seq, f"n{seq}", True) for seq in range(12)),
        "runs again n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more",
    ),
]


@pytest.mark.parametrize(("kept", "words"), RETRIES)
def test_the_visits_that_a_retry_runs_again_are_listed_before_it(kept: tuple[KeptVisit, ...], words: str) -> None:
    assert retry_in_words(run_with(kept=kept)) == words


def test_restarted_children_are_not_reported_as_continued() -> None:
    run = run_with(kept=(KeptVisit(1, "call", True, child="4kq0"),))
    assert retry_in_words(run, fresh_children=True) == "runs again call"


def test_a_run_of_which_nothing_is_kept_begins_again() -> None:
    assert retry_in_words(run_with()) == "starts again from the beginning, with the current state"
