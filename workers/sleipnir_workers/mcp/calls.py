"""A model's call of an MCP function: arguments in, JSON for the model out (spec 4.5.5, 4.6)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from sleipnir.tools.mcp_config import McpServer
from sleipnir_workers.mcp.connections import CALL_S, Connections
from sleipnir_workers.mcp.declarations import TOP_K, split_name
from sleipnir_workers.mcp.failures import McpFailed

FAILED: Mapping[str, str] = {
    "search": "MCP search failed",
    "describe": "MCP describe failed",
    "invoke": "MCP tool invocation failed",
}


def answer(
    name: str,
    arguments: Mapping[str, Any],
    servers: Mapping[str, McpServer],
    connections: Connections,
    *,
    timeout_s: float = CALL_S,
    lost: threading.Event | None = None,
) -> Any:
    """The answer to a call of `name`, which is one of the three functions of a server in `servers`.

    A failure is an answer too: `{"tool_call_error": "MCP search failed: ..."}`. Secrets of the server are removed from
    answers, because a tool may print its environment. Answers may be large; the caller shortens them. Raises VisitLost,
    and ValueError for a name that is no MCP function.
    """
    parts = split_name(name)
    if parts is None:
        raise ValueError(f"{name!r} is no MCP function")
    function, server_name = parts
    try:
        if (server := servers.get(server_name)) is None:
            raise McpFailed(f"MCP server '{server_name}' is not in mcp.json; there are {', '.join(servers) or 'none'}")
        match function:
            case "search":
                query, top_k = _query(arguments), _top_k(arguments)
                return connections.search(server, query, top_k, timeout_s=timeout_s, lost=lost)
            case "describe":
                described = connections.describe(server, _tool(arguments), timeout_s=timeout_s, lost=lost)
                return _cleaned(described, server)
            case "invoke":
                tool, tool_arguments = _tool(arguments), _arguments(arguments)
                return _cleaned(
                    connections.invoke(server, tool, tool_arguments, timeout_s=timeout_s, lost=lost), server
                )
    except McpFailed as error:
        return {"tool_call_error": f"{FAILED[function]}: {error}"}


def _cleaned(value: Any, server: McpServer) -> Any:
    match value:
        case str():
            return server.clean(value)
        case list():
            return [_cleaned(item, server) for item in value]
        case dict():
            return {key: _cleaned(item, server) for key, item in value.items()}
        case _:
            return value


def _query(arguments: Mapping[str, Any]) -> str:
    query = arguments.get("query")
    if not isinstance(query, str):
        raise McpFailed("'query' is missing; it must be a text")
    return query


def _top_k(arguments: Mapping[str, Any]) -> int:
    top_k = arguments.get("top_k")
    if top_k is None:
        return TOP_K
    if isinstance(top_k, bool) or not isinstance(top_k, int | float) or top_k != top_k // 1:
        raise McpFailed("'top_k' must be a whole number")
    return int(top_k)


def _tool(arguments: Mapping[str, Any]) -> str:
    tool = arguments.get("tool")
    if not isinstance(tool, str) or not tool:
        raise McpFailed("'tool' is missing; it must be the name of a tool")
    return tool


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for the tool: an object, or its JSON text, which some models write."""
    value = arguments.get("arguments")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise McpFailed("'arguments' must be an object") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise McpFailed("'arguments' must be an object")
    return value
