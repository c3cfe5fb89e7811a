"""How long a call of a tool may take (spec/coyote.md 1, 2.2).

Rules. The node's `tool_timeout` goes first, then SLEIPNIR_TOOL_TIMEOUT_S. Where neither is there, an agent in Loki's
format has the time that it has with Coyote, whose tools build and test: what COYOTE_TOOL_TIMEOUT says, else half an
hour. In sleipnir/1, whose authors can say `tool_timeout`, a call that hangs is found out sooner.
"""

from __future__ import annotations

from typing import Final

from sleipnir.agents.config_directory import variable
from sleipnir.graph.model import Graph, LlmNode, Node
from sleipnir.settings import SECONDS_MOST
from sleipnir_workers.host import Host

COYOTES_S: Final = 1800.0
OURS_S: Final = 120.0
UNLIMITED_S: Final = float(SECONDS_MOST)


def seconds_of(node: Node | None, graph: Graph, host: Host) -> float:
    """The time that a call of a tool has, which `node` asks for; None: a person."""
    if isinstance(node, LlmNode) and node.tool_timeout is not None:
        return node.tool_timeout / 1000
    if host.settings.tool_timeout_s is not None:
        return host.settings.tool_timeout_s
    return _of_coyote(variable(host.env, "TOOL_TIMEOUT")) if graph.is_loki else OURS_S


def _of_coyote(text: str | None) -> float:
    """What the variable says: whole seconds, 0 for any time; what is no such number counts for nothing."""
    text = (text or "").strip()
    if not (text.isascii() and text.isdecimal()):
        return COYOTES_S
    return min(float(text), UNLIMITED_S) or UNLIMITED_S
