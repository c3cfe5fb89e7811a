"""Rules about templates: braces that are not placeholders, and names that nothing writes.

Rendering leaves braces that are not a placeholder unchanged, so other braces may be intended: they are warnings, except
where they are certainly mistakes. The rules know only the writers that the file shows: if code may write a key, nothing
is reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.check_code import calls_installed_code
from sleipnir.graph.check_parallel import keys_written
from sleipnir.graph.child_values import CHILD_NAME
from sleipnir.graph.findings import KeyPath, Position, closest, suggestion
from sleipnir.graph.message_keys import SUMMARIES
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    LlmNode,
    MapNode,
    RagNode,
    ScriptNode,
    ToolNode,
    WaitNode,
)
from sleipnir.graph.source import line_and_column
from sleipnir.graph.template import PLACEHOLDER, texts_in

# Each part is bounded, so that no text takes more than linear time.
_BRACES: Final = re.compile(r"\{\{([^{}:\n]{0,80})\}\}")
_UNCLOSED: Final = re.compile(r"\{\{[ \t]{0,4}([a-zA-Z0-9_.\[\]]{1,80})[ \t]{0,4}\}?(?![}a-zA-Z0-9_.\[\]])")
_UNOPENED: Final = re.compile(r"(?<![{a-zA-Z0-9_.\[\]])\{?[ \t]{0,4}([a-zA-Z0-9_.\[\]]{1,80})[ \t]{0,4}\}\}")
_SINGLE: Final = re.compile(r"(?<![{$\\\w])\{[ \t]{0,4}([A-Za-z_]\w{0,80})[ \t]{0,4}\}(?!\})")
_BEGINS_AS_NAME: Final = re.compile(r"[#^/$.]?[ \t]*[A-Za-z_]")

ALIKE: Final = 0.75
"""How similar a key must be to a declared one to count as a misspelling."""

_ALWAYS: Final = ("initial_prompt", "_error", "last_error")
"""Keys that exist at the start of every run, or that a failure writes."""

_RESULTS: Final = ("output", "choice", "input", "event")
"""The names of a node's result in its own state_updates."""


@dataclass(frozen=True)
class RenderedText:
    """One text of the graph that is rendered. `scoped` is the name that only this text knows."""

    path: KeyPath
    text: str
    scoped: str | None = None


def templates(case: Case) -> Iterator[RenderedText]:
    """Every template in the file; none for a config.yaml agent, whose templates are not written by its author."""
    if case.graph.loop is not None:
        return
    for node_id, node in case.graph.nodes.items():
        path: KeyPath = ("nodes", node_id)
        match node:
            case LlmNode():
                own = node.instructions if node.placeholders is None else None
                texts = {"prompt": node.prompt, "instructions": own}
            case AgentNode():
                texts = {"prompt": node.prompt}
                yield from _texts_of_agent(node, path)
            case RagNode():
                texts = {"query": node.query}
            case ApprovalNode():
                texts = {"question": node.question}
            case InputNode():
                texts = {"question": node.question, "default": node.default}
            case EndNode():
                texts = {"output": node.output}
            case WaitNode():
                texts = {"until": node.until, "event": node.event}
            case MapNode():
                texts = {"for_each" if case.findings.has((*path, "for_each")) else "over": node.over}
            case _:
                texts = {}
        for key, text in texts.items():
            if text is not None and case.findings.has((*path, key)):
                yield RenderedText((*path, key), text)
        if node.branch is not None and node.branch.by is not None:
            yield RenderedText((*path, "branch", "by"), node.branch.by)
        for key, text in (node.state_updates or {}).items():
            yield RenderedText((*path, "state_updates", key), text, node.scoped)
        for place, text in texts_in(node.value_updates):
            yield RenderedText((*path, "state_updates", *place), text, node.scoped)
    if case.graph.concurrency is not None:
        yield RenderedText(("concurrency", "key"), case.graph.concurrency.key)


def _texts_of_agent(node: AgentNode, path: KeyPath) -> Iterator[RenderedText]:
    """The templates of what an agent node gives and takes. `map_out` also knows the child."""
    for place, text in texts_in(node.map_in if isinstance(node.map_in, dict) else {}, (*path, "map_in")):
        yield RenderedText(place, text)
    for place, text in texts_in(node.map_out if isinstance(node.map_out, dict) else {}, (*path, "map_out")):
        yield RenderedText(place, text, CHILD_NAME)
    if node.input is not None and node.message is not None:
        key = "template" if node.input.source is None else "from"
        yield RenderedText((*path, "input", key), node.message)
    for index, message in enumerate(node.messages or ()):
        yield RenderedText((*path, "input", "messages", index, "content"), message.get("content", ""))


def every_brace_is_a_placeholder(case: Case) -> None:
    """An error where it is certainly a mistake: in a graph of version sleipnir/1, around a key of the state."""
    known = _known(case)
    for template in templates(case):
        for braces, name in dict.fromkeys(_odd_braces(template.text, known)):
            plain = re.sub(r"\s", "", name)
            is_plain = PLACEHOLDER.fullmatch(f"{{{{{plain}}}}}") is not None
            is_key = is_plain and (_root(plain) in known or _root(plain) == template.scoped)
            hint = f"Write {{{{{plain}}}}}." if is_plain else "Write {{name}}, {{a.b}} or {{list[0]}}, without spaces."
            report = case.findings.error if is_key and not case.is_loki else case.findings.warning
            message = f"{braces!r} is not a placeholder; it stays in the text"
            report(template.path, message, hint, at=_place(case, template, braces))


def no_key_stands_in_single_braces(case: Case) -> None:
    """`{key}` of a known key is probably a misspelt `{{key}}`."""
    known = _known(case)
    for template in templates(case):
        matches = _SINGLE.finditer(PLACEHOLDER.sub(_blank, template.text))
        for braces, name in dict.fromkeys((each[0], each[1]) for each in matches):
            if name in known or name == template.scoped:
                message = f"{braces!r} is not a placeholder; it stays in the text"
                hint = f"Write {{{{{name}}}}}, with two braces."
                case.findings.warning(template.path, message, hint, at=_place(case, template, braces))


def every_name_is_written_somewhere(case: Case) -> None:
    """A warning, because state keys may also be set at submission, by name."""
    known = _known(case)
    for template in templates(case):
        reported: set[str] = set()
        for match in PLACEHOLDER.finditer(template.text):
            name = _root(match[1])
            if name in known or name == template.scoped or name in reported:
                continue
            if case.code_mentions(name) or (_may_write_any_key(case) and not closest(name, known)):
                continue
            reported.add(name)
            _report_unknown(case, template, name, known, _place(case, template, match[0]))


def every_written_key_is_declared(case: Case) -> None:
    """Undeclared keys are allowed, so only a key that resembles a declared one and that nothing reads is reported."""
    declared = [key for key in case.graph.state if key not in SUMMARIES]  # which nobody writes by hand
    if not declared:
        return
    read = {_root(match[1]) for template in templates(case) for match in PLACEHOLDER.finditer(template.text)}
    bodies = {body for node, _ in case.nodes(MapNode) for body in node.body}
    for node_id, node in case.graph.nodes.items():
        path: KeyPath = ("nodes", node_id)
        for key in keys_written(node) if node_id not in bodies else ():
            if key in declared or key in case.graph.initial_state or key in read or case.code_mentions(key):
                continue
            if not difflib.get_close_matches(key.casefold(), declared, n=1, cutoff=ALIKE):
                continue
            place = next((each for each in _places_of_write(path, key) if case.findings.has(each)), path)
            message = f"writes the key '{key}', which `state:` does not declare"
            case.findings.warning(place, message, suggestion(key, declared, "declared keys"))


RULES: Sequence[Rule] = (
    every_brace_is_a_placeholder,
    no_key_stands_in_single_braces,
    every_name_is_written_somewhere,
    every_written_key_is_declared,
)


def _report_unknown(case: Case, template: RenderedText, name: str, known: frozenset[str], at: Position | None) -> None:
    if name in _RESULTS:
        message = f"'{{{{{name}}}}}' is known in a node's own `state_updates` only"
        hint = f'Store it there, `state_updates: {{answer: "{{{{{name}}}}}"}}`, and write {{{{answer}}}} here.'
        if template.scoped is not None:
            message, hint = f"'{{{{{name}}}}}' is not the result of this node", f"It is {{{{{template.scoped}}}}}."
        case.findings.warning(template.path, message, hint, at=at, code="SLP405")
    elif name in case.graph.nodes:
        message = f"'{name}' is a node; templates read state keys"
        scoped = case.graph.nodes[name].scoped
        hint = "Name the key that the node writes."
        if scoped is not None:
            hint = f'Store its result, `state_updates: {{{name}_result: "{{{{{scoped}}}}}"}}` in it, and name that key.'
        case.findings.warning(template.path, message, hint, at=at, code="SLP404")
    else:
        message = f"nothing writes '{name}', which the text reads"
        hint = "Write it in a node, or declare it under `initial_state` or `state` if it is set at submission."
        close = closest(name, known)
        case.findings.warning(template.path, message, f'Did you mean "{close}"?' if close else hint, at=at)


def _known(case: Case) -> frozenset[str]:
    """The keys that the file writes or declares."""
    graph = case.graph
    known = {*_ALWAYS, *graph.initial_state, *graph.state, *graph.reducers}
    for node in graph.nodes.values():
        known.update(keys_written(node))
        if isinstance(node, MapNode):
            known.update((node.item, node.output_key))
        if isinstance(node, ToolNode):
            known.add(node.output_key)
    return frozenset(known)


def _may_write_any_key(case: Case) -> bool:
    """Whether a node may write any key: a function whose code is not available here, or a model whose answer has no
    fixed keys."""
    nodes = case.graph.nodes.values()
    if calls_installed_code(case):
        return True
    if case.folder is None and any(isinstance(node, ScriptNode | FunctionNode) for node in nodes):
        return True
    if any(isinstance(node, AgentNode) and isinstance(node.map_out, str) for node in nodes) and case.folder is None:
        return True
    schemas = [node.output_schema for node in nodes if isinstance(node, LlmNode | AgentNode) and node.output_schema]
    return any(
        not isinstance(schema.get("properties"), dict) or isinstance(schema.get("additionalProperties"), dict)
        for schema in schemas
    )


def _odd_braces(text: str, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Braces that look like a placeholder and are none, each with its content."""
    rest = PLACEHOLDER.sub(_blank, text)
    for match in _BRACES.finditer(rest):
        inside = match[1].strip()
        if not inside or _BEGINS_AS_NAME.match(inside):
            yield match[0], inside
    rest = _BRACES.sub(_blank, rest)
    for pattern in (_UNCLOSED, _UNOPENED):
        for match in pattern.finditer(rest):
            if _root(match[1]) in known:
                yield match[0], match[1]


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _places_of_write(path: KeyPath, key: str) -> Iterator[KeyPath]:
    yield (*path, "state_updates", key)
    yield (*path, "output_schema", "properties", key)
    yield (*path, "collect")
    yield (*path, "collect_into")


def _place(case: Case, template: RenderedText, part: str) -> Position | None:
    """The position of `part` in the file; None if the text is spelled differently there."""
    document = case.document
    if document is None or (span := document.spans.get(template.path)) is None:
        return None
    index = document.text.find(part, *span)
    return None if index < 0 else line_and_column(document.text, index)
