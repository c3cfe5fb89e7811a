"""In a child process without keys: call a function of an agent (calling.py). It may not end; the process is killed
then."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sleipnir.commands import NodeInfo
from sleipnir.errors import NodeFailed
from sleipnir.graph.plain import first_not_json
from sleipnir.python_graph.emitters import emission_sink
from sleipnir_workers.execution.lazy_state import FunctionState, StoredState
from sleipnir_workers.functions import emitting, python_call
from sleipnir_workers.functions.graph_objects import objects_of
from sleipnir_workers.results.returned import as_output

MOST_EMITTED: Final = 1_000
MOST_PRINTED: Final = 4_000
"""Characters; the last ones are logged."""


class EmittedTexts:
    """What a callback emits, as JSON texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text)

    def skip(self, count: int) -> None:
        """It is dropped."""

    @property
    def has_room(self) -> bool:
        return len(self.texts) < MOST_EMITTED


def answer(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    folder, emitted, printed = Path(request["folder"]), EmittedTexts(), io.StringIO()
    token = emission_sink.set(lambda emission: emitting.take(emitted, emission))
    try:
        with contextlib.redirect_stdout(printed):
            made = _answer(request, folder)
    except (Exception, SystemExit) as error:
        failure = error if isinstance(error, NodeFailed) else python_call.failure_of(request["title"], error, folder)
        made = {"failed": {"message": str(failure), "kind": failure.kind, "transient": failure.transient}}
    finally:
        emission_sink.reset(token)
    return {**made, "emitted": emitted.texts, "printed": printed.getvalue()[-MOST_PRINTED:]}, b""


def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the function returned, and what it left of its arguments. Raises NodeFailed, and what it raises."""
    state, arguments = FunctionState(request["state"]), request["arguments"]
    info = NodeInfo(**request["info"]) if "info" in request else None
    name = request["name"]
    function = objects_of(tuple(request["classes"]), folder).find(name) if request["classes"] else None
    function = function or python_call.function(name, folder)
    if "events" in request:
        return {"failures": _told(request, function, folder)}
    value = function(state, *(() if info is None else (info,)), *arguments)
    if inspect.iscoroutine(value):
        value.close()
        raise NodeFailed(f"{request['title']} is async, but it is called as a plain function", "callback")
    if info is None and isinstance(value, bytes):
        return {"bytes": value.hex()}
    if request.get("as_node") and value is not None:
        value = as_output(request["title"], value)
    changed, removed = state.changes(StoredState(request["state"]))
    left = {"value": value, "changed": changed, "removed": removed, "arguments": arguments}
    left |= {"context": {} if info is None else info.context}
    if problem := first_not_json(left):
        raise NodeFailed(f"{request['title']} left something that is not JSON: {problem}", "callback")
    json.dumps(left)  # what cannot be written is its failure, not that of the process
    return left


def _told(request: dict[str, Any], function: Callable[..., Any], folder: Path) -> list[str]:
    """Call an `agent_event` with each event. Returns what it raised."""
    failures = []
    for event in request["events"]:
        try:
            value = function(FunctionState(request["state"]), NodeInfo(**request["info"]), event)
            if inspect.iscoroutine(value):
                value.close()
                raise NodeFailed(f"{request['title']} is async, but it is called as a plain function", "callback")
        except (Exception, SystemExit) as error:
            failure = (
                error if isinstance(error, NodeFailed) else python_call.failure_of(request["title"], error, folder)
            )
            failures.append(str(failure))
    return failures
