"""How hard a model is asked to think, `reasoning_effort` (spec/coyote.md 9).

Rules. The node's value goes first, then the graph's or the agent's, then COYOTE_REASONING_EFFORT and `reasoning_effort`
of the application's config.yaml, then the model's `default_reasoning_effort` there; else none is sent. Where
config.yaml lists the `reasoning_levels` of a model, another value is an error. Where it lists none, and litellm knows
that the model takes no such parameter, the visit says that it was not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sleipnir.agents.config_directory import variable
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Graph, LlmNode
from sleipnir_workers.llm import litellm_compat
from sleipnir_workers.llm.clients import Clients
from sleipnir_workers.llm.models import Endpoint


def wanted(node: LlmNode, graph: Graph, clients: Clients, env: Mapping[str, str]) -> str | None:
    """What is asked for, whatever the model is; None: nothing."""
    of_application = variable(env, "REASONING_EFFORT") or clients.reasoning_effort
    return node.reasoning_effort or graph.reasoning_effort or of_application or None


def sent(effort: str | None, model_id: str, endpoint: Endpoint, note: Callable[[str], None]) -> str | None:
    """What the model is sent; `note` is told of it. Raises NodeFailed (`config`) for a value that the model is known
    not to take."""
    levels = endpoint.traits.reasoning_levels
    if effort is None:
        return endpoint.traits.default_reasoning_effort
    if levels is not None and effort not in levels:
        listed = ", ".join(levels) or "none"
        message = f"reasoning_effort '{effort}' is not one of the levels of model '{model_id}': {listed}"
        raise NodeFailed(f"{message} (`reasoning_levels` in config.yaml)", "config")
    if levels is None and not litellm_compat.takes_reasoning_effort(endpoint.model):
        note(f"reasoning_effort={effort} is not sent: model '{model_id}' is not known to take it")
        return None
    note(f"reasoning_effort={effort}")
    return effort
