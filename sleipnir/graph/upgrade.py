"""A graph.yaml of version 1.0 as one of sleipnir/1 that does the same, with its comments and its layout.

Rules.
1. The text is edited, never written anew. An edit counts only if the text then holds exactly the data that it should.
2. What goes on after a failure because of Loki's rule says so afterwards: `on_error: continue`.
3. Keys that do nothing in 1.0 are errors in sleipnir/1: they become comments.
4. What no edit can keep is told, not hidden: `notes` of what differs, `by_hand` of what has to be changed first.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sleipnir.graph.findings import KeyPath
from sleipnir.graph.load import parse
from sleipnir.graph.model import SLEIPNIR, FunctionNode, Graph, Json, LlmNode, MapNode, Node, ScriptNode
from sleipnir.graph.source import read

_VERSION = re.compile(r"""(["']?version["']?\s*:)\s*("[^"]*"|'[^']*'|[^\s#,}]*)""")


@dataclass
class Upgrade:
    """The new text, the changes by the line where they are now, what means something else now, and what nobody but the
    author can change, by the line of the text `before`. With something in `by_hand` the new text is not fit for use."""

    text: str
    before: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)


def upgraded(text: str, graph: Graph) -> Upgrade:
    """The upgrade of a text that holds `graph`, which is of version 1.0 and has no errors."""
    result = Upgrade(text, before=text)
    data = read(text, "").data
    _edit(result, {**data, "version": SLEIPNIR}, _with_version(text), ("version",), f"version: {SLEIPNIR}")
    for node in graph.nodes.values():
        if _goes_on_silently(graph, node):
            _add_on_error(result, node.id)
    for path, what in _unknown_keys(result.text):
        _comment_out(result, path, what)
    result.notes += _notes(graph)
    if not result.by_hand:
        result.by_hand += [str(problem) for problem in parse(result.text, "").problems if problem.level == "error"]
    return result


def _goes_on_silently(graph: Graph, node: Node) -> bool:
    """Whether the run goes on after a failure of the node though its author has not said so."""
    reacts = isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is None
    return reacts and graph.on_error_of(node) is None and bool(node.targets or node.branch)


def _notes(graph: Graph) -> Iterator[str]:
    bodies = {body for node in graph.nodes.values() if isinstance(node, MapNode) for body in node.body}
    ways = [
        node.id
        for node in graph.nodes.values()
        if node.kind not in ("end", "approval")
        and not (node.targets or node.branch or node.id in graph.joins or node.id in bodies)
    ]
    if ways:
        yield f"a branch ends at {', '.join(ways)} when no `_next` leads on; in 1.0 the run failed there"
    if any(len(node.targets) > 1 or (node.branch and node.branch.many) for node in graph.nodes.values()):
        yield "an end node ends its branch, and the run when nothing is left; in 1.0 it ended the run"
        yield "of branches that write one key without a reducer the last in visit order counts; in 1.0 the run failed"


def _edit(result: Upgrade, expected: Json, candidates: Iterator[str], path: KeyPath, change: str) -> None:
    """Take the first of the texts that holds what is expected."""
    for text in candidates:
        found = read(text, "")
        if found.readable and found.data == expected:
            result.text = text
            line = found.positions.get(path, (0, 0))[0]
            result.changes.append(f"{line}: {change}" if line else change)
            return
    line = read(result.before, "").positions.get(path, (1, 1))[0]
    result.by_hand.append(f"{line}: {change.removesuffix(': now a comment')}")


def _with_version(text: str) -> Iterator[str]:
    document = read(text, "")
    lines = text.split("\n")
    if ("version",) in document.positions:
        line, column = document.positions["version",]
        head, tail = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
        yield _replaced(lines, line, head + _VERSION.sub(rf"\1 {SLEIPNIR}", tail, count=1))
        return
    name_line, name_column = document.positions["name",]
    yield _inserted(lines, name_line + 1, f"{' ' * (name_column - 1)}version: {SLEIPNIR}")
    yield _inserted(lines, name_line, f"{' ' * (name_column - 1)}version: {SLEIPNIR}")
    yield _put_before(lines, name_line, name_column, f"version: {SLEIPNIR}, ")


def _add_on_error(result: Upgrade, node: str) -> None:
    document, lines = read(result.text, ""), result.text.split("\n")
    expected = copy.deepcopy(document.data)
    expected["nodes"][node]["on_error"] = "continue"
    line, column = document.positions["nodes", node, "type"]
    candidates = (
        _inserted(lines, line + 1, f"{' ' * (column - 1)}on_error: continue"),
        _put_before(lines, line, column, "on_error: continue, "),
    )
    _edit(result, expected, iter(candidates), ("nodes", node, "on_error"), f"node '{node}': on_error: continue")


def _unknown_keys(text: str) -> list[tuple[KeyPath, str]]:
    """The keys that sleipnir/1 refuses, the last one first."""
    positions = read(text, "").positions
    paths = {place: path for path, place in positions.items() if path}
    found = [
        (paths[problem.line, problem.column], problem.message)
        for problem in parse(text, "").problems
        if problem.level == "error"
        and problem.line is not None
        and problem.column is not None
        and (problem.line, problem.column) in paths
        and re.match(r"unknown key|'\w+' (does nothing here|has no effect)", problem.message)
    ]
    return sorted(found, key=lambda each: positions[each[0]], reverse=True)


def _comment_out(result: Upgrade, path: KeyPath, what: str) -> None:
    document, lines = read(result.text, ""), result.text.split("\n")
    expected = copy.deepcopy(document.data)
    holder = expected
    for part in path[:-1]:
        holder = holder[part]
    del holder[path[-1]]
    line, column = document.positions[path]
    last = line
    for number in range(line + 1, len(lines) + 1):
        content = lines[number - 1].strip()
        indent = len(lines[number - 1]) - len(lines[number - 1].lstrip(" "))
        if content and not content.startswith("#") and indent < column:
            break
        last = number if content else last
    gone = [_put_comment(each, column) if line <= number <= last else each for number, each in enumerate(lines, 1)]
    message = f"{what}: now a comment"
    before = len(result.changes)
    _edit(result, expected, iter(["\n".join(gone)]), path, message)
    if len(result.changes) > before:
        result.changes[-1] = f"{line}: {message}"


def _put_comment(line: str, column: int) -> str:
    return f"{line[: column - 1]}# {line[column - 1 :]}" if line.strip() else line


def _replaced(lines: list[str], line: int, text: str) -> str:
    return "\n".join([*lines[: line - 1], text, *lines[line:]])


def _inserted(lines: list[str], line: int, text: str) -> str:
    ending = "\r" if lines[0].endswith("\r") else ""
    return "\n".join([*lines[: line - 1], text + ending, *lines[line - 1 :]])


def _put_before(lines: list[str], line: int, column: int, text: str) -> str:
    old = lines[line - 1]
    return _replaced(lines, line, old[: column - 1] + text + old[column - 1 :])
