"""The submission of a child run: its spec and its first state, from its parent's spec and the effect that starts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sleipnir.agents.variables import resolved_variables
from sleipnir.errors import SleipnirError
from sleipnir.graph.agent_names import folder_of
from sleipnir.graph.model import Graph
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, at_most
from sleipnir.python_graph.run_config import LIMITS
from sleipnir.runs.initial_state import first_state_of, state_at_start
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import checked
from sleipnir.runs.transitions import StartChild

FindGraph = Callable[[str, str, dict[str, Any] | None], Graph]
"""The graph of a bundle's digest, an agent's name and its overrides."""


def child_run(
    parent: str, above: RunSpec, effect: StartChild, find_graph: FindGraph, *, max_state_bytes: int
) -> tuple[RunSpec, dict[str, Any]]:
    """The spec and the first state of a child. Raises SleipnirError for an agent that cannot run like this."""
    overrides = above.overrides
    if effect.state is not None:
        digest: str | None = above.bundle
        if (own := overrides.get(folder_of(effect.agent))) is not None:
            overrides = {**overrides, effect.agent: own}
    else:
        digest = above.agents.get(effect.agent)
    if digest is None:
        raise SleipnirError(f"there was no agent {effect.agent!r} when the run was submitted")
    # Another agent is no part of the graph above, whose steps the limits count. Its bundle may lack the class of the
    # context.
    is_own = digest == above.bundle
    graph = find_graph(digest, effect.agent, overrides.get(effect.agent))
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
        session=None if (name := above.sessions.get(effect.agent)) is None else checked(name),
        knowledge=above.knowledge,
        strict=above.strict,
        by_version=above.by_version,
        config=above.config if is_own else {key: value for key, value in above.config.items() if key not in LIMITS},
        context=above.context if is_own else None,
        parent=parent,
        parent_seq=effect.seq,
        parent_attempt=effect.attempt,
        root=above.root or parent,
        depth=above.depth + 1,
        path=[*above.path, effect.node],
    )
    if effect.state is not None:
        return spec, first_state_of(graph, effect.state, max_state_bytes)
    with at_most(MOST_STEPS_OF_SCHEDULER):
        unchecked = graph.state.keys() - {"initial_prompt"}  # the graph's values: `validate` applied the schemas
        return spec, state_at_start(graph, effect.prompt, {}, max_state_bytes, unchecked)
