"""The agents that have tools, and the names of these.

Rule. The folders are read at each request, so that a new agent is there without a restart; what has not changed is not
read again.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from sleipnir.agents import finding
from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.errors import SleipnirError, UsageError
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import Graph
from sleipnir.mcp_server.arguments import input_schema
from sleipnir.settings import Settings

MOST_CHARACTERS: Final = 48
"""Of a tool's name: models take 64 characters, and clients put the name of the server in front."""

MOST_DESCRIBED: Final = 2_000  # characters of a description, which each conversation of a client pays for

RESERVED: Final = frozenset(("list_runs", "show_run", "wait_for_run", "answer_question", "cancel_run"))

_PLAIN: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MOST_CHARACTERS}}}")


@dataclass(frozen=True)
class AgentTool:
    """The tool of an agent. `agent` is what it is submitted by: its name, or its folder."""

    name: str
    agent: str | Path
    title: str
    graph: Graph

    @property
    def description(self) -> str:
        """For the model of the client: what the agent does, and an example of a prompt."""
        told = self.graph.description.strip() or f"Runs the agent {self.title!r}."
        if self.graph.conversation_starters:
            told += f"\nFor example: {self.graph.conversation_starters[0]}"
        return told if len(told) <= MOST_DESCRIBED else told[: MOST_DESCRIBED - 1] + "…"

    @property
    def input_schema(self) -> dict[str, Any]:
        return input_schema(self.graph, os.environ)


@dataclass
class AgentCatalogue:
    """The tools of agents: of those that were `named`, or of all (None). Its methods read files, and start a process
    for a graph.py that has changed: call them in a thread."""

    settings: Settings
    named: tuple[str, ...] | None = None
    _preparation: AgentPreparation = field(init=False)
    _reported: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._preparation = AgentPreparation(self.settings, packs=False)

    def check(self) -> None:
        """Raises AgentNotFound for a named agent that does not exist, and GraphError for one that cannot run."""
        for agent in self.named or ():
            self._preparation.agent(agent)

    def tools(self) -> list[AgentTool]:
        """The tools of all agents that can run, by name. Broken agents are left out, and logged."""
        found: dict[str, AgentTool] = {}
        for agent in finding.names(self.settings) if self.named is None else self.named:
            try:
                tool = self._tool(agent)
            except SleipnirError as error:
                self._report(agent, str(error))
            else:
                found.setdefault(tool.name, tool)
        return [found[name] for name in sorted(found)]

    def tool(self, name: str) -> AgentTool:
        """The tool of that name. Raises UsageError, and GraphError for an agent that cannot run."""
        agents = self._agents()
        if name not in agents:
            hint = suggestion(name, sorted({*agents, *RESERVED}), "tools")
            raise UsageError(f"there is no tool {name[:100]!r}. {hint or ''}".rstrip())
        return self._tool(agents[name])

    def titles(self) -> frozenset[str] | None:
        """The names of the agents whose runs clients see; None: of all."""
        return None if self.named is None else frozenset(_title(agent) for agent in self.named)

    def _agents(self) -> dict[str, str]:
        """What agents are found by, by the names of their tools; also of broken ones."""
        found: dict[str, str] = {}
        for agent in finding.names(self.settings) if self.named is None else self.named:
            found.setdefault(tool_name(_title(agent)), agent)
        return found

    def _tool(self, agent: str) -> AgentTool:
        prepared = self._preparation.agent(agent)
        title = prepared.folder.name
        return AgentTool(tool_name(title), agent, title, prepared.graph)

    def _report(self, agent: str, problem: str) -> None:
        if self._reported.get(agent) != problem:
            self._reported[agent] = problem
            structlog.get_logger().warning("agent has no tool", agent=agent, problem=problem)


def _title(agent: str) -> str:
    return Path(os.path.normpath(agent)).absolute().name if os.sep in agent or agent in (".", "..") else agent


def tool_name(agent: str) -> str:
    """The name of an agent's tool: its own, if models take it. Else what is left of it, and a digest, so that no other
    agent has the same."""
    if _PLAIN.fullmatch(agent) and agent not in RESERVED:
        return agent
    digest = hashlib.sha256(agent.encode(errors="surrogateescape")).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', agent)[: MOST_CHARACTERS - 7]}_{digest}"
