"""The declarations of MCP servers for a model: three functions per server instead of its tools (spec 4.6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

Function: TypeAlias = Literal["search", "describe", "invoke"]

FUNCTIONS: tuple[Function, ...] = ("search", "describe", "invoke")
TOP_K = 8
MOST_TOP_K = 20


def declarations(servers: Iterable[str]) -> list[dict[str, Any]]:
    """The functions of these servers, in the form of OpenAI's `tools`. Makes no request to a server."""
    return [_declaration(function, server) for server in servers for function in FUNCTIONS]


def function_name(function: Function, server: str) -> str:
    return f"mcp_{function}_{server}"


def split_name(name: str) -> tuple[Function, str] | None:
    """Function and server in a call's name; None if it is no MCP function."""
    for function in FUNCTIONS:
        prefix = function_name(function, "")
        if name.startswith(prefix) and len(name) > len(prefix):
            return function, name[len(prefix) :]
    return None


def _declaration(function: Function, server: str) -> dict[str, Any]:
    description, properties, required = _contents(function, server)
    return {
        "type": "function",
        "function": {
            "name": function_name(function, server),
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": [required]},
        },
    }


def _contents(function: Function, server: str) -> tuple[str, dict[str, Any], str]:
    """Description, parameters and the required parameter."""
    search, describe, invoke = (function_name(each, server) for each in FUNCTIONS)
    tool = {"type": "string", "description": f"The name of the tool, as {search} gives it."}
    match function:
        case "search":
            return (
                f"Find tools of the MCP server '{server}' by what they do. Gives names and descriptions, best first. "
                f"Then call {describe} for the arguments of a tool, before {invoke}.",
                {
                    "query": {"type": "string", "description": "Words that say what the tool should do."},
                    "top_k": {
                        "type": "integer",
                        "description": f"How many tools to give: {TOP_K} unless said, {MOST_TOP_K} at most.",
                        "minimum": 1,
                        "maximum": MOST_TOP_K,
                        "default": TOP_K,
                    },
                },
                "query",
            )
        case "describe":
            return (
                f"Give the JSON schema of the arguments of a tool of the MCP server '{server}'. "
                f"Always call this before {invoke}.",
                {"tool": tool},
                "tool",
            )
        case "invoke":
            return (
                f"Call a tool of the MCP server '{server}'. Always call {describe} first, and give the arguments "
                f"that its schema asks for.",
                {
                    "tool": tool,
                    "arguments": {
                        "type": "object",
                        "description": f"The arguments of the tool, by the schema that {describe} gives.",
                        "default": {},
                    },
                },
                "tool",
            )
