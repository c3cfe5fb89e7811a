"""The initial state of a run. For submitted runs and child runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sleipnir.errors import UsageError
from sleipnir.graph.model import Graph
from sleipnir.graph.state import StateError, initial
from sleipnir.messages import MOST_KEYS


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
    if not isinstance(given, Mapping):
        raise UsageError(f"state must be a mapping of keys to values, not {type(given).__qualname__}")
    for key in given:
        if key in _NOT_GIVEN:
            raise UsageError(f"state key {key!r} cannot be given: {_NOT_GIVEN[key]}")
    try:
        begin = initial(graph, {**given, "initial_prompt": prompt}, unchecked)
    except StateError as error:
        raise WrongState(graph.name, error.problems) from None
    if len(begin) > MOST_KEYS:
        raise UsageError(f"the state begins with {len(begin):,} keys, at most {MOST_KEYS:,} are possible; nest them")
    size = len(json.dumps({key: begin[key] for key in given}))
    if size > limit_bytes:
        raise UsageError(
            f"the given state has {size:,} bytes, more than SLEIPNIR_MAX_OUTPUT_BYTES={limit_bytes:,}. "
            "Store the data in a file and give its path"
        )
    return begin


_NOT_GIVEN = {"initial_prompt": "it is the prompt", "_next": "nodes use it to select the next node"}
_HOW_TO_GIVE = "Give each with --state NAME=JSON, in Python with submit(..., state={...})"
