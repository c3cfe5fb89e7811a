"""The values that the planner asks for: of states, deltas, items, windows and journals."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sleipnir.errors import RecordUnreadable
from sleipnir.messages import OVERLAY_END, OVERLAYS
from sleipnir.runs.values import KnownValues, TurnState, WantedValues
from sleipnir.store.keys import cost_field
from sleipnir.store.partitions.entries import Entry, delta_key
from sleipnir.store.partitions.fork_states import ForkStates
from sleipnir.store.partitions.run_records import check_reply
from sleipnir.store.partitions.turn_states import TurnStates

STRETCH = 500  # journal steps that one command reads


class RunValues(ForkStates, TurnStates):
    """Read values for the planner."""

    def read_values(self, wanted: Sequence[tuple[Entry, WantedValues]]) -> list[KnownValues | RecordUnreadable]:
        """Values for planning, per entry; one round trip for all. For a run with a damaged value, the error."""
        lost = [None if want.past is None else self.take_past(entry.run, want.past) for entry, want in wanted]
        turns = [None if want.turn is None else self.take_turn(entry.run, want.turn) for entry, want in wanted]
        pipe = self._client.pipeline(transaction=False)
        for entry, want in wanted:
            run = self._keys.of_run(entry.run)
            if want.whole:
                pipe.hgetall(run.state)
            else:
                _hmget(pipe, run.state, want.state)
            _hmget(pipe, delta_key(run, entry.event), want.delta)
            _hmget(pipe, run.items, want.items)
            _hmget(pipe, run.windows, want.windows)
            _hmget(pipe, run.children, {cost_field(child) for child in want.costs})
            if want.updates:
                pipe.hget(delta_key(run, entry.event), OVERLAYS)
            for first, last in _ranges(want.steps):
                pipe.lrange(run.journal, first, last)
        replies = iter(pipe.execute(raise_on_error=False))
        return [
            _with_past(_known_if_readable(entry.run, want, replies), why, turn)
            for (entry, want), why, turn in zip(wanted, lost, turns, strict=True)
        ]


def _with_past(
    known: KnownValues | RecordUnreadable,
    lost: str | RecordUnreadable | None,
    turn: TurnState | RecordUnreadable | None,
) -> KnownValues | RecordUnreadable:
    if (lost is None and turn is None) or isinstance(known, RecordUnreadable):
        return known
    if isinstance(lost, RecordUnreadable):
        return lost
    return turn if isinstance(turn, RecordUnreadable) else replace(known, lost=lost, turn=turn)


def _hmget(pipe: Any, key: str, fields: Collection[str]) -> None:
    if fields:
        pipe.hmget(key, sorted(fields))


def _known_if_readable(run_id: str, wanted: WantedValues, replies: Iterator[Any]) -> KnownValues | RecordUnreadable:
    """The values, or why they are unreadable. Always consumes its replies, because the next ones belong to others."""
    own = list(islice(replies, _replies_to(wanted)))
    try:
        for reply in own:
            check_reply(reply, "state", run_id)
        return _known(wanted, iter(own))
    except RecordUnreadable as error:
        return error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return RecordUnreadable("state", run_id, f"damaged: {ascii(str(error))[1:200]}")


def _replies_to(wanted: WantedValues) -> int:
    """The number of commands that `read_values` sends for one entry."""
    fields = (wanted.delta, wanted.items, wanted.windows, wanted.costs)
    state = 1 if wanted.whole or wanted.state else 0
    return state + sum(map(bool, fields)) + bool(wanted.updates) + len(_ranges(wanted.steps))


def _known(wanted: WantedValues, replies: Iterator[Any]) -> KnownValues:
    """The values from the replies to the commands of `read_values` for one entry."""

    def texts(fields: Collection[str]) -> dict[str, str]:
        pairs = zip(sorted(fields), next(replies), strict=True) if fields else ()
        return {field: text for field, text in pairs if text is not None}

    def values(texts_by_key: Mapping[str, str]) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in texts_by_key.items()}

    state = values(next(replies) if wanted.whole else texts(wanted.state))
    delta, items, windows = values(texts(wanted.delta)), texts(wanted.items), values(texts(wanted.windows))
    counted = values(texts({cost_field(child) for child in wanted.costs}))
    costs = {child: counted[field] for child in wanted.costs if (field := cost_field(child)) in counted}
    updates = (next(replies) or "").split(OVERLAY_END) if wanted.updates else ()
    elements = [element for _ in _ranges(wanted.steps) for element in next(replies)]
    steps = {step: journaled(element) for step, element in zip(sorted(wanted.steps), elements, strict=True)}
    return KnownValues(wanted, state, delta, steps, items, windows, tuple(updates), costs)


def _ranges(steps: Collection[int]) -> list[tuple[int, int]]:
    """The first and last steps of ranges without a gap, at most STRETCH long."""
    ranges: list[tuple[int, int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][1] + 1 and step - ranges[-1][0] < STRETCH:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
    return ranges


def journaled(element: str) -> dict[str, Any]:
    """The values written by a journal element."""
    _, *written = element.split("\n")
    return {json.loads(key): json.loads(text) for key, text in zip(written[::2], written[1::2], strict=True)}
