"""Commands for the graph above, as the run of a graph that is a node returns them: the graph above runs elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.commands import Command, Send
from sleipnir.graph.plain import first_not_json
from sleipnir.python_graph import calling, messages
from sleipnir.python_graph.objects import GraphObjects
from sleipnir.python_graph.schema import is_pydantic


def stored_command(command: Command[Any], objects: GraphObjects) -> dict[str, Any]:
    """The only key of what the run returns is that of the graph above. `objects` are those of the graph that sends it.
    Raises InvalidUpdateError and TypeError."""
    update = [[key, _stored({key: value}, objects)[key]] for key, value in calling.pairs(command.update)]
    goto = [command.goto] if isinstance(command.goto, str | Send) else command.goto or ()
    targets = [
        {"node": target.node, "arg": _stored(target.arg, objects)} if isinstance(target, Send) else target
        for target in goto
    ]
    stored = {Command.PARENT: {"update": update, "goto": targets}}
    if problem := first_not_json(stored):
        raise TypeError(f"a Command for the graph above: Type is not JSON serializable: {problem}")
    return stored


def command_of(stored: Mapping[str, Any], objects: GraphObjects) -> Command[Any]:
    """The command for the graph with these objects."""
    update = [(key, objects.decoded({key: value})[key]) for key, value in stored["update"]]
    targets = [
        target if isinstance(target, str) else Send(target["node"], _argument(target["arg"], objects))
        for target in stored["goto"]
    ]
    return Command(update=update, goto=targets)


def _argument(stored: Any, objects: GraphObjects) -> Any:
    return objects.decoded(stored) if isinstance(stored, dict) else stored


def _stored(value: Any, objects: GraphObjects) -> Any:
    """A value in its JSON form: by the key that has it, if the graph that sends it declares that key."""
    if isinstance(value, Mapping):
        known = objects.encoded({key: value[key] for key in value if key in objects.keys})
        return {key: known[key] if key in known else _plain(value[key]) for key in value}
    return _plain(value)


def _plain(value: Any) -> Any:
    """The JSON form of a value of which only the graph above knows the type."""
    if isinstance(value, messages.BaseMessage):
        return value.to_json()
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value
