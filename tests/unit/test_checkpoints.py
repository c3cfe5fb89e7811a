"""Where a run goes on after a checkpoint, read from its journal."""

from __future__ import annotations

from typing import Any

from sleipnir.runs.checkpoints import CheckpointReader
from sleipnir.runs.run import Checkpoint
from sleipnir.runs.transitions import Closing, Step
from sleipnir.runs.visits import Part

BEGIN = Checkpoint(0, ("a",))


def step(number: int, node: str | None = None, **more: Any) -> Step:
    return Step(number, "script", 0, seq=None if node is None else number, node=node, **more)


def checkpoints(*steps: Step, first: Checkpoint = BEGIN) -> list[Checkpoint]:
    """The checkpoint after each step that is one."""
    reader = CheckpointReader(first)
    found = []
    for each in steps:
        if reader.add(each):
            if len(found) % 2:  # what is kept stays as it is, whatever follows
                reader.keep()
            found.append(reader.last)
        kept = reader.kept and reader.kept.checkpoint
        assert kept == next((found[at] for at in range(len(found) - 1, -1, -1) if at % 2), None)
    return found


def test_a_chain_goes_on_at_the_target_of_its_last_step() -> None:
    assert checkpoints(step(0), step(1, "a", next="b"), step(2, "b", next="a"), step(3, "a", next=("b", "c"))) == [
        Checkpoint(1, ("b",), {"a": 1}, 1),
        Checkpoint(2, ("a",), {"a": 1, "b": 1}, 2),
        Checkpoint(3, ("b", "c"), {"a": 2, "b": 1}, 3),
    ]


def test_parallel_visits_go_on_where_the_closing_of_the_last_one_says() -> None:
    parallel = (
        step(1, "b", held=True, next="d"),
        step(2, "c", held=True, next="e", applies=(1, 2), closing=Closing(("d", "e"), {"j": {"c": 1}}, None, 3)),
        step(3, "d", held=True, next="f"),
        step(4, "e", closing=Closing((), None, {"f": 2})),
    )
    assert checkpoints(*parallel) == [
        Checkpoint(2, ("d", "e"), {"b": 1, "c": 1}, 1, {"j": {"c": 1}}, {}, 3),
        Checkpoint(4, (), {"b": 1, "c": 1, "d": 1, "e": 1}, 2, {"j": {"c": 1}}, {"f": 2}),
    ], "arrivals stay until a closing has others, commands do not"


def test_items_turns_functions_and_requests_are_no_visits_of_a_super_step() -> None:
    found = checkpoints(
        step(1, "work", item=(1, 0)),
        step(2, "ask", part=Part(1, 0)),
        step(3),
        step(4, "a", held=True, applies=(4,)),
        step(5, "a", role="branch", routes={"4": ("b",)}, closing=Closing(("b",))),
    )
    assert found == [Checkpoint(5, ("b",), {"a": 1}, 1)]


def test_a_retry_begins_to_count_anew_at_the_nodes_that_failed() -> None:
    first = Checkpoint(0, ("a",), {"a": 4, "b": 2}, 6)
    failed, retried = step(1, "a", ok=False), Step(2, "retried", 0, next="a")
    assert checkpoints(failed, retried, step(3, "a", next="b"), first=first) == [
        Checkpoint(3, ("b",), {"a": 1, "b": 2}, 7)
    ]


def test_a_super_step_that_an_earlier_release_closed_is_no_checkpoint_and_its_targets_are_not_those_of_the_next() -> (
    None
):
    old = (step(1, "b", held=True, next="d"), step(2, "c", held=True, next="d", applies=(1, 2)), step(3, "d", next="e"))
    assert [(each.step, each.nodes) for each in checkpoints(*old)] == [(3, ("e",))]
