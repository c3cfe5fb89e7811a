"""What an agent node in sleipnir/1 gives to its child, and takes from it: `input`, `map_in` and `map_out`.

A mapping holds templates by key; a value may also be a list or an object that has templates in it. A template that is
one placeholder gives the value itself, so a number stays a number. In `map_out` the name `child` is the child's end, as
`child_data` of runs/child_run.py makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sleipnir.graph.message_keys import responses
from sleipnir.graph.model import AgentNode, Graph, Json
from sleipnir.graph.template import PLACEHOLDER, TemplateError, keys_read, render, render_typed, texts_in

CHILD_NAME: Final = "child"
"""The name of the child's end in `map_out`."""

MESSAGES: Final = "messages"
"""The state key under which a child finds the messages of its input."""

EVERY_KEY: Final = "*"
"""In a list of state keys: all of them."""


def rendered(value: Json, state: Mapping[str, Json]) -> Json:
    """A value with its templates rendered. Raises TemplateError."""
    match value:
        case str():
            return render_typed(value, state)
        case list():
            return [rendered(item, state) for item in value]
        case dict():
            return {key: rendered(item, state) for key, item in value.items()}
    return value


def keys_given(node: AgentNode) -> frozenset[str]:
    """The state keys that the child's prompt, messages and first values are made of."""
    mapped = node.map_in if isinstance(node.map_in, dict) else None
    return keys_read(node.message, *_texts(node.messages), *_texts(mapped))


def keys_taken(node: AgentNode) -> frozenset[str]:
    """The state keys of the node's own run that `map_out` reads."""
    mapped = node.map_out if isinstance(node.map_out, dict) else None
    return keys_read(*_texts(mapped)) - {CHILD_NAME}


def keys_returned(node: AgentNode) -> tuple[str, ...] | None:
    """The state keys of the child that `map_out` reads; EVERY_KEY: all. None: the node has no `map_out`."""
    if node.map_out is None:
        return None
    if isinstance(node.map_out, str):
        return (EVERY_KEY,)
    paths = [path.split(".", 2) for text in _texts(node.map_out) for path in PLACEHOLDER.findall(text)]
    of_child = [parts for parts in paths if parts[0] == CHILD_NAME]
    keys = {root_of(parts[2]) for parts in of_child if parts[1:2] == ["state"] and len(parts) > 2}
    reads_all = any(len(parts) == 1 or parts[1:] == ["state"] for parts in of_child)
    return (EVERY_KEY,) if reads_all else tuple(sorted(keys))


def root_of(path: str) -> str:
    """The first name of a path."""
    return path.partition(".")[0].partition("[")[0]


def messages_of(node: AgentNode, state: Mapping[str, Json]) -> list[dict[str, str]]:
    """The messages that the child is given. Raises TemplateError."""
    return [
        {key: text if key == "role" else render(text, state) for key, text in each.items()}
        for each in node.messages or ()
    ]


def prompt_of(messages: list[dict[str, str]]) -> str:
    """The prompt of a child with these messages: the last one of a user."""
    return next((each["content"] for each in reversed(messages) if each["role"] == "user"), "")


def response_of(graph: Graph, node: AgentNode, text: str) -> dict[str, Json]:
    """What a node without `map_out` writes of the child's output besides its own updates: the user's input is used, and
    in a graph with messages the output is the node's response."""
    used: dict[str, Json] = {node.user_input_key: ""} if node.takes_user_input and node.user_input_key else {}
    return {**(responses(node.id, text) if graph.has_messages else {}), **used}


def written_by(node: AgentNode, state: Mapping[str, Json], child: Mapping[str, Any]) -> dict[str, Json]:
    """What `map_out` writes. After a child that did not complete, an entry that reads what it lacks writes nothing.
    Raises TemplateError."""
    values: dict[str, Json] = {}
    assert isinstance(node.map_out, dict)
    for key, template in node.map_out.items():
        try:
            values[key] = rendered(template, {**state, CHILD_NAME: child})
        except TemplateError:
            if child["status"] == "completed":
                raise
    return values


def _texts(value: Json) -> Iterator[str]:
    return (text for _, text in texts_in(value))
