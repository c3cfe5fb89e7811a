"""The card of an agent: what it does, where it is reached, and how a caller becomes known. One document for both
versions of the protocol."""

from __future__ import annotations

from typing import Any, Final

from sleipnir import __version__
from sleipnir.graph.model import Graph

MODES: Final = ["text/plain", "application/json"]


def agent_card(name: str, graph: Graph, url: str, *, has_tokens: bool) -> dict[str, Any]:
    """The card. `has_tokens`: callers must send one."""
    told = graph.description.strip() or f"Runs the agent {name!r}."
    skill = {
        "id": name, "name": name, "description": told, "tags": ["agent"], "examples": list(graph.conversation_starters),
    }  # fmt: skip
    interfaces = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": each} for each in ("1.0", "0.3")]
    card: dict[str, Any] = {
        "name": name,
        "description": told,
        "version": __version__,
        "supportedInterfaces": interfaces,
        "capabilities": {"streaming": True, "pushNotifications": False},
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [skill],
        # What follows is read by clients of 0.3.
        "url": url,
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
    }
    if has_tokens:
        scheme = {"httpAuthSecurityScheme": {"scheme": "bearer"}, "type": "http", "scheme": "bearer"}
        card |= {
            "securitySchemes": {"bearer": scheme},
            "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
            "security": [{"bearer": []}],
        }
    return card
