"""How a queued turn of a thread begins, once the runs before it are over.

The commit that ends a run of the thread sends it `turn`. Then it takes the state of that run as its own
(begin_turn.lua): its values replace those, or go through the built-in reducers in a graph that is written in Python.
Until then only a cancel and holds concern it.
"""

from __future__ import annotations

import json

from sleipnir.graph import history
from sleipnir.graph.message_keys import MESSAGES
from sleipnir.graph.reducers import ReducerError, fold
from sleipnir.runs.events import Cancelled, Event, Paused, Resumed, TurnReached
from sleipnir.runs.run import QueuedTurn
from sleipnir.runs.values import TurnState, WantedTurn, WantedValues
from sleipnir_scheduler.planner.context import Context, RunFailed
from sleipnir_scheduler.planner.known import MissingValues


def concerns_one_that_waits(event: Event) -> bool:
    """Whether an event concerns a run that has not had its turn."""
    return isinstance(event, TurnReached | Cancelled | Paused | Resumed)


def takes_its_turn(context: Context, queued: QueuedTurn) -> bool:
    """Let the run be the last one of its thread, with its state. False: it is not its turn. Raises RunFailed if there
    is no state to take, or a reducer cannot fold a value."""
    turn, spec = context.known.turn, context.run.spec
    if turn is None:
        raise MissingValues(context.known.wanted | WantedValues(turn=WantedTurn(spec, queued.folds)))
    if turn.own is not None:
        wanted = WantedTurn(spec, folded=_folded(context, turn), ended_ms=turn.ended_ms)
        raise MissingValues(context.known.wanted | WantedValues(turn=wanted))
    if turn.lost is not None:
        raise RunFailed(turn.lost)
    return turn.begun


def _folded(context: Context, turn: TurnState) -> dict[str, str]:
    """The messages that it begins with, if it has none of its own, and the values that the reducers of the graph make
    of those of the run and those before, as JSON text."""
    folded: dict[str, str] = {}
    graph, own, before = context.graph, turn.own or {}, history.at_start(context.graph, turn.before)
    if MESSAGES in before and MESSAGES not in own:
        folded[MESSAGES] = json.dumps(before[MESSAGES])
    for key, value in own.items():
        if (reducer := graph.reducer_of(key)) is None or key not in before:
            continue
        try:
            folded[key] = json.dumps(fold(reducer, before[key], value, strict=False))
        except ReducerError as error:
            raise RunFailed(f"state key {key!r}: {error}") from None
    return folded
