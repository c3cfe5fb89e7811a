"""Rules about the code of an agent: its scripts, and the functions, reducers and models that the graph names.

Python is only parsed; nothing is imported or executed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

from sleipnir.errors import Problem
from sleipnir.graph import check_state
from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.code_files import RUNTIMES, code_files, listing, text_of
from sleipnir.graph.findings import Findings, KeyPath, suggestion
from sleipnir.graph.model import (
    CACHED,
    STATE_GRAPH,
    AgentNode,
    CallbackPhase,
    CallCallbacks,
    FunctionNode,
    GraphNode,
    NodeCache,
    NodeCallbacks,
    ScriptNode,
    ToolsNode,
)
from sleipnir.graph.python_source import statements
from sleipnir.graph.tools import names_of

Role: TypeAlias = Literal[
    "Script", "Function", "Node function", "Mapper", "Reducer", "Model", "State class", "Exception",
    "Before callback", "After callback", "Error callback", "Event callback",
    "Before-call callback", "After-call callback",
]  # fmt: skip

_GIVEN: Final = {
    "Function": ("the state", "def {}(state):", 1),
    "Mapper": ("the state and the child", "def {}(state, child):", 2),
    "Reducer": ("two values", "def {}(current, incoming):", 2),
    "Before callback": ("the state and the node", "def {}(state, info):", 2),
    "After callback": ("four values", "def {}(state, info, result, error):", 4),
    "Error callback": ("three values", "def {}(state, info, error):", 3),
    "Event callback": ("three values", "def {}(state, info, event):", 3),
    "Before-call callback": ("three values", "def {}(state, info, call):", 3),
    "After-call callback": ("five values", "def {}(state, info, call, result, error):", 5),
}
"""By role: what a function is called with, the form it has then, and the number of its arguments."""
_AROUND_NODES: Final[Mapping[CallbackPhase, Role]] = {
    "before": "Before callback",
    "after": "After callback",
    "error": "Error callback",
    "agent_event": "Event callback",
}
_AROUND_CALLS: Final[Mapping[CallbackPhase, Role]] = {"before": "Before-call callback", "after": "After-call callback"}
_AROUND_RUNS: Final[Mapping[CallbackPhase, Role]] = {"before": "Before callback", "after": "After callback"}
_DYNAMIC = re.compile(r"\b(?:__getattr__|globals|locals|vars|setattr|exec|eval)\b")
"""Calls with which a module may define names that parsing does not show."""


@dataclass(frozen=True)
class Reference:
    """A file of the folder that a run executes: the path and role of the reference, the file, and the name inside it;
    an empty name means the whole file."""

    path: KeyPath
    role: Role
    file: str
    name: str = ""


def references(case: Case) -> Iterator[Reference]:
    for script, path in case.nodes(ScriptNode):
        yield Reference((*path, "script"), "Script", script.script)
    for path, role, call in (*_calls(case), *check_state.calls(case)):
        file, _, name = call.rpartition(":")
        if file.endswith(".py"):
            yield Reference(path, role, file, name)


def calls_installed_code(case: Case) -> bool:
    """Whether a node runs a function of an installed package, whose code is not available here."""
    return any(not call.rpartition(":")[0].endswith(".py") for _, _, call in _calls(case))


def every_script_exists(case: Case) -> None:
    """Files outside the folder have an error of their own."""
    if case.folder is None:
        return
    for reference in references(case):
        if not _leaves(case.folder, reference.file) and not _is_file(case.folder / reference.file):
            message = f"{reference.role} file not found: '{case.folder.absolute() / reference.file}'"
            hint = suggestion(reference.file, _files_near(case.folder, reference.file), "files there")
            case.findings.error(reference.path, message, hint)


def every_script_has_a_runtime(case: Case) -> None:
    """Loki reports this only at run time."""
    for node, path in case.nodes(ScriptNode):
        suffix = PurePosixPath(node.script).suffix
        if suffix in RUNTIMES or (case.folder is not None and not _is_file(case.folder / node.script)):
            continue  # a missing file has its own rule
        message = f"Unsupported script extension '{suffix}'" if suffix else "Script file has no file extension"
        hint = "Scripts are run by their extension: .sh, .py or .ts."
        case.findings.error((*path, "script"), f"{message} for '{node.script}'", hint)


def no_code_is_outside_the_folder(case: Case) -> None:
    """A run is pinned to a bundle of the folder, and workers have no other files."""
    hint = "Keep the file in the agent's folder and write its path from there."
    for reference in references(case):
        if _leaves(case.folder, reference.file):
            case.findings.error(
                reference.path, f"{reference.role} path '{reference.file}' leaves the agent's folder", hint
            )


def every_python_file_can_be_read(case: Case) -> None:
    """A warning for a file that no node names: it may be a template or data."""
    if case.folder is None:
        return
    named: set[str] = set()
    for reference in references(case):
        is_inside = not _leaves(case.folder, reference.file)
        is_new = reference.file not in named and is_inside and reference.file.endswith(".py")
        if is_new and _statements(case, reference) is None:
            report_syntax(case.findings, case.folder / reference.file, reference.path, is_named=True)
        named.add(reference.file)
    for other in case.code_files:
        file = other.relative_to(case.folder).as_posix()
        if file == "tools.py" and case.graph.loop is not None:
            continue  # every_own_tool_can_be_read
        if other.suffix == ".py" and file not in named:
            report_syntax(case.findings, other, (), is_named=file == "tools.py")


def syntax_of(folder: Path, file: str) -> list[Problem]:
    """Python syntax errors in the folder of an agent whose definition, `file`, cannot be read."""
    findings = Findings(file, {})
    for path in code_files(folder) if Path(file).name in ("graph.yaml", "config.yaml") else ():
        if path.suffix == ".py":
            report_syntax(findings, path, (), is_named=path.name == "tools.py" and path.parent == folder)
    return findings.problems


def report_syntax(findings: Findings, file: Path, path: KeyPath, *, is_named: bool) -> None:
    """Report the first syntax error of a Python file."""
    text = text_of(file)
    if text is None:
        return
    try:
        statements(text)
        return
    except SyntaxError as error:
        place = (error.lineno or 1, max(error.offset or 1, 1))
        message = f"Python cannot read this file: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        place, message = (1, 1), f"Python cannot read this file: {error}"
    report = findings.error if is_named else findings.warning
    version = f"It is parsed as Python {sys.version_info.major}.{sys.version_info.minor} and not run."
    report(path, message, version, at=place, file=str(file), code="SLP503")


def every_function_is_defined(case: Case) -> None:
    """An error if parsing the file shows all of its names, else a warning."""
    if case.folder is None:
        return
    for reference in references(case):
        body = _statements(case, reference)
        if body is None or not reference.name:
            continue
        names = {name for statement in body for name in names_of(statement)}
        if "*" in names or reference.name.partition(".")[0] in names:
            continue
        certain = _DYNAMIC.search(text_of(case.folder / reference.file) or "") is None
        verb = "does not define" if certain else "does not seem to define"
        report = case.findings.error if certain else case.findings.warning
        hint = suggestion(reference.name, sorted(names), "names there")
        report(reference.path, f"'{reference.file}' {verb} '{reference.name}'", hint)


def every_function_accepts_its_arguments(case: Case) -> None:
    """Checks functions with exactly one definition and no decorator, which may change the parameters."""
    if case.folder is None:
        return
    for reference in references(case):
        body = _statements(case, reference)
        if body is None or reference.role not in _GIVEN or _takes_by_name(case, reference):
            continue
        binding = [statement for statement in body if reference.name in names_of(statement)]
        function = binding[0] if len(binding) == 1 else None
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
            continue
        given, form, count = _GIVEN[reference.role]
        problem = _signature_problem(function, count)
        if problem is None:
            continue
        message = f"{reference.role.lower()} '{reference.name}' {problem}, but it is called with {given}"
        if isinstance(function, ast.AsyncFunctionDef):
            message = f"{reference.role.lower()} '{reference.name}' is async, but it is called as a plain function"
        place, file = (function.lineno, function.col_offset + 1), str(case.folder / reference.file)
        case.findings.error(reference.path, message, f"Write `{form.format(reference.name)}`.", at=place, file=file)


RULES: Sequence[Rule] = (
    every_script_has_a_runtime,
    every_function_is_defined,
    no_code_is_outside_the_folder,
    every_python_file_can_be_read,
    every_function_accepts_its_arguments,
)


def _calls(case: Case) -> Iterator[tuple[KeyPath, Role, str]]:
    """Every reference to Python code, but for reducers and models. A "Node function" is called with arguments by
    name."""
    for index, state_class in enumerate(case.graph.state_classes):
        yield ("state_classes", index), "State class", state_class
    for index, name in enumerate(case.graph.errors.recoverable if case.graph.errors is not None else ()):
        if ".py:" in name:
            yield ("errors", "recoverable", index), "Exception", name
    yield from _callbacks(case.graph.callbacks, ("callbacks",))
    for node_id, node in case.graph.nodes.items():
        yield from _callbacks(getattr(node, "callbacks", None), ("nodes", node_id, "callbacks"))
        if isinstance(node, FunctionNode):
            if not isinstance(node, GraphNode):
                yield ("nodes", node_id, "call"), "Function" if node.protocol == "plain" else "Node function", node.call
            if node.state_class is not None:
                yield ("nodes", node_id, "state_class"), "State class", node.state_class
            for index, router in enumerate(node.routers):
                yield ("nodes", node_id, "routers", index, "call"), "Node function", router.call
        if isinstance(node, AgentNode):
            for key, mapper in (("map_in", node.map_in), ("map_out", node.map_out)):
                if isinstance(mapper, str):
                    yield ("nodes", node_id, key), "Function" if key == "map_in" else "Mapper", mapper
        for index, tool in enumerate(node.tools if isinstance(node, ToolsNode) else ()):
            if not isinstance(tool, str) and tool.call is not None:
                yield ("nodes", node_id, "tools", index, "call"), "Node function", tool.call
        if node.branch is not None and node.branch.call is not None:
            yield ("nodes", node_id, "branch", "call"), "Function", node.branch.call
        if isinstance(node, CACHED) and isinstance(node.cache, NodeCache) and node.cache.key_func is not None:
            yield ("nodes", node_id, "cache", "key_func"), "Function", node.cache.key_func


def _callbacks(callbacks: NodeCallbacks | None, path: KeyPath) -> Iterator[tuple[KeyPath, Role, str]]:
    if callbacks is None:
        return
    yield from _named(callbacks, _AROUND_NODES, path)
    for key, around_calls in (("model", callbacks.model), ("tool", callbacks.tool)):
        if around_calls is not None:
            yield from _named(around_calls, _AROUND_CALLS, (*path, key))
    if callbacks.agent is not None:
        yield from _named(callbacks.agent, _AROUND_RUNS, (*path, "agent"))


def _named(
    callbacks: NodeCallbacks | CallCallbacks, roles: Mapping[CallbackPhase, Role], path: KeyPath
) -> Iterator[tuple[KeyPath, Role, str]]:
    for phase, role in roles.items():
        is_list = isinstance(getattr(callbacks, phase), list)
        for index, name in enumerate(callbacks.of(phase)):
            yield (*path, phase, index) if is_list else (*path, phase), role, name


def _statements(case: Case, reference: Reference) -> list[ast.stmt] | None:
    """The statements of a Python file, parsed once; None if it cannot be read."""
    if case.folder is None or not reference.file.endswith(".py") or _leaves(case.folder, reference.file):
        return None
    file = case.folder / reference.file
    if file not in case.parsed:
        text = text_of(file)
        try:
            case.parsed[file] = None if text is None else statements(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            case.parsed[file] = None
    return case.parsed[file]


def _takes_by_name(case: Case, reference: Reference) -> bool:
    """Whether it is the function of a node of a StateGraph, which takes what its parameters name, and may be async."""
    node = case.graph.nodes.get(str(reference.path[1])) if reference.path[0] == "nodes" else None
    if isinstance(node, ToolsNode):
        return "tools" in reference.path
    return isinstance(node, FunctionNode) and node.protocol == STATE_GRAPH


def _signature_problem(function: ast.FunctionDef | ast.AsyncFunctionDef, given: int) -> str | None:
    """Why a function cannot be called with `given` positional arguments; None if it can."""
    if isinstance(function, ast.AsyncFunctionDef):
        return "is async"
    arguments = function.args
    takes = len(arguments.posonlyargs) + len(arguments.args)
    needs = takes - len(arguments.defaults)
    by_name = [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    if by_name:
        return f"needs '{by_name[0]}' by name"
    if needs > given:
        return f"needs {needs} arguments"
    if takes < given and arguments.vararg is None:
        return f"takes {takes or 'no'} argument{'' if takes == 1 else 's'}"
    return None


def _leaves(folder: Path | None, file: str) -> bool:
    """Whether a path leaves the folder: by its text, and by its links if the folder is known."""
    path, depth = PurePosixPath(file), 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    if path.is_absolute() or folder is None:
        return path.is_absolute()
    try:
        return not (folder / file).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a loop of links, or a name no file can have
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _files_near(folder: Path, file: str) -> list[str]:
    """Files that the author may have meant: in the named directory, in scripts/ and next to graph.yaml."""
    places = dict.fromkeys(((folder / file).parent, folder / "scripts", folder))
    files = [path for place in places for path in listing(place) if path.suffix in RUNTIMES]
    return [path.relative_to(folder).as_posix() for path in files]
