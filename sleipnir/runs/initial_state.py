"""The initial state of a run. For submitted runs and child runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sleipnir.errors import ThreadBusy, UsageError
from sleipnir.graph import history
from sleipnir.graph.message_keys import MESSAGES, USER_INPUT
from sleipnir.graph.model import Graph
from sleipnir.graph.plain import first_not_json
from sleipnir.graph.reducers import ReducerError, fold, is_custom
from sleipnir.graph.state import StateError, initial
from sleipnir.messages import MOST_KEYS
from sleipnir.runs.run import QueuedTurn
from sleipnir.runs.threads import ThreadName


class WrongState(UsageError):
    """A run cannot start with the given state. `problems` has all problems, one line each."""

    def __init__(self, agent: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"agent {agent!r} cannot begin with this state:{listed}\n{_HOW_TO_GIVE}")
        self.problems = tuple(problems)


def state_at_start(
    graph: Graph, prompt: str, given: Mapping[str, Any], limit_bytes: int, unchecked: Collection[str] = ()
) -> dict[str, Any]:
    """The run's initial state; the schemas of `unchecked` keys were applied before. Raises UsageError: WrongState with
    all missing keys and keys of the wrong type."""
    refuse_not_given(given)
    try:
        begin = initial(graph, {**given, "initial_prompt": prompt}, unchecked)
    except StateError as error:
        raise WrongState(graph.name, error.problems) from None
    _refuse_size(begin, given, limit_bytes)
    return begin


def state_of_turn(
    graph: Graph, prompt: str, given: Mapping[str, Any], before: Mapping[str, Any], limit_bytes: int
) -> dict[str, Any]:
    """The state that a run of a thread begins with: the values `before` at the end of the run before it, and those
    given, which replace them; in a graph that is written in Python they go through the built-in reducers. All values
    are checked against the graph as it is now. Raises like state_at_start."""
    refuse_not_given(given)
    before = history.at_start(graph, before)
    past = {key: value for key, value in before.items() if key not in _NOT_GIVEN and not _is_of_turn(graph, key)}
    try:
        begin = initial(graph, {**past, **given, "initial_prompt": prompt})
        for key in given.keys() & past.keys() if graph.state_classes else ():
            if (reducer := graph.reducer_of(key)) is not None and not is_custom(reducer):
                begin[key] = fold(reducer, past[key], given[key], strict=False)
    except StateError as error:
        raise WrongState(graph.name, error.problems) from None
    except ReducerError as error:
        raise WrongState(graph.name, [str(error)]) from None
    _refuse_size(begin, given, limit_bytes)
    return {key: past[key] if key in past and key not in given else value for key, value in begin.items()}


def queued_turn(
    graph: Graph, thread: ThreadName, begin: Mapping[str, Any], given: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[QueuedTurn, dict[str, Any]]:
    """How a turn that waits changes the state that it will begin with, and its own values. `begin` is the state that it
    would begin with now, where the thread has the values `before`. Raises ThreadBusy for given values that only the
    code of the graph can fold."""
    if folded := sorted(key for key in given if is_folded_by_code(graph, key)):
        raise ThreadBusy(
            f"thread {thread.name!r} of agent {thread.agent!r} is busy, and the turn cannot be queued: the reducer of "
            f"state key {folded[0]!r} is code of the agent, which needs the state at the end of the run before it; "
            "submit it again when that is over"
        )
    folds = [key for key in given if graph.state_classes and graph.reducer_of(key) is not None]
    folds += [MESSAGES] if history.cuts(graph) and MESSAGES not in given else []
    own = {key for key in begin if key in given or key == "initial_prompt" or _is_of_turn(graph, key)}
    defaults = [key for key in begin if key not in own and key not in before]
    values = {key: begin[key] for key in (*own, *defaults)}
    return QueuedTurn(tuple(defaults), tuple(folds)), {**values, **{key: given[key] for key in folds if key in given}}


def _is_of_turn(graph: Graph, key: str) -> bool:
    """Whether each turn of a thread begins with its own value: the user's input is the prompt."""
    return graph.has_messages and key == USER_INPUT


def refuse_not_given(given: Mapping[str, Any]) -> None:
    """Raises UsageError for what is no mapping, and for keys that a submission cannot give."""
    if not isinstance(given, Mapping):
        raise UsageError(f"state must be a mapping of keys to values, not {type(given).__qualname__}")
    for key in given:
        if key in _NOT_GIVEN:
            raise UsageError(f"state key {key!r} cannot be given: {_NOT_GIVEN[key]}")


def first_state_of(graph: Graph, state: Mapping[str, Any], limit_bytes: int) -> dict[str, Any]:
    """The state that a graph written in Python has made of its input. Raises UsageError if it cannot be stored."""
    for key, value in state.items():
        if reason := first_not_json({key: value}):
            raise WrongState(graph.name, [f"state key '{key}' {reason}"])
    _refuse_size(state, state, limit_bytes)
    return dict(state)


def is_folded_by_code(graph: Graph, key: str) -> bool:
    """Whether only the code of a graph written in Python knows the first value of a key that is given."""
    return bool(graph.state_classes) and key in graph.state and is_custom(graph.reducer_of(key) or "")


def _refuse_size(begin: Mapping[str, Any], given: Collection[str], limit_bytes: int) -> None:
    if len(begin) > MOST_KEYS:
        raise UsageError(f"the state begins with {len(begin):,} keys, at most {MOST_KEYS:,} are possible; nest them")
    size = len(json.dumps({key: begin[key] for key in given}))
    if size > limit_bytes:
        raise UsageError(
            f"the given state has {size:,} bytes, more than SLEIPNIR_MAX_OUTPUT_BYTES={limit_bytes:,}. "
            "Store the data in a file and give its path"
        )


_NOT_GIVEN = {"initial_prompt": "it is the prompt", "_next": "nodes use it to select the next node"}
_HOW_TO_GIVE = "Give each with --state NAME=JSON, in Python with submit(..., state={...})"
