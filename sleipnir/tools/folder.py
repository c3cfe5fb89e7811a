"""The tools that an agent has from files: its own tools file, and the global tools that it names (spec 2.3, 4.1).

Rules. The first existing file of tools.sh, tools.py, tools.ts and tools.js is the agent's tools file; all other files
are private helpers. A global tool is a file of `<functions>/tools`, named with or without its extension. A bundle
contains the tools file; global tools are those of the current machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sleipnir.agents.config_directory import functions_dirs
from sleipnir.errors import ToolFileError
from sleipnir.graph.model import Graph
from sleipnir.graph.tools import INSTRUCTIONS, MCP, MCP_FUNCTIONS, OWN_TOOLS, CustomTools, stem
from sleipnir.tools import bash, python, typescript
from sleipnir.tools.declaration import Declaration

AGENT_FILES: Final = ("tools.sh", "tools.py", "tools.ts", "tools.js")

RESERVED: Final = ("user__", "agent__", "todo__", "skill__", "mcp_search_", "mcp_describe_", "mcp_invoke_")
"""Prefixes of built-in tools, which tools of files must not have."""

_READERS: Final[Mapping[str, Callable[..., list[Declaration]]]] = {
    ".sh": bash.declarations,
    ".py": python.declarations,
    ".ts": typescript.declarations,
}
_GLOBAL_NAME: Final = re.compile(r"[\w-][\w.-]*")


@dataclass(frozen=True)
class Tools:
    """The tools for a model, global tools first. `instructions` is the agent's `_instructions`, if it has one."""

    declarations: tuple[Declaration, ...] = ()
    instructions: Declaration | None = None

    @property
    def names(self) -> list[str]:
        return [declaration.name for declaration in self.declarations]

    def find(self, name: str) -> Declaration | None:
        """The tool with this declared name, else with this file or function name; None if there is none."""
        for spelling in (name, stem(name)):
            for declaration in self.declarations:
                if spelling == declaration.name:
                    return declaration
        return next((each for each in self.declarations if stem(name) in _spellings(each)), None)

    def only(self, names: Iterable[str]) -> Tools:
        """The tools that a node's `tools:` list names; other names (`mcp:...`, `user__...`) are ignored."""
        names = list(names)
        named = [self.find(name) for name in names]
        own = OWN_TOOLS in names
        return Tools(tuple(each for each in self.declarations if each in named or (own and each.agent)))

    def listing(self) -> str:
        """The text of `{{__tools__}}` (spec 3.4): one numbered line per tool."""
        return "\n".join(
            f"{number}. {each.name}: {each.description.partition(chr(10))[0]}"
            for number, each in enumerate(self.declarations, 1)
        )


def tools_of(folder: Path, functions: Path, graph: Graph) -> Tools:
    """The tools of the agent in `folder`, which may be an unpacked bundle. Raises ToolFileError."""
    declarations = [*global_tools(graph.global_tools, functions), *agent_tools(folder)]
    offered = [declaration for declaration in declarations if declaration.name != INSTRUCTIONS]
    _check_names(offered)
    own = [declaration for declaration in declarations if declaration.name == INSTRUCTIONS and declaration.agent]
    return Tools(tuple(offered), own[0] if own else None)


def built_in(names: Iterable[str]) -> list[str]:
    """The built-in tools of a node's `tools:` list, by the names that a model sees."""
    servers = [(name, name.removeprefix(MCP)) for name in names if name.startswith(MCP)]
    functions = {name: [prefix + server for prefix in MCP_FUNCTIONS] for name, server in servers}
    tools = (functions.get(name, [name] if name.startswith(RESERVED) else []) for name in names)
    return list(dict.fromkeys(each for several in tools for each in several))


def agent_tools(folder: Path) -> list[Declaration]:
    """The declarations of the tools file in an agent's folder; empty without one. Raises ToolFileError."""
    file = next((folder / name for name in AGENT_FILES if (folder / name).is_file()), None)
    return [] if file is None else _declared(file, agent=True)


def custom_tools(folder: Path) -> CustomTools:
    """The functions that a graph in `folder` may name, or why they are not known, for the check of the graph."""
    try:
        declared = agent_tools(folder)
    except ToolFileError as error:
        return CustomTools(complaint=f"The tools of the folder are not known: {error}")
    offered = [each for each in declared if each.name != INSTRUCTIONS]
    names = dict.fromkeys(name for each in offered for name in (each.name, *_spellings(each)))
    return CustomTools(tuple(names), has_instructions=len(offered) < len(declared))


def global_tools(names: Iterable[str], functions: Path) -> Iterator[Declaration]:
    """The declarations of the global tools of these names, in the order of the names. Raises ToolFileError."""
    for file in dict.fromkeys(global_file(name, functions) for name in names):
        yield from _declared(file, agent=False)


def global_complaint(name: str, functions: Path) -> str | None:
    """Why the global tool of this name cannot be used, for the check of a graph; None if it can."""
    try:
        list(global_tools([name], functions))
    except ToolFileError as error:
        return error.message if error.line is None else str(error)
    return None


def global_file(name: str, functions: Path) -> Path:
    """The file of a global tool, in `functions` or next to it. Raises ToolFileError if there is none."""
    folder = functions / "tools"
    if not _GLOBAL_NAME.fullmatch(name):
        raise ToolFileError(folder / name, None, f"'{name}' is not the name of a global tool: write only a file's name")
    spellings = [name] if Path(name).suffix in _READERS else [name + extension for extension in _READERS]
    for place in functions_dirs(functions):
        for spelling in (*spellings, name):
            if (file := place / folder.name / spelling).is_file():
                return file
    raise ToolFileError(folder / spellings[0], None, f"Tool definition file not found: {folder / spellings[0]}")


def _declared(file: Path, *, agent: bool) -> list[Declaration]:
    try:
        changed = file.stat()
        return _read(file, agent, changed.st_mtime_ns, changed.st_size)
    except OSError as error:
        raise ToolFileError(file, None, f"cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=256)
def _read(file: Path, agent: bool, mtime_ns: int, size: int) -> list[Declaration]:
    """The declarations of a file, cached until the file changes: a worker needs them for every call."""
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise ToolFileError(file, None, f"Unsupported tool file extension: {file.suffix}; use {', '.join(_READERS)}")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ToolFileError(file, None, f"byte {error.start} is not UTF-8") from None
    declarations = reader(text, file, agent=agent)
    _check_names([declaration for declaration in declarations if declaration.name != INSTRUCTIONS])
    return declarations


def _check_names(declarations: Iterable[Declaration]) -> None:
    """Refuse duplicate names, which no model provider accepts, and names that a built-in tool would hide."""
    by_name: dict[str, Declaration] = {}
    for declaration in declarations:
        if declaration.name.startswith(RESERVED):
            taken = ", ".join(f"{prefix}*" for prefix in RESERVED)
            raise ToolFileError(
                declaration.file,
                declaration.line,
                f"`{declaration.name}` is named like a built-in tool ({taken}); rename it",
            )
        if not declaration.name:
            raise ToolFileError(declaration.file, declaration.line, "a tool needs a name with a letter or a digit")
        if declaration.name in by_name:
            first = by_name[declaration.name]
            raise ToolFileError(
                declaration.file,
                declaration.line,
                f"tool `{declaration.name}` is already declared at {first.file}:{first.line}; rename one",
            )
        by_name[declaration.name] = declaration


def _spellings(declaration: Declaration) -> tuple[str, ...]:
    """Alternative names of a tool: the file name of a global tool, the function name of an agent's tool."""
    if not declaration.agent and declaration.command in (None, python.GLOBAL_FUNCTION):
        return (declaration.file.stem,)
    return (declaration.command,) if declaration.command else ()
