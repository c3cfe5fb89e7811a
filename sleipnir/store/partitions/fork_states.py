"""The states that forks take from their sources before they begin.

A fork only refers to the state that it begins with (runs.PastState), so that forks that wait cost nothing. Its source
may go on meanwhile, or be retried: then its current state is another one, and that of the step is the fold of its
journal, which never changes. Long values are copied from the journal within Redis; only what reducers have made of
several values passes through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.runs.run import PastState
from sleipnir.store.keys import RunKeys
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.record_text import dumps
from sleipnir.store.runs.journal import RunJournal
from sleipnir.store.runs.journal_entries import ValuePlace
from sleipnir.store.scripts import Arg, LuaScript

_TAKE_PAST, _COPY_VALUES = LuaScript("take_past"), LuaScript("copy_values")

AT_ONCE, AT_ONCE_BYTES = 200, 4 * 2**20
"""The values, and their bytes, that one call copies; one at least."""


class ForkStates(PartitionConnection):
    """Give forks their states."""

    def take_past(self, run_id: str, past: PastState) -> str | RecordUnreadable | None:
        """Make the state that a fork refers to its own; safe to repeat. None: it has one. A text: why there is none to
        take; an error: its source cannot be read."""
        is_apart = self._keys.of_cluster and self.partition_of(run_id) != self.partition_of(past.run)
        if not is_apart and self._take(run_id, past, {}):
            return None
        try:
            if is_apart:  # its values pass through here: no script reaches both runs
                state = RunJournal(self._client, self._keys).fold(past.run, past.step)
                texts = {key: dumps(value) for key, value in state.items()}
            else:
                texts, places = RunJournal(self._client, self._keys).past_texts(past.run, past.step)
                self._copy(run_id, places)
        except RunNotFound as gone:
            return f"the state that it begins with, of run {past.run!r} after step {past.step}, is lost: {gone}"
        except RecordUnreadable as unreadable:
            return unreadable
        self._take(run_id, past, texts, is_folded=True)
        return None

    def _take(self, run_id: str, past: PastState, texts: dict[str, str], *, is_folded: bool = False) -> bool:
        run, source = self._keys.of_run(run_id), self._keys.of_run(run_id if is_folded else past.run)
        timers = self._of(self.partition_of(run_id)).timers
        rest: list[Arg] = [part for pair in texts.items() for part in pair]
        args: dict[str, Arg] = {"run_id": run_id, "folded": int(is_folded)}
        return bool(_TAKE_PAST(self._client, _take_keys(run, source, timers), args, rest))

    def _copy(self, run_id: str, places: Mapping[str, ValuePlace]) -> None:
        """Copy values into the state of a fork, unless it has its state. Raises RunNotFound."""
        run = self._keys.of_run(run_id)
        for source, wanted in _portions(places):
            keys = {"run": run.run, "state": run.state, "journal": self._keys.of_run(source).journal}
            if not _COPY_VALUES(self._client, keys, {}, wanted):
                raise RunNotFound(f"run {source!r} has expired while it was read")


def _portions(places: Mapping[str, ValuePlace]) -> Iterator[tuple[str, list[Arg]]]:
    """What to copy with one call: the run whose journal has the values, and their entries and keys."""
    found = sorted((place.run, place.step, place.bytes_, key) for key, place in places.items())
    for run, of_run in groupby(found, itemgetter(0)):
        wanted: list[Arg] = []
        count, bytes_ = 0, 0
        for step, of_step in groupby(of_run, itemgetter(1)):
            values = list(of_step)
            if count and (count + len(values) > AT_ONCE or bytes_ + sum(map(itemgetter(2), values)) > AT_ONCE_BYTES):
                yield run, wanted
                wanted, count, bytes_ = [], 0, 0
            wanted += [step, len(values), *map(itemgetter(3), values)]
            count, bytes_ = count + len(values), bytes_ + sum(map(itemgetter(2), values))
        yield run, wanted


def _take_keys(run: RunKeys, source: RunKeys, timers: str) -> dict[str, str]:
    return {
        "source": source.run, "past": source.state, "run": run.run, "state": run.state, "journal": run.journal,
        "timers": timers, "specs": run.spec,
    }  # fmt: skip
