"""The tools of an MCP server: search by words, description by name (spec 4.6). Independent of connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleipnir_workers.mcp.ranking import Ranking


@dataclass(frozen=True)
class Tool:
    """A tool of a server. `repeatable`: the server declares it idempotent or read-only."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    repeatable: bool = False


class Catalogue:
    """All tools of one server, in the order of its list. Of two tools with the same name, the first counts."""

    def __init__(self, server: str, tools: Sequence[Tool]) -> None:
        self.server = server
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self._tools.setdefault(tool.name, tool)
        self._ranking = Ranking([f"{tool.name}\n{tool.description}\nserver:{server}" for tool in self._tools.values()])

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def search(self, query: str, top_k: int) -> list[dict[str, str]]:
        """The best matches, in the form of `mcp_search_<server>`."""
        tools = list(self._tools.values())
        matches = [tools[position] for position in self._ranking.best(query, top_k)]
        return [{"name": tool.name, "server": self.server, "description": tool.description} for tool in matches]


def described(tool: Tool) -> dict[str, Any]:
    """The arguments of `mcp_invoke_<server>` for this tool, as a JSON schema."""
    return {"type": "object", "properties": {"tool": {"type": "string"}, "arguments": dict(tool.input_schema)}}


def not_found(tool: str, server: str) -> str:
    return f"{tool} not found in {server} MCP server catalog"
