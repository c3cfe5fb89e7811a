"""What a Python function of an agent has returned, as the object that a script would print: a dict, where `_next`
routes; a Command, or a list of Commands (sleipnir/commands.py); or None for an empty dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleipnir.commands import Command
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.results import typed_state
from sleipnir_workers.results.routing import NEXT


def as_output(title: str, returned: Any) -> dict[str, Json]:
    """The return value as the object that a script would print."""
    match returned:
        case dict():
            return returned
        case None:
            return {}
        case Command():
            return _single_command(title, returned)
        case list() | tuple():
            return {NEXT: list(_sends(title, returned))}
    raise _refused(title, type(returned).__qualname__, "return a dict, a Command, a list of Commands, or None")


def as_json(execution: Execution, returned: dict[str, Any]) -> dict[str, Json]:
    """`returned`, with objects of declared types converted to JSON."""
    sends = returned.get(NEXT)
    written = typed_state.all_as_json(execution, {key: value for key, value in returned.items() if key != NEXT})
    if isinstance(sends, list | tuple):
        return {**written, NEXT: [_send_as_json(execution, send) for send in sends]}
    return {**written, NEXT: sends} if NEXT in returned else written


def _send_as_json(execution: Execution, send: Any) -> Any:
    if not isinstance(send, dict) or not isinstance(send.get("update"), dict):
        return send
    return {**send, "update": typed_state.all_as_json(execution, send["update"])}


def _single_command(title: str, command: Command[Any]) -> dict[str, Json]:
    update, goto = command.update or {}, command.goto
    if not isinstance(update, Mapping):
        raise _refused(title, f"Command whose update is a {type(update).__qualname__}", "update is a dict")
    if goto is not None and not isinstance(goto, str | list | tuple):
        raise _refused(title, f"Command whose goto is a {type(goto).__qualname__}", "goto names a node or several")
    written = {key: value for key, value in update.items() if key != NEXT}
    return written if goto is None or goto == "" else {**written, NEXT: goto}


def _sends(title: str, commands: Sequence[Any]) -> Iterator[Json]:
    for index, command in enumerate(commands):
        if not isinstance(command, Command):
            raise _refused(title, f"list with a {type(command).__qualname__} at [{index}]", "it may hold Commands only")
        update = dict(command.update) if isinstance(command.update, Mapping) else command.update
        for target in command.goto if isinstance(command.goto, list | tuple) else [command.goto]:
            yield {"to": target, "update": update}


def _refused(title: str, returned: str, advice: str) -> NodeFailed:
    return NodeFailed(f"{title} returned a {returned}; {advice}", "output")
