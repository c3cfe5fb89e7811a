"""The tools that the `tools:` lists of llm nodes may name (spec/graph-agents.md 2.3).

These are global tools, the functions of the folder's tools file, the tools for talking to people and to other agents,
and the functions of the declared MCP servers; for a config.yaml agent also the tools of its todo list. A tools file is
only scanned for names here; the parameters are read where the functions are called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sleipnir.graph.model import Graph, LlmNode
from sleipnir.graph.python_source import statements

MCP = "mcp:"
MCP_FUNCTIONS = ("mcp_search_", "mcp_describe_", "mcp_invoke_")
INSTRUCTIONS = "_instructions"
"""The function of an agent's tools file that writes its instructions (spec 3.4). It is never offered to a model."""

FOUND_CONTEXT = "_context"
FOUND_SOURCES = "_sources"
"""State keys of a config.yaml agent with documents: the passages found for its prompt, and their sources (spec 8.7)."""

OWN_TOOLS = "agent:*"
"""An entry in the tools of a config.yaml agent: every function of its own tools file."""

TODO_TOOLS = ("todo__init", "todo__add", "todo__done", "todo__list", "todo__clear")
"""Only for a config.yaml agent with `auto_continue` (spec 5)."""

USER_TOOLS = ("user__select", "user__confirm", "user__input", "user__checkbox")
SKILL_TOOLS = ("skill__list", "skill__load", "skill__unload")
"""For nodes with skills: offered in addition to their `tools:` (spec/coyote.md 3.3)."""

MESSAGE_TOOLS = ("agent__send_message", "agent__check_inbox")
SPAWN_TOOLS = (
    "agent__spawn",
    "agent__check",
    "agent__collect",
    "agent__list_running",
    "agent__list_available",
    "agent__cancel",
    "agent__task_create",
    "agent__task_list",
    "agent__task_complete",
    "agent__task_fail",
    "agent__reply_escalation",
)
"""Tools that start agents, query them and plan their tasks. Only a graph with an agent node, or a config.yaml agent
with `can_spawn_agents`, may start further agents."""

FORMER: Final[Mapping[str, str]] = {"user__ask": "user__select", "agent__list": "agent__list_running"}
"""Names of built-in tools in releases of Loki before 0.8, which agents still use (spec/coyote.md 7, 8)."""

_EXTENSION = re.compile(r"\.(?:sh|py|ts)\Z")
_BASH_COMMAND = re.compile(r"#+\s*@cmd\b")
_BASH_FUNCTION = re.compile(r"(?:function\s+([\w.:-]+)|([\w.:-]+)\s*\(\s*\))")
_TS_FUNCTION = re.compile(r"^export\s+(?:default\s+)?(?:async\s+)?function\s+([\w$]+)", re.MULTILINE)


@dataclass(frozen=True)
class CustomTools:
    """The functions of a folder's tools file. `complaint`: why they are not known; None if they are.
    `has_instructions`: one of them writes the agent's instructions; it is not offered to a model."""

    names: tuple[str, ...] = ()
    complaint: str | None = None
    has_instructions: bool = False


def stem(tool: str) -> str:
    """The declared name of a tool: graphs may write it with its file's extension."""
    return _EXTENSION.sub("", tool)


def known_tools(graph: Graph, custom: CustomTools) -> list[str]:
    """Every name that a `tools:` list of this graph may hold, except `mcp:<server>`."""
    declared = [stem(name) for name in graph.global_tools]
    mcp = [prefix + server for server in graph.mcp_servers for prefix in MCP_FUNCTIONS]
    spawn = SPAWN_TOOLS if graph.can_spawn_agents else ()
    loop = () if graph.loop is None else (OWN_TOOLS, *todo_tools(graph))
    built_in = [*USER_TOOLS, *MESSAGE_TOOLS, *spawn]
    former = [name for name, now in FORMER.items() if now in built_in]
    return [*declared, *custom.names, *mcp, *built_in, *former, *loop]


def present(tool: str) -> str:
    """The current name of a built-in tool; other names are unchanged."""
    return FORMER.get(tool, tool)


def may_spawn(graph: Graph) -> bool:
    """Whether a model of the graph, or of one of its `graphs`, may start any agents."""
    return any(
        present(name) in SPAWN_TOOLS
        for each in (graph, *graph.graphs.values())
        if each.can_spawn_agents
        for node in each.nodes.values()
        if isinstance(node, LlmNode)
        for name in node.tools or ()
    )


def todo_tools(graph: Graph) -> tuple[str, ...]:
    """The todo tools of an agent; none for an agent without `auto_continue` (spec 5)."""
    return TODO_TOOLS if graph.loop is not None and graph.loop.auto_continue else ()


def custom_tools(folder: Path) -> CustomTools:
    """The functions of the first of tools.sh, tools.py and tools.ts that the folder has."""
    for name, scan in _SCANS.items():
        file = folder / name
        if not file.is_file():
            continue
        try:
            names = list(scan(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError, RecursionError) as error:
            return CustomTools(complaint=f"{name} cannot be read, so its functions are not known: {error}")
        offered = tuple(name for name in names if not name.startswith("_"))
        return CustomTools(offered, has_instructions=INSTRUCTIONS in names)
    return CustomTools()


def _bash_commands(text: str) -> Iterator[str]:
    is_command = False
    for line in text.splitlines():
        if _BASH_COMMAND.match(line):
            is_command = True
        elif is_command and (function := _BASH_FUNCTION.match(line)):
            is_command = False
            name = (function[1] or function[2]).rstrip("_").replace("-", "_")
            if ":" not in name:
                yield name


def _python_functions(text: str) -> Iterator[str]:
    for statement in statements(text):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _declared_as(statement.name)


def names_of(statement: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement may bind, `*` for all of another module. May hold too many, never too few."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for part in ast.walk(statement):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.alias):
            yield part.asname or part.name
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name


def _typescript_functions(text: str) -> Iterator[str]:
    for function in _TS_FUNCTION.finditer(text):
        yield from _declared_as(function[1])


def _declared_as(name: str) -> Iterator[str]:
    """The name as written, and in the form that Loki offers to a model (`getIP` becomes `getip`)."""
    yield name
    if name.startswith("_"):
        return
    declared = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if declared != name:
        yield declared


_SCANS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "tools.sh": _bash_commands,
    "tools.py": _python_functions,
    "tools.ts": _typescript_functions,
}
