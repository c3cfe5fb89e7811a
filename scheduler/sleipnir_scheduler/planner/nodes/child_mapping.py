"""What the agent nodes of sleipnir/1 give to their children, and write of their ends (graph/child_values.py).

Templates are rendered here, but for a child that returns much; functions of the agent's own are called by a worker, as
those templates are. After a child that did not complete,
`map_out` counts only if the run goes on: then it may read why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.graph.child_values import (
    MESSAGES,
    keys_given,
    keys_returned,
    keys_taken,
    messages_of,
    prompt_of,
    rendered,
    written_by,
)
from sleipnir.graph.model import AgentNode, Graph, Json
from sleipnir.graph.plain import compact_json
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, at_most
from sleipnir.graph.state import update_problem
from sleipnir.graph.template import TemplateError, render
from sleipnir.messages import CHILD
from sleipnir.runs.child_run import ChildSettings, child_without_end
from sleipnir.runs.transitions import ItemOp, SetValue, TakeResult
from sleipnir.runs.visits import Child, Failure, Item, Visit
from sleipnir_scheduler.planner import failing
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.nodes import maps

MOST_RENDERED_HERE: Final = 256 * 1024
"""The most bytes of a child's end that are mapped here: no event may hold the scheduler up for long."""


@dataclass(frozen=True)
class End:
    """The end of a child: the `error` of the visit that waited for it (None: it has completed), and `record`, what the
    child returned, if it was fetched; `is_delivered` says whether there is one."""

    child: Child
    error: str | None
    status: str
    failure: Failure | None
    record: Mapping[str, Any] | None = None
    is_delivered: bool = False

    @property
    def data(self) -> Mapping[str, Any]:
        """What `child` is in `map_out`."""
        about = self.child.run, self.child.agent, self.status, self.error, self.failure
        return child_without_end(*about) if self.record is None else self.record

    def as_item(self, field: str) -> ItemOp:
        """Give it to the worker that maps it."""
        if self.is_delivered:
            return TakeResult(field, CHILD)
        return SetValue(field, compact_json(dict(self.data)))


@dataclass(frozen=True)
class FirstState:
    """What a worker has made before a child starts: the `values` of its state that a function under `map_in` gives, and
    the keys of the node's own state that callbacks have `changed` and `removed` for the node."""

    values: Mapping[str, Json]
    changed: Mapping[str, Json] = field(default_factory=dict)
    removed: Sequence[str] = ()


def maps_end(graph: Graph, node: AgentNode) -> bool:
    """Whether what the node writes is made of the whole end of its child."""
    return node.map_out is not None or _calls_back(graph, node)


def is_for_worker(graph: Graph, node: AgentNode) -> bool:
    """Whether functions of the agent decide what the node writes after its child."""
    return isinstance(node.map_out, str) or _calls_back(graph, node)


def _calls_back(graph: Graph, node: AgentNode) -> bool:
    return graph.has_callbacks(node, "after", "error", "agent_event")


def given(context: Context, visit: Visit, node: AgentNode, made: FirstState | None) -> tuple[str, ChildSettings | None]:
    """The prompt of a child, and its settings. Raises VisitFailed and MissingValues."""
    made = made or FirstState({})
    state = {**context.values.state(keys_given(node), visit), **made.changed}
    state = {key: value for key, value in state.items() if key not in made.removed}
    try:
        messages = messages_of(node, state)
        prompt = prompt_of(messages) if node.messages is not None else render(node.message or "", state)
        values = dict(made.values) if not isinstance(node.map_in, dict) else rendered(node.map_in, state)
    except TemplateError as error:
        raise VisitFailed(f"Failed to interpolate prompt for agent '{node.agent}': {error}") from None
    if node.messages is not None:
        values = {MESSAGES: messages, **values}
    options = {} if node.options is None else vars(node.options)
    settings = ChildSettings(
        values,
        () if node.map_out is None and maps_end(context.graph, node) else keys_returned(node),
        node.isolated,
        node.event_scope,
        {name: value for name, value in options.items() if value not in (None, False)},
        node.stream_output,
    )
    return prompt, None if settings == ChildSettings() else settings


def applies(context: Context, visit: Visit, node: AgentNode, end: End) -> bool:
    """Whether `map_out` writes anything after this end, or callbacks are to see it."""
    if end.error is None or _calls_back(context.graph, node):
        return True
    return visit.is_branch and failing.reaction(context, node) != "fail"


def outcome(context: Context, visit: Visit, node: AgentNode, end: End) -> VisitOutcome:
    """How a visit ends that writes what templates say. Raises MissingValues."""
    if not applies(context, visit, node, end) or not isinstance(node.map_out, dict):
        return VisitOutcome(ok=False, error=end.error, failure=end.failure)
    state = context.values.state(keys_taken(node), visit)
    try:
        if (size := end.data.get("too_large")) is not None:
            raise VisitFailed(too_large(node, size))
        values = _fitting(context, node, written_by(node, state, end.data))
    except TemplateError as error:
        return VisitOutcome(ok=False, error=f"Agent '{node.agent}': `map_out` cannot be rendered: {error}")
    except VisitFailed as failure:
        return VisitOutcome(ok=False, error=str(failure))
    if end.error is not None:
        return VisitOutcome(ok=False, error=end.error, failure=end.failure, values=values)
    item = visit.place
    if isinstance(item, Item) and maps.is_last_body(context, item):
        key = maps.output_key(context, item)
        values = {key: values.get(key, end.data["output"])}
    return VisitOutcome(values=values)


def too_large(node: AgentNode, size: int) -> str:
    """The error for a child that returns too much."""
    return (
        f"Agent '{node.agent}': the state that `map_out` reads has {size:,} bytes, more than SLEIPNIR_MAX_OUTPUT_BYTES "
        "allows. Let the child write a smaller key, or store the data in a file and give its path"
    )


def _fitting(context: Context, node: AgentNode, values: dict[str, Json]) -> dict[str, Json]:
    """The values, if the graph's `state:` allows them. Raises VisitFailed."""
    with at_most(MOST_STEPS_OF_SCHEDULER):
        for key, value in values.items():
            field = context.graph.state.get(key)
            if field is not None and (wrong := update_problem(field, value)) is not None:
                raise VisitFailed(
                    f"`map_out` writes what the graph's `state:` does not allow: state key '{key}' {wrong}"
                )
    return values
