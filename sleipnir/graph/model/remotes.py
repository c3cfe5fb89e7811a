"""Agents of other deployments that a graph names: remote agents, reached by A2A.

A run of one is a run of Sleipnir's own, of a graph that is made here: one node that a worker executes, and its end. So
questions, cancels, retries and mappings of such an agent node are those of any agent node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sleipnir.graph.model.node_base import NodeBase

REMOTE: Final = "remote"
"""The id of the node of such a graph."""

REMOTE_OUTPUT: Final = "output"
"""The state key of the text that a remote agent has returned."""


@dataclass(frozen=True, kw_only=True)
class RemoteAgent:
    """Added: where a remote agent is, and the name under which workers have its token (None: it needs none)."""

    a2a: str
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteNode(NodeBase):
    """A task of a remote agent. Never written in a file: it is the node of the graph of a remote agent."""

    kind = "remote"
    url: str
    token: str | None = None
