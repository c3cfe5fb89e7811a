"""Entries into nodes: their counts and their limits (spec/graph-agents.md 2.10)."""

from __future__ import annotations

from typing import Any

from sleipnir.runs.failure_text import RECURSION_LIMIT_REACHED
from sleipnir.runs.visits import Branch, Commands, Visit
from sleipnir_scheduler.planner.context import Context, NextVisit, RunFailed


def open_visit(context: Context, way: NextVisit, source: Visit | None, **fields: Any) -> Visit:
    """A visit that `source` leads to. `fields` as in LiveVisits.open."""
    node = context.graph.nodes.get(way.target)
    if way.command is not None and source is not None:
        batch = source.body.of if isinstance(source.body, Commands) else source.seq
        fields |= {"overlay": f"{batch}.{way.command}", "place": Branch(batch)}
    return context.draft.visits.open(way.target, node.kind if node else "unknown", **fields)


def count_entry(context: Context, node: str) -> None:
    """Count an entry into a node. Raises RunFailed beyond its cap, and for a node that does not exist."""
    count, cap = context.draft.record.count(node), context.graph.settings.max_loop_iterations
    if count > cap:
        message = f"Node '{node}' visited {count} times (max_loop_iterations={cap}). Possible infinite loop."
        raise RunFailed(message, node, kind="steps")
    if node not in context.graph.nodes:
        raise RunFailed(f"Node '{node}' not found in graph '{context.graph.name}'")


def check_entries(context: Context, nodes: list[str]) -> None:
    """The checks of Loki's executor before a super-step that enters these nodes, in its order. Raises RunFailed, and
    then tells the draft which entries it has not counted."""
    number = 0
    try:
        _check_step(context, nodes)
        for node in nodes:
            number += 1
            count_entry(context, node)
    except RunFailed:
        context.draft.uncounted = frozenset(nodes[number:])
        raise
    if context.graph.limits.step_timeout:
        context.arm_step()


def _check_step(context: Context, nodes: list[str]) -> None:
    """The limits of the whole run, before a super-step that enters these nodes. Raises RunFailed."""
    check_recursion(context, context.draft.steps - 1)
    if context.graph.limits.max_steps is not None:
        check_limit(context, context.draft.steps)
    if context.graph.settings.timeout is not None and context.deadline_passed():
        names = ", ".join(f'"{name}"' for name in nodes)
        where = f"at '{nodes[0]}'" if len(nodes) == 1 else f"before super-step with frontier [{names}]"
        raise RunFailed(context.timed_out(where))


def stops_before(context: Context, number: int) -> bool:
    """Whether the run has used up its steps, and its graph says `on_max_steps: stop`."""
    limits = context.graph.limits
    if limits.max_steps is None or number <= limits.max_steps or limits.on_max_steps != "stop":
        return False
    context.draft.stopped_by = "max_steps"
    context.draft.record.notice("max_steps", limit=limits.max_steps, what=_unit(context))
    return True


def steps_are_used_up(context: Context) -> bool:
    """Whether the run may have stopped early because its graph says `on_max_steps: stop`."""
    limits = context.graph.limits
    return limits.max_steps is not None and context.draft.steps >= limits.max_steps and limits.on_max_steps == "stop"


def check_limit(context: Context, number: int) -> None:
    """Raises RunFailed when the run has used up its steps. The visits beyond the limit are open, so `retry` goes on
    there."""
    limits = context.graph.limits
    if limits.max_steps is not None and number > limits.max_steps:
        raise RunFailed(
            f"Graph '{context.graph.name}' is not done after {limits.max_steps} {_unit(context)} "
            "(limits.max_steps). Raise the limit, or give the loop an exit.",
            kind="steps",
        )


def check_recursion(context: Context, steps: int) -> None:
    """Raises RunFailed when `steps` super-steps (in a `dag` visits) are closed, and the configuration of the run allows
    no more. The input counts as one, as in LangGraph: a limit of 3 allows two super-steps. A retry gives the run its
    limit again."""
    limit = context.run.spec.config.get("recursion_limit")
    if limit is not None and steps - (context.draft.limited_from or context.graph.begins_at_start) >= limit:
        raise RunFailed(RECURSION_LIMIT_REACHED.format(limit=limit), kind="steps")


def _unit(context: Context) -> str:
    return "visits" if context.graph.engine == "dag" else "super-steps"
