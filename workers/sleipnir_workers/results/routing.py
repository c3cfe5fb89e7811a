"""The next nodes that a script or function chooses: what its `_next` may be (spec/graph-package.md F10, F14).

Rules. A string is one node, a list of strings several. A list that holds an object is a list of commands, each one
visit: {"to": node, "update": {...}}, without `to` of the same node again; a string in it is a command without update.
The empty list selects no node. Any other element of a list is an error; a `_next` that is neither a string nor a list
is ignored silently, as Loki does. The planner checks that targets exist.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json
from sleipnir.messages import MOST_KEYS, MOST_SENDS, Send

NEXT = "_next"

_SHOWN = 6  # names in a line of narration


class Route(NamedTuple):
    """As in VisitResult: `sends` None means no list of commands, `next` None the declared edges."""

    next: str | tuple[str, ...] | None = None
    sends: tuple[Send, ...] | None = None

    def note(self, what: str, node: str) -> str | None:
        """A line of narration: the choice of `what` (the body of `node`). None if it chose nothing."""
        if isinstance(self.next, str):
            return f"{what} set _next = '{self.next}'"
        if self.next is not None:
            return f"{what} set _next = {_listed([repr(name) for name in self.next])}"
        if self.sends is None:
            return None
        if not self.sends:
            return f"{what} set _next = []"
        count = "1 command" if len(self.sends) == 1 else f"{len(self.sends):,} commands"
        return f"{count}: {_listed([send.to or node for send in self.sends])}"


EDGES = Route()
"""The edges that the node declares."""


def route_of(value: Json) -> Route:
    """The route that a `_next` selects. Raises NodeFailed (`output`) that names the wrong part of a list."""
    if isinstance(value, str):
        return Route(next=value)
    if not isinstance(value, list | tuple):
        return EDGES
    if len(value) > MOST_SENDS:
        raise _wrong(f"{NEXT} names {len(value):,} visits, at most {MOST_SENDS:,} are possible; a map node takes more")
    if value and all(isinstance(item, str) for item in value):
        return Route(next=tuple(value))
    return Route(sends=tuple(_send(item, f"{NEXT}[{index}]") for index, item in enumerate(value)))


def _send(item: Json, path: str) -> Send:
    if isinstance(item, str):
        return Send(item)
    if not isinstance(item, dict):
        raise _wrong(f'{path} must be the name of a node or {{"to": node, "update": {{...}}}}, got {_quoted(item)}')
    to, update = item.get("to"), item.get("update")
    for key in item:
        if key not in ("to", "update"):
            raise _wrong(f"{path} has '{key}'; a command has `to` and `update`, and nothing else")
    if to is not None and not isinstance(to, str):
        raise _wrong(f"{path}.to must be the name of a node, got {_quoted(to)}")
    if update is not None and not isinstance(update, dict):
        raise _wrong(f"{path}.update must be an object of state keys, got {_quoted(update)}")
    if update and len(update) > MOST_KEYS:
        raise _wrong(f"{path}.update has {len(update):,} keys, at most {MOST_KEYS:,} are possible; nest them")
    return Send(to or "", {key: value for key, value in (update or {}).items() if key != NEXT})


def _wrong(message: str) -> NodeFailed:
    return NodeFailed(message, "output")


def _quoted(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 40 else text[:39] + "…"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
