"""The waiting visit of an llm node with tools, or of a tools node, as its modules read and change it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sleipnir.graph.model import LlmNode, ToolsNode
from sleipnir.runs.run import changed
from sleipnir.runs.visits import Call, Loop, Turn, Visit
from sleipnir_scheduler.planner.context import Context

TOOLS: Final = ToolsNode.kind


class ModelLoop(NamedTuple):
    """A visit that is a loop, as it was when it was read."""

    visit: Visit
    loop: Loop


def loops(context: Context) -> list[ModelLoop]:
    """All loops of models of the run, by number."""
    return [each for each in _all(context) if each.visit.kind != TOOLS]


def _all(context: Context) -> list[ModelLoop]:
    return [ModelLoop(visit, visit.body) for visit in context.draft.visits.all() if isinstance(visit.body, Loop)]


def loop_of(context: Context, visit: Visit) -> ModelLoop:
    """The loop that a turn or a call is part of."""
    if not isinstance(visit.place, (Turn, Call)):
        raise TypeError(f"visit {visit.seq} of node '{visit.node}' is no part of a loop")
    return next(each for each in _all(context) if each.loop.id == visit.place.loop)


def now(context: Context, model_loop: ModelLoop) -> ModelLoop:
    """The loop as it is by now."""
    visit = context.draft.visits.frontier[model_loop.visit.seq]
    if not isinstance(visit.body, Loop):
        raise TypeError(f"visit {visit.seq} of node '{visit.node}' is a loop no more")
    return ModelLoop(visit, visit.body)


def change(context: Context, model_loop: ModelLoop, **fields: Any) -> ModelLoop:
    """The loop with other fields."""
    loop = changed(model_loop.loop, **fields)
    return ModelLoop(context.draft.visits.move(model_loop.visit, loop), loop)


def node_of(context: Context, visit: Visit) -> LlmNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, LlmNode):
        raise TypeError(f"node '{visit.node}' is no llm node")
    return node
