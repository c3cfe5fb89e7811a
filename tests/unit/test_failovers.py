"""What the losses of a fail-over explain, and what they do not."""

from __future__ import annotations

import pytest

from ops.chaos.failovers import Loss, Losses
from ops.chaos.verdict import Kind, Wrong
from sleipnir.runs.views import RunInfo

LOSSES = Losses([Loss({"slp:{p01}:run:lost:journal": frozenset({"lost"}), "slp:{p01}:inbox": frozenset({"told"})})])
INFOS = [
    RunInfo("lost", "a", "completed", 0),
    RunInfo("told", "a", "running", 0),
    RunInfo("child", "a", "completed", 0, parent="lost"),
    RunInfo("grandchild", "a", "completed", 0, parent="child"),
    RunInfo("fork", "a", "completed", 0, forked_from="lost"),
    RunInfo("other", "a", "running", 0),
]
RUN_IDS = [info.id for info in INFOS]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lost", "told: accepted, and not there"),
        ("differs", "lost: a: failed instead of completed"),
        ("differs", "fork: a: failed instead of completed"),
        ("differs", "grandchild: a: failed instead of completed"),
    ],
)
def test_what_is_wrong_with_a_run_that_lost_writes_is_explained(kind: Kind, text: str) -> None:
    assert LOSSES.sort([Wrong(kind, text)], INFOS, RUN_IDS) == ([], [Wrong(kind, text)])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("stuck", "other: a running: [it waits for run lost]"),
        ("stuck", "lost: a running: [it waits for nothing]"),
        ("lost", "other: accepted, and not there"),
        ("lost", "child: accepted, and not there"),
        ("differs", "other: a: failed instead of completed"),
        ("double", "lost: a visit is committed twice: [1, 1]"),
        ("state", "lost: the state is not the fold of the journal"),
        ("effect", "lost: visit 1 (a) ran 3 times in 1 attempts"),
        ("leak", "slp:{p01}:timers: 1 members left: ['lost/visit/1/1']"),
        ("leak", "slp:{p01}:inbox: 1 entries left"),
    ],
)
def test_what_no_lost_write_explains_is_a_broken_promise(kind: Kind, text: str) -> None:
    assert LOSSES.sort([Wrong(kind, text)], INFOS, RUN_IDS) == ([Wrong(kind, text)], [])


def test_without_fail_overs_nothing_is_explained() -> None:
    wrongs = [Wrong("differs", f"{run}: a: failed instead of completed") for run in RUN_IDS]
    assert Losses().sort(wrongs, INFOS, RUN_IDS) == (wrongs, [])


def test_each_fail_over_may_have_forgotten_one_execution_of_each_visit_of_its_runs() -> None:
    twice = Losses([*LOSSES.all, Loss({"slp:{p01}:run:lost:claims": frozenset({"lost"})})])
    assert twice.forgotten(["lost/1", "lost/1", "told/2", "other/1"]) == {"lost/1": 2, "told/2": 1}


def test_the_facts_count_fail_overs_and_what_they_lost() -> None:
    losses = Losses([*LOSSES.all, Loss({"slp:{p01}:generation": frozenset({"pulse"})})])
    assert losses.facts(RUN_IDS, [Wrong("lost", "lost: accepted, and not there")]) == {
        "fail_overs": 2, "losing": 1, "keys": 3, "runs": 2, "explained": {"lost": 1},
    }  # fmt: skip
