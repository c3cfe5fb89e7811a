"""The state while one event is planned: with the changes of the event so far, and with the overlay of a visit.

Each reader raises MissingValues for values that were not fetched (known.py).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sleipnir.graph.model import FunctionNode, Graph, Json, LlmNode, RagNode, ScriptNode, ToolNode
from sleipnir.graph.reducers import ABSENT
from sleipnir.messages import overlay_of
from sleipnir.runs.transitions import CollectResults, SetValue, TakeResult, piece_field
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Visit
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.folding import Writer
from sleipnir_scheduler.planner.known import require


@dataclass(frozen=True)
class InStep:
    """A value that a journal step holds."""

    step: int


@dataclass
class Values:
    """`latest` are the keys that this event has changed so far: their values, or the journal step that has them."""

    graph: Graph
    known: KnownValues
    draft: Draft
    latest: dict[str, Any] = field(default_factory=dict)

    def state(self, keys: Collection[str], visit: Visit | None = None) -> dict[str, Json]:
        """Values of these keys, as `visit` sees them; absent ones are left out."""
        own = self.overlay(visit) if visit else {}
        rest = [key for key in keys if key not in own]
        self._require(rest)
        values = {key: value for key in rest if (value := self._value(key)) is not ABSENT}
        return {**values, **{key: own[key] for key in keys if key in own}}

    def whole_state(self) -> dict[str, Json]:
        require(self.known, WantedValues(whole=True))
        self._require(self.latest)
        return {**self.known.state, **{key: self._value(key) for key in self.latest}}

    def current(self, key: str) -> Json:
        """One key's value, or ABSENT."""
        self._require([key])
        return self._value(key)

    def overlay(self, visit: Visit) -> dict[str, Json]:
        """The values that this visit alone sees."""
        if visit.overlay is None:
            return {}
        source, _, index = visit.overlay.rpartition(".")
        record = self.draft.record
        changed = record.changed_items.get(visit.overlay)
        if isinstance(changed, SetValue):
            text = changed.text
        elif isinstance(changed, TakeResult):
            return self._taken(visit.overlay, changed)
        elif (private := record.overlays.get(visit.overlay)) is not None:
            return dict(private)
        elif int(source) == record.split:
            require(self.known, WantedValues(updates=True))
            # where no command has an update, none is delivered
            text = self.known.updates[int(index)] if self.known.updates else ""
        else:
            require(self.known, WantedValues(items=frozenset([visit.overlay, *self._next_overlays(visit)])))
            text = self.known.items.get(visit.overlay, "")
        return {key: json.loads(value) for key, value in overlay_of(text).items()}

    def require_overlays(self, fields: Iterable[str], node: str) -> None:
        """Request the overlays of visits of a node together, if starting the visits needs them."""
        started = self.graph.nodes.get(node)
        if started is None or isinstance(started, (ScriptNode, FunctionNode, LlmNode, ToolNode, RagNode)):
            return
        record = self.draft.record
        require(
            self.known, WantedValues(items=frozenset(fields) - record.overlays.keys() - record.changed_items.keys())
        )

    def item(self, field_: str) -> str | None:
        """The text of one of the run's items after the changes of this event, except items that Take changed. None: it
        does not exist."""
        changed = self.draft.record.changed_items.get(field_)
        if isinstance(changed, SetValue):
            return changed.text
        require(self.known, WantedValues(items=frozenset([field_])))
        return self.known.items.get(field_)

    def step_value(self, step: int, key: str) -> Json:
        """The value that a step of this event, or an earlier one, wrote to a key."""
        if step <= self.draft.run.step and step in self.known.steps:  # of a wide step, thousands
            return self.known.steps[step][key]
        require(self.known, self._for_step(step, [key]))
        write = self.draft.record.written(step)
        if write is None:
            return self.known.steps[step][key]
        if key in write.values:
            return write.values[key]
        return self._collected(write.collect) if write.collect else self.known.delta[key]

    def require_folds(self, writers: Sequence[Writer], keys: Iterable[str], windows: Collection[str] = ()) -> None:
        """Request all values that folding these keys needs."""
        folding = frozenset(keys)
        past: list[int] = []
        writes: list[WantedValues] = []
        for writer in writers:
            if folding.isdisjoint(writer.keys):
                continue
            if writer.step <= self.draft.run.step:
                past.append(writer.step)
            else:
                writes.append(self._for_step(writer.step, folding & set(writer.keys)))
        stored = WantedValues(steps=frozenset(past), windows=frozenset(windows))
        require(self.known, WantedValues.together([*writes, stored, self._for_keys(folding)]))

    def set(self, key: str, value: Json) -> None:
        """From here on the key has this value."""
        self.latest[key] = value

    def set_in(self, step: int, keys: Iterable[str]) -> None:
        """From here on these keys have the values that a step wrote."""
        self.latest |= dict.fromkeys(keys, InStep(step))

    def _next_overlays(self, visit: Visit) -> list[str]:
        """The overlays of the ready visits after this one, as many as were fetched before: each fetch doubles their
        number."""
        fetched = self.known.wanted.items
        if not fetched or visit.overlay in fetched:
            return []
        frontier = self.draft.visits.frontier
        later = (frontier[seq] for seq in sorted(frontier.ready) if seq > visit.seq)
        return [each.overlay for each in islice(later, len(fetched)) if each.overlay is not None]

    def _taken(self, overlay: str, taken: TakeResult) -> dict[str, Json]:
        """An overlay with the result of this event that was added to it."""
        keys = frozenset(taken.keys)
        require(self.known, WantedValues(items=frozenset([overlay]), delta=keys))
        before = overlay_of(self.known.items.get(overlay, ""))
        return {
            **{key: json.loads(value) for key, value in before.items()},
            **{key: self.known.delta[key] for key in keys if key in self.known.delta},
        }

    def _value(self, key: str) -> Json:
        latest = self.latest.get(key, ABSENT)
        if isinstance(latest, InStep):
            return self.step_value(latest.step, key)
        return self.known.state.get(key, ABSENT) if latest is ABSENT else latest

    def _require(self, keys: Iterable[str]) -> None:
        require(self.known, self._for_keys(keys))

    def _for_keys(self, keys: Iterable[str]) -> WantedValues:
        committed, wanted = [], WantedValues()
        for key in keys:
            latest = self.latest.get(key, ABSENT)
            if isinstance(latest, InStep):
                wanted |= self._for_step(latest.step, [key])
            elif latest is ABSENT:
                committed.append(key)
        return wanted | WantedValues(state=frozenset(committed))

    def _for_step(self, step: int, keys: Iterable[str]) -> WantedValues:
        write = self.draft.record.written(step)
        if write is None:
            return WantedValues(steps=frozenset([step]))
        delivered = {key for key in keys if key not in write.values}
        if write.collect and delivered:
            changed = self.draft.record.changed_items
            taken = {op.key for op in changed.values() if isinstance(op, TakeResult) and op.key is not None}
            return WantedValues(
                items=frozenset(set(_result_fields(write.collect)) - changed.keys()), delta=frozenset(taken)
            )
        return WantedValues(delta=frozenset(delivered))

    def _collected(self, collect: CollectResults) -> Json:
        if collect.pieces:
            texts = (self.known.items.get(field_) for field_ in _result_fields(collect))
            return json.loads(f"[{','.join(text for text in texts if text)}]")
        results = (self._item_result(field_) for field_ in _result_fields(collect))
        return [result for result in results if result is not ABSENT]

    def _item_result(self, field_: str) -> Json:
        """The result of a map's item; ABSENT if it has none."""
        changed = self.draft.record.changed_items.get(field_)
        if isinstance(changed, TakeResult):
            return self.known.delta[str(changed.key)]
        text = changed.text if isinstance(changed, SetValue) else self.known.items.get(field_)
        return json.loads(text) if text else ABSENT


def _result_fields(collect: CollectResults) -> list[str]:
    """The items that hold a map's results: of each item, or in pieces."""
    if collect.pieces:
        return [piece_field(collect.id, piece) for piece in range(collect.pieces)]
    return [f"{collect.id}.{index}" for index in range(collect.total)]
