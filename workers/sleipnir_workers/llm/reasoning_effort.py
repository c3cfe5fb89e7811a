"""The `reasoning_effort` of a call (spec/coyote.md 9).

Rules. The order of priority: the node, the graph or the agent, COYOTE_REASONING_EFFORT, `reasoning_effort` of the
application's config.yaml, `default_reasoning_effort` of the model there; else none is sent. A value that is not in the
model's `reasoning_levels` is an error. If there are no levels and litellm does not know the model to take the
parameter, it is not sent, and the visit reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sleipnir.agents.config_directory import variable
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Graph, LlmNode
from sleipnir_workers.llm import litellm_compat
from sleipnir_workers.llm.clients import Clients
from sleipnir_workers.llm.models import Endpoint


def configured(node: LlmNode, graph: Graph, clients: Clients, env: Mapping[str, str]) -> str | None:
    """The configured effort, before the model is considered; None: none."""
    application_effort = variable(env, "REASONING_EFFORT") or clients.reasoning_effort
    return node.reasoning_effort or graph.reasoning_effort or application_effort or None


def effort_to_send(effort: str | None, model_id: str, endpoint: Endpoint, note: Callable[[str], None]) -> str | None:
    """The effort that the model is sent; `note` receives a line about it. Raises NodeFailed (`config`) for a value that
    is not among the model's levels."""
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
