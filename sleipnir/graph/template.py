"""Placeholders `{{a.b[0]}}`: the state keys that a text reads, and its rendering (spec/graph-agents.md 2.6).

Rules. One pass: a substituted value is never scanned again, so user text cannot inject placeholders.
Strict rendering fails with all missing paths; lenient rendering gives "" for a missing path.
A present null is not missing; it renders as `null`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sleipnir.graph import placeholders
from sleipnir.graph.message_keys import MESSAGES, ONE_SHOT, ONE_SHOT_BY_NODE, SUMMARY
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    JoinNode,
    Json,
    LlmNode,
    LoopAgent,
    MapNode,
    Node,
    RagNode,
    RemoteNode,
    RouterNode,
    ScriptNode,
    ToolNode,
    ToolsNode,
    WaitNode,
)
from sleipnir.graph.plain import compact_json
from sleipnir.graph.tools import FOUND_CONTEXT, FOUND_SOURCES, INSTRUCTIONS

PLACEHOLDER = re.compile(r"\{\{([a-zA-Z0-9_.\[\]]+)\}\}")
_SEGMENT = re.compile(r"([^\[\]]*)((?:\[[0-9]+\])*)")
_INDEX = re.compile(r"\[([0-9]+)\]")
_INDEX_DIGITS = 18  # no list is longer; int() refuses texts of thousands of digits

MISSING: Final = object()


MOST_RENDERED = 64 * 2**20
"""The most characters that values may take in one rendered text."""


class TemplateError(Exception):
    """A strict template names missing state; `missing` lists the paths in order, with duplicates."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        names = ", ".join(f"'{path}'" for path in missing)
        super().__init__(f"Template interpolation failed: {names} not found in state")


class RenderedTooLarge(TemplateError):
    """The values of a template are together too large for one text."""

    def __init__(self) -> None:
        super().__init__([])
        self.args = (f"Template interpolation failed: the text has more than {MOST_RENDERED:,} characters",)


class _RemainingChars:
    """The characters left for a text during rendering. Placeholders multiply: a thousand of 10 MB each are 10 GB."""

    def __init__(self) -> None:
        self._left = MOST_RENDERED

    def taken(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise RenderedTooLarge
        return text


def as_text(value: Json) -> str:
    """A value inside a text: strings unchanged, everything else as compact JSON."""
    return value if isinstance(value, str) else compact_json(value)


def lookup(path: str, state: Mapping[str, Json]) -> Any:
    """The value at `path`, or MISSING."""
    value: Any = state
    for position, segment in enumerate(path.split(".")):
        match = _SEGMENT.fullmatch(segment)
        if match is None:
            return MISSING
        name, indexes = match.groups()
        if name or position == 0:
            if not isinstance(value, Mapping) or name not in value:
                return MISSING
            value = value[name]
        for index in _INDEX.findall(indexes):
            if not isinstance(value, list) or len(index) > _INDEX_DIGITS or int(index) >= len(value):
                return MISSING
            value = value[int(index)]
    return value


def render(template: str, state: Mapping[str, Json]) -> str:
    """Strict rendering. Raises TemplateError when a placeholder is missing."""
    missing: list[str] = []
    room = _RemainingChars()

    def substitute(match: re.Match[str]) -> str:
        value = lookup(match[1], state)
        if value is MISSING:
            missing.append(match[1])
            return ""
        return room.taken(as_text(value))

    text = PLACEHOLDER.sub(substitute, template)
    if missing:
        raise TemplateError(missing)
    return text


def render_lenient(template: str, state: Mapping[str, Json]) -> str:
    """Rendering where a missing placeholder is the empty string. Raises RenderedTooLarge."""
    room = _RemainingChars()

    def substitute(match: re.Match[str]) -> str:
        value = lookup(match[1], state)
        return "" if value is MISSING else room.taken(as_text(value))

    return PLACEHOLDER.sub(substitute, template)


def render_typed(template: str, state: Mapping[str, Json]) -> Json:
    """Strict rendering that keeps the type: the raw value if the text is exactly one placeholder."""
    alone = PLACEHOLDER.fullmatch(template.strip())
    if alone is None:
        return render(template, state)
    value = lookup(alone[1], state)
    if value is MISSING:
        raise TemplateError([alone[1]])
    return value


def malformed(template: str) -> str | None:
    """The first `{{...}}` that is not a placeholder and that rendering leaves unchanged; None: there is none."""
    text = PLACEHOLDER.sub("", template)
    match = re.search(r"\{\{[^}]{0,40}\}{0,2}|\}\}", text)
    return None if match is None else match[0]


def keys_read(*templates: str | None) -> frozenset[str]:
    """The top-level state keys that these templates name."""
    return frozenset(
        re.split(r"[.\[]", path, maxsplit=1)[0]
        for template in templates
        if template
        for path in PLACEHOLDER.findall(template)
    )


def apply_updates(
    updates: Mapping[str, str] | None,
    state: Mapping[str, Json],
    *,
    scoped: str | None = None,
    value: Json = None,
) -> dict[str, str]:
    """The writes of `state_updates`, given the state after the node body (spec 2.6).

    Every value is rendered leniently, stored as a string, and sees the entries above it. The node's own
    result is visible only here, under the name `scoped`: it enters the state only if an entry writes that key.
    """
    written: dict[str, str] = {}
    if not updates:
        return written
    view = dict(state)
    if scoped is not None:
        view[scoped] = value
    for key, template in updates.items():
        view[key] = written[key] = render_lenient(template, view)
    return written


def updated_by(node: Node, state: Mapping[str, Json], value: Json = None) -> dict[str, Json]:
    """All writes of a node's `state_updates`; those that are no texts see all texts. Raises RenderedTooLarge."""
    written: dict[str, Json] = {**apply_updates(node.state_updates, state, scoped=node.scoped, value=value)}
    if not node.value_updates:
        return written
    view = {**state, **written}
    if node.scoped is not None and node.scoped not in written:
        view[node.scoped] = value
    return written | {key: _rendered(content, view) for key, content in node.value_updates.items()}


def _rendered(content: Json, state: Mapping[str, Json]) -> Json:
    """A list or a mapping with its texts rendered leniently."""
    if isinstance(content, str):
        return render_lenient(content, state)
    if isinstance(content, list):
        return [_rendered(item, state) for item in content]
    return {key: _rendered(item, state) for key, item in content.items()} if isinstance(content, dict) else content


def texts_in(content: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The texts of a list or a mapping, at any depth, each with its path."""
    if isinstance(content, str):
        yield path, content
    elif isinstance(content, list | dict):
        for key, item in content.items() if isinstance(content, dict) else enumerate(content):
            yield from texts_in(item, (*path, key))


def updates_read(node: Node) -> frozenset[str]:
    """State keys that a node's state_updates read, without its scoped variable."""
    keys = keys_read(*(node.state_updates or {}).values())
    if node.value_updates:
        keys |= keys_read(*(text for _, text in texts_in(node.value_updates)))
    return keys - {node.scoped} if node.scoped else keys


def primary_templates(node: Node) -> Iterable[str | None]:
    """The templated fields of a node's body, without state_updates."""
    match node:
        case LlmNode():
            return (node.prompt, node.instructions if node.placeholders is None else None)
        case AgentNode():
            return (node.message,)
        case RagNode():
            return (node.query,)
        case ApprovalNode():
            return (node.question,)
        case InputNode():
            return (node.question, node.default)
        case EndNode():
            return (node.output,)
        case MapNode():
            return (node.over,)
        case WaitNode():
            return (node.until, node.event)
        case ScriptNode() | FunctionNode() | ToolNode() | RouterNode() | JoinNode() | ToolsNode() | RemoteNode():
            return ()


def state_read_by(node: Node, loop: LoopAgent | None = None, *, summarises: bool = False) -> frozenset[str] | None:
    """The state keys that executing a node needs. None means all of them: scripts and functions get the whole state.

    `loop` is that of the node's graph: the prompt of such an agent includes its dynamic instructions and the passages
    found in its documents, which are state keys. `summarises`: the graph has summaries of its messages.
    """
    if isinstance(node, ScriptNode | FunctionNode | RemoteNode) or (
        isinstance(node, AgentNode) and (node.mappers or node.map_out)
    ):
        return None
    read = keys_read(*primary_templates(node)) | updates_read(node)
    if isinstance(node, LlmNode) and node.placeholders is not None:
        read |= placeholders.keys_read(node.instructions or "")
    if isinstance(node, LlmNode) and node.input is not None:
        read |= {node.user_input_key, MESSAGES, ONE_SHOT, ONE_SHOT_BY_NODE} | ({SUMMARY} if summarises else set())
    if loop is None or not isinstance(node, LlmNode):
        return read
    instructions = {INSTRUCTIONS} if loop.dynamic_instructions else set()
    return read | instructions | ({FOUND_CONTEXT, FOUND_SOURCES} if loop.documents else set())
