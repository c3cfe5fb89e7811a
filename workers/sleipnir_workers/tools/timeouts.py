"""How long a call of a tool may take (spec/coyote.md 1, 2.2).

Rules. The node's `tool_timeout` takes precedence, then SLEIPNIR_TOOL_TIMEOUT_S. Without both, an agent in Loki's format
has the timeout of Coyote, whose tools build and test: COYOTE_TOOL_TIMEOUT, or half an hour. In sleipnir/1, whose
authors can set `tool_timeout`, the default is shorter, so that a hanging call is detected sooner.
"""

from __future__ import annotations

from typing import Final

from sleipnir.agents.config_directory import variable
from sleipnir.graph.model import Graph, LlmNode, Node, ToolsNode
from sleipnir.settings import SECONDS_MOST
from sleipnir_workers.machine.host import Host

COYOTES_S: Final = 1800.0
OURS_S: Final = 120.0
UNLIMITED_S: Final = float(SECONDS_MOST)


def seconds_of(node: Node | None, graph: Graph, host: Host) -> float:
    """The timeout of a tool call that `node` makes; None: a person makes it."""
    if isinstance(node, LlmNode | ToolsNode) and node.tool_timeout is not None:
        return node.tool_timeout / 1000
    if host.settings.tool_timeout_s is not None:
        return host.settings.tool_timeout_s
    return _of_coyote(variable(host.env, "TOOL_TIMEOUT")) if graph.is_loki else OURS_S


def _of_coyote(text: str | None) -> float:
    """The variable's value: whole seconds, 0 for no limit; any other text is ignored."""
    text = (text or "").strip()
    if not (text.isascii() and text.isdecimal()):
        return COYOTES_S
    return min(float(text), UNLIMITED_S) or UNLIMITED_S
