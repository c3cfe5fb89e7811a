"""`python -m sleipnir.python_graph FILE`: executes the file of a graph, and prints what it defines as one line of JSON.

Started by sleipnir/graph/python_file.py. What the file prints goes to stderr. The line has `document`, the graph as its
graph.yaml; `places`, the file and line of the calls that made it; `config`, that of `with_config`; and `problems`, of
which warnings come with a document. With an object on stdin, it has what is made of it: of `state`, the input of a run,
the first state; of `states`, a list of inputs, one each, or the text of an error; of `context` the form that a run
stores.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sleipnir.errors import NodeFailed, Problem
from sleipnir.graph import history
from sleipnir.graph.plain import first_not_json
from sleipnir.python_graph.agent_modules import load
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import GraphBuildError, GraphWarning
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.objects import stored_context
from sleipnir.python_graph.references import References
from sleipnir.python_graph.run_config import stored_config
from sleipnir.python_graph.sources import references_to, unreachable
from sleipnir.python_graph.state_graph import StateGraph

CODE = "SLP108"


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore", GraphWarning)  # the answer has them
    file, given = Path(sys.argv[1]).absolute(), sys.stdin.read()
    answer = _defined(file, json.loads(given) if given else None)
    json.dump(answer, out, default=dataclasses.asdict)
    out.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that the file has started


def _defined(file: Path, given: dict[str, Any] | None) -> dict[str, Any]:
    try:
        graph = _graph(file)
        references = references_to(file.parent)
        if given is not None:
            return {what: _MADE[what](graph, value, references) for what, value in given.items()}
        if problems := unreachable(graph.parts, references):
            return {"problems": problems}
        document, config = graph.travelling(references), stored_config(graph.config)
    except GraphBuildError as error:
        return {"problems": list(error.problems) or [_raised(error, file)]}
    except (Exception, SystemExit) as error:
        return {"problems": [_raised(error, file)]}
    if reason := first_not_json(document.data):
        return {"problems": [Problem("error", f"the graph is not JSON: {reason}", *graph.parts.place, code=CODE)]}
    places = [[list(path), *place] for path, place in document.places.items()]
    return {"document": document.data, "places": places, "config": config, "problems": list(graph.warnings)}


def _first_state(graph: CompiledGraph, input: dict[str, Any], _: References) -> dict[str, Any]:
    return first_state(graph.parts, graph.objects, graph.objects.decoded(input))


def _first_states(graph: CompiledGraph, inputs: list[dict[str, Any]], _: References) -> list[dict[str, Any] | str]:
    states: list[dict[str, Any] | str] = []
    for input in inputs:
        try:
            states.append(_first_state(graph, input, _))
        except Exception as error:  # of reducers, and of classes of the file
            states.append(f"its input cannot be used: {type(error).__name__}: {error}")
    return states


def _state_of_turn(graph: CompiledGraph, turn: dict[str, Any], _: References) -> dict[str, Any]:
    before = history.at_start(graph.model, turn["before"])
    return first_state(graph.parts, graph.objects, graph.objects.decoded(turn["input"]), before)


def _stored_context(graph: CompiledGraph, context: dict[str, Any], references: References) -> dict[str, Any]:
    return stored_context(context, graph.parts.context_schema, references.to)


_MADE: Final[Mapping[str, Callable[[CompiledGraph, Any, References], Any]]] = {
    "state": _first_state,
    "states": _first_states,
    "turn": _state_of_turn,
    "context": _stored_context,
}
"""What is made of a value, by its name in the request."""


def _graph(file: Path) -> CompiledGraph:
    """Raises what the file raises, and GraphBuildError."""
    found = getattr(load(file.resolve()), "graph", None)
    if isinstance(found, StateGraph):
        return found.compile()
    if isinstance(found, CompiledGraph):
        return found
    what = f"its `graph` is a {type(found).__qualname__}" if found is not None else "it defines no `graph`"
    message = f"{what}. A {file.name} ends with `graph = builder.compile()`"
    raise GraphBuildError(message, [Problem("error", message, str(file), 1, code=CODE)])


def _raised(error: BaseException, file: Path) -> Problem:
    """An exception of the file, with the last line of the agent's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return Problem("error", f"Python cannot read this file: {error.msg}", error.filename, error.lineno, code=CODE)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(file.parent.resolve()))]
    place = (own[-1].filename, own[-1].lineno) if own else (str(file), 1)
    kind = "" if isinstance(error, GraphBuildError | NodeFailed) else f"{type(error).__name__}: "
    return Problem("error", f"its code raised {kind}{error}".rstrip(": "), *place, code=CODE)


if __name__ == "__main__":
    main()
