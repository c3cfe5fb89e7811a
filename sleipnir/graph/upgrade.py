"""Upgrade a graph.yaml of version 1.0 to an equivalent one of sleipnir/1 that keeps its comments and layout.

Rules.
1. The text is edited, never regenerated. An edit is accepted only if the text then holds exactly the expected data.
2. A node that continues after a failure by Loki's rule gets an explicit `on_error: continue`.
3. Keys without effect in 1.0 are errors in sleipnir/1: they become comments.
4. The result has no error that the original text did not have.
5. Differences that no edit can avoid are reported: `notes` for changed behaviour, `by_hand` for required changes.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sleipnir.graph.check import check
from sleipnir.graph.findings import KeyPath, position_of
from sleipnir.graph.load import GRAPH_FILE, parse
from sleipnir.graph.model import SLEIPNIR, FunctionNode, Graph, Json, LlmNode, MapNode, Node, ScriptNode
from sleipnir.graph.source import read

MOST_ENDS: Final = 20  # candidates for the end of a key between braces; a longer one is left to the author

_WITHOUT_EFFECT = ("SLP203", "SLP204", "SLP205")
"""The codes of keys that version 1.0 ignores."""

_VERSION = re.compile(r"""(["']?version["']?\s*:)\s*("[^"]*"|'[^']*'|[^\s#,}]*)""")


@dataclass
class Upgrade:
    """The new text; `changes` with their new lines; `notes` on changed behaviour; `by_hand`: changes that only the
    author can make, with their lines in `before`. If `by_hand` is not empty, the new text must not be used."""

    text: str
    before: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)


@dataclass
class _Editing:
    """A text being edited. Later edits shift the lines of earlier ones, so changes get their lines at the end."""

    text: str
    before: str
    changes: list[tuple[KeyPath | int, str]] = field(default_factory=list)
    """A changed key by its path; a key turned into a comment by its line, because no line is inserted after those."""
    by_hand: list[tuple[int, str]] = field(default_factory=list)

    def take(self, candidates: Iterable[str], allowed: Sequence[Json]) -> bool:
        """Accept the first of the texts whose data is allowed; False if there is none."""
        for text in candidates:
            document = read(text, "")
            if document.readable and document.data in allowed:
                self.text = text
                return True
        return False

    def leave(self, path: KeyPath, message: str) -> None:
        """Record a change that the author must make."""
        position = position_of(read(self.before, "").positions, path)
        self.by_hand.append((position[0] if position else 1, message))


def upgraded(text: str, graph: Graph) -> Upgrade:
    """The upgrade of a text that holds `graph`, which is of version 1.0 and can be read."""
    editing = _Editing(text, before=text)
    _set_version(editing)
    for node in graph.nodes.values():
        if _continues_implicitly(graph, node):
            _add_on_error(editing, node.id)
    for path, message in _unknown_keys(editing.text):
        _comment_out(editing, path, message)
    by_hand = editing.by_hand or _new_errors(editing)
    positions = read(editing.text, "").positions
    changes = [(at if isinstance(at, int) else positions[at][0], message) for at, message in editing.changes]
    return Upgrade(editing.text, text, _by_line(changes), list(_notes(graph)), _by_line(by_hand))


def _by_line(entries: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{line}: {text}" for line, text in sorted(entries, key=lambda entry: entry[0])]


def _new_errors(editing: _Editing) -> list[tuple[int, str]]:
    """Errors of the text that the original did not have, by their lines in the original. Other files of the agent are
    not checked."""
    errors = _errors(editing.text)
    new = errors.keys() - _errors(editing.before).keys()
    return [(_line_before(editing, line), message) for message, line in errors.items() if message in new]


def _errors(text: str) -> dict[str, int]:
    loaded = parse(text, GRAPH_FILE)
    problems = list(loaded.problems)
    if loaded.graph is not None:
        problems += check(loaded.graph, loaded.positions, GRAPH_FILE)
    return {problem.message: problem.line or 1 for problem in problems if problem.level == "error"}


def _line_before(editing: _Editing, line: int) -> int:
    texts = editing.before.split("\n"), editing.text.split("\n")
    for block in difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks():
        if block.b <= line - 1 < block.b + block.size:
            return block.a + line - block.b
    return line


def _continues_implicitly(graph: Graph, node: Node) -> bool:
    """Whether the run continues after a failure of the node without a declaration."""
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


def _set_version(editing: _Editing) -> None:
    data = {**read(editing.text, "").data, "version": SLEIPNIR}
    if editing.take(_with_version(editing.text), [data]):
        editing.changes.append((("version",), f"version: {SLEIPNIR}"))
    else:
        editing.leave(("version",), f"write `version: {SLEIPNIR}`")


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


def _add_on_error(editing: _Editing, node: str) -> None:
    document, lines = read(editing.text, ""), editing.text.split("\n")
    expected = copy.deepcopy(document.data)
    expected["nodes"][node]["on_error"] = "continue"
    place = document.positions.get(("nodes", node, "type"))
    candidates = (
        ()
        if place is None
        else (
            _inserted(lines, place[0] + 1, f"{' ' * (place[1] - 1)}on_error: continue"),
            _put_before(lines, *place, "on_error: continue, "),
        )
    )
    if editing.take(candidates, [expected]):
        editing.changes.append((("nodes", node, "on_error"), f"node '{node}': on_error: continue"))
    else:
        editing.leave(("nodes", node), f"write `on_error: continue` at node '{node}'")


def _unknown_keys(text: str) -> list[tuple[KeyPath, str]]:
    """The keys that sleipnir/1 refuses, in reverse order."""
    positions = read(text, "").positions
    paths = {place: path for path, place in positions.items() if path}
    keys = [
        (paths[problem.line, problem.column], problem.message)
        for problem in parse(text, "").problems
        if problem.level == "error"
        and problem.line is not None
        and problem.column is not None
        and (problem.line, problem.column) in paths
        and problem.code in _WITHOUT_EFFECT
    ]
    return sorted(keys, key=lambda entry: positions[entry[0]], reverse=True)


def _comment_out(editing: _Editing, path: KeyPath, message: str) -> None:
    document, lines = read(editing.text, ""), editing.text.split("\n")
    line, column = document.positions[path]
    without = [_without(document.data, path)]
    if len(path) > 1 and not _at(without[0], path[:-1]):  # it was the only key, and a key without a value is left
        without.append(_without(document.data, path[:-1], empty=True))
    candidates = itertools.chain([_lines_as_comment(lines, line, column)], _cut_out(lines, line, column))
    if editing.take(candidates, without):
        editing.changes.append((line, f"{message}: now a comment"))
    else:
        editing.leave(path, f"{message}; remove it")


def _without(data: Json, path: KeyPath, *, empty: bool = False) -> Json:
    """The data without the key at a path, or, with `empty`, with null as its value."""
    data = copy.deepcopy(data)
    holder = _at(data, path[:-1])
    if empty:
        holder[path[-1]] = None
    else:
        del holder[path[-1]]
    return data


def _at(data: Json, path: KeyPath) -> Json:
    for part in path:
        data = data[part]
    return data


def _lines_as_comment(lines: list[str], line: int, column: int) -> str:
    """The text with a key of a block, and the lines indented below it, as a comment."""
    last = line
    for number in range(line + 1, len(lines) + 1):
        content = lines[number - 1].strip()
        is_below = len(lines[number - 1]) - len(lines[number - 1].lstrip(" ")) >= column
        if content and not content.startswith("#") and not is_below:
            break
        last = number if content and is_below else last
    return "\n".join(
        _put_comment(each, column) if line <= number <= last else each for number, each in enumerate(lines, 1)
    )


def _cut_out(lines: list[str], line: int, column: int) -> Iterator[str]:
    """The texts with a key between braces moved into a comment at the end of the line: one text for each comma or brace
    that may be the key's end."""
    old, ending = lines[line - 1].removesuffix("\r"), "\r" if lines[line - 1].endswith("\r") else ""
    start = column - 1
    for end in (place.end() for place in itertools.islice(re.finditer(r"(?=[,}])", old[start:]), MOST_ENDS)):
        cut, before, after = old[start : start + end].strip(), old[:start], old[start + end :]
        before, after = (
            (before, after[1:].lstrip()) if after.startswith(",") else (before.rstrip(" ,") or before, after)
        )
        yield _replaced(lines, line, f"{before}{after.rstrip()}  # {cut}{ending}")


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
