"""The submission of a child run: its spec and its first state, from its parent's spec and the effect that starts it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sleipnir.agents.variables import resolved_variables
from sleipnir.errors import SleipnirError
from sleipnir.graph import node_overrides
from sleipnir.graph.agent_names import folder_of
from sleipnir.graph.model import Graph
from sleipnir.graph.overrides import EVERY_MODEL, OF_NODES, with_nodes
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, at_most
from sleipnir.messages import VERSION
from sleipnir.python_graph.run_config import LIMITS
from sleipnir.runs.child_run import ChildSettings, scope_below
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.initial_state import WrongState, first_state_of, is_folded_by_code, state_at_start
from sleipnir.runs.run import IN_NAMESPACE, RETURNING, RunSpec, place_name
from sleipnir.runs.sessions import checked
from sleipnir.runs.transitions import StartChild

FindGraph = Callable[[str, str, dict[str, Any] | None], Graph]
"""The graph of a bundle's digest, an agent's name and its overrides."""


def child_run(
    parent: str, above: RunSpec, effect: StartChild, find_graph: FindGraph, *, max_state_bytes: int
) -> tuple[RunSpec, dict[str, Any]]:
    """The spec and the first state of a child. Raises SleipnirError for an agent that cannot run like this."""
    of_nodes = node_overrides.of_child(nodes, effect.node) if (nodes := above.of_nodes) else {}
    overrides = with_nodes(above.overrides, effect.agent, {}) if nodes else above.overrides
    if effect.state is not None or folder_of(effect.agent) != effect.agent:
        digest: str | None = above.bundle
        if (own := overrides.get(folder_of(effect.agent))) is not None:
            overrides = {**overrides, effect.agent: own}
    else:
        digest = above.agents.get(effect.agent)
    if of_nodes:
        overrides = with_nodes(overrides, effect.agent, of_nodes)
    if digest is None:
        raise SleipnirError(f"there was no agent {effect.agent!r} when the run was submitted")
    # Another agent is no part of the graph above, whose steps the limits count. Its bundle may lack the class of the
    # context.
    is_own = digest == above.bundle
    graph = find_graph(digest, effect.agent, overrides.get(effect.agent))
    settings = effect.settings or ChildSettings()
    config = above.config if is_own else {key: value for key, value in above.config.items() if key not in LIMITS}
    limits = {key: value for key, value in settings.options.items() if key in LIMITS}
    spec = RunSpec(
        agent=effect.agent,
        bundle=digest,
        variables=resolved_variables(graph, above.presets.get(effect.agent, {})),
        cwd=above.cwd,
        caller_dir=above.caller_dir,
        caller_marks=above.caller_marks,
        agents=above.agents,
        descriptions=above.descriptions,
        overrides=overrides,
        presets=above.presets,
        sessions=above.sessions,
        session=_session(above, effect.agent, settings),
        knowledge=above.knowledge,
        max_cost_usd=settings.options.get("max_cost_usd"),
        max_tokens=settings.options.get("max_tokens"),
        strict=above.strict or bool(settings.options.get("strict")),
        by_version=above.by_version,
        config={**config, **limits} if limits else config,
        context=above.context if is_own else None,
        parent=parent,
        parent_seq=effect.seq,
        parent_attempt=effect.attempt,
        root=above.root or parent,
        depth=above.depth + 1,
        path=[*above.path, place_name(effect.node, effect.twin)],
        returns=settings.returns,
        event_scope=scope_below(above.event_scope, settings.event_scope, effect.agent),
        stream=settings.stream,
        namespace=above.namespace,
        tags=above.tags,
        author=above.author,
        thread_namespace=above.thread_namespace,
        v=_version(above, overrides.get(effect.agent, {}), settings),
    )
    if effect.state is not None:
        return spec, first_state_of(graph, effect.state, max_state_bytes)
    with at_most(MOST_STEPS_OF_SCHEDULER):
        # The graph's values: `validate` applied the schemas.
        unchecked = graph.state.keys() - {"initial_prompt"} - settings.given.keys()
        return spec, _state(graph, effect, settings.given, max_state_bytes, unchecked)


def _state(
    graph: Graph, effect: StartChild, given: Mapping[str, Any], limit_bytes: int, unchecked: Collection[str]
) -> dict[str, Any]:
    """The first state of the run of an agent."""
    if folded := next((key for key in given if is_folded_by_code(graph, key)), None):
        raise SleipnirError(
            f"state key '{folded}' of agent '{effect.agent}' has a reducer of its own, and only its code knows the "
            "first value; give it under another key"
        )
    try:
        return state_at_start(graph, effect.prompt, given, limit_bytes, unchecked)
    except WrongState as wrong:
        if not given:
            raise
        listed = "; ".join(wrong.problems)
        raise SleipnirError(f"the values that it is given do not fit its state: {listed}") from None


def _session(above: RunSpec, agent: str, settings: ChildSettings) -> str | None:
    """The session of a run of the agent; an isolated child is in none."""
    name = None if settings.isolated else above.sessions.get(agent)
    return None if name is None else checked(name)


def _version(above: RunSpec, overrides: Mapping[str, Any], settings: ChildSettings) -> int:
    if above.thread_namespace != DEFAULT_NAMESPACE:
        return IN_NAMESPACE
    if settings.returns is not None:
        return RETURNING
    return above.v if EVERY_MODEL in overrides or OF_NODES in overrides else VERSION
