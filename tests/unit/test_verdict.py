"""What the chaos campaigns compare of two runs of one graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ops.chaos.verdict import ended_visits, is_comparable
from sleipnir.runs.transitions import Closing, Step
from sleipnir.runs.views import RunInfo


def step(number: int, node: str, **more: Any) -> Step:
    return Step(number, "script", 0, seq=number, node=node, **more)


STEPS = [
    Step(0, "submitted", 0),
    step(1, "a", next=("b", "c", "d")),
    step(2, "b", held=True),
    step(3, "c", held=True, closing=Closing(("e", "f"))),
    step(4, "e", held=True),
    step(5, "f", ok=False, held=True),
]


def test_of_a_failed_run_the_visits_of_closed_super_steps_count() -> None:
    """Which others of the last one had a slot before one of them failed depends on time."""
    visits = ended_visits("failed", STEPS, lambda step: step.is_checkpoint)
    assert visits == Counter({(node, "node", None): 1 for node in "abc"})


def test_of_another_run_all_visits_count_that_ended_well() -> None:
    visits = ended_visits("completed", STEPS, lambda step: step.is_checkpoint)
    assert visits == Counter({(node, "node", None): 1 for node in "abce"})


def test_a_fork_that_reached_the_limit_of_super_steps_is_not_compared_with_its_source() -> None:
    """It has the limit anew, so it comes further."""
    error = "Graph 'g' is not done after 3 super-steps (limits.max_steps)."
    for source, error_, comparable in ((None, error, True), ("r1", error, False), ("r1", "exit 1", True)):
        info = RunInfo("r2", "g", "failed", 0, error=error_, forked_from=source)
        assert is_comparable([info], []) is comparable
        completed = RunInfo("r3", "g", "completed", 0, forked_from="r1")
        assert is_comparable([completed, info], []) is comparable, "the same fork without faults may have reached it"
