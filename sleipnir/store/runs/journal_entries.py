"""The entries of journals: whole ones, or outlines, which leave out what is long.

A journal may be a million entries long, and an entry some megabytes: they are read in pages. Outlines tell what a run
has done, and which entry has each value of its state, without sending the values to the reader.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sleipnir.errors import RunNotFound
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import LuaScript

if TYPE_CHECKING:
    from sleipnir.runs.transitions import Step

_OUTLINE = LuaScript("outline")
PAGE_LEAST, PAGE_MOST, PAGE_BYTES = 100, 500, 2**20  # journal entries per command; fewer if they are large

LONG: Final = 256
"""A value of more bytes is left out of an outline of a state."""

_HEADER_ONLY: Final = -1


class ValuePlace(NamedTuple):
    """Where a value of a state is: a key of an entry of a run's journal, and its bytes."""

    run: str
    step: int
    bytes_: int


class PastTexts(NamedTuple):
    """A state: its short values, and those that reducers have made, as JSON texts, and the places of the others."""

    texts: dict[str, str]
    places: dict[str, ValuePlace]


class JournalEntries(RunConnection):
    """Read the entries of journals."""

    def entries(self, run_id: str) -> Iterator[tuple[Step, bool]]:
        """The steps of a run, each with whether it wrote anything; read lazily."""
        from sleipnir.runs.transitions import Step

        for element in self._outline(run_id, None, _HEADER_ONLY):
            header, newline, _ = element.partition("\n")
            yield Step.from_json(header), bool(newline)

    def written_keys(self, run_id: str) -> Iterator[tuple[Step, Collection[str]]]:
        """The steps of a run, each with the state keys that it wrote; read lazily, without values."""
        from sleipnir.runs.journal import read_entry

        for element in self._outline(run_id, None, 0):
            step, texts = read_entry(element)
            yield step, texts.keys()

    def past_texts(self, run_id: str, step: int) -> PastTexts:
        """The state as of a journal step. Raises RunNotFound for a run, or a source of it, that has expired, and
        RecordUnreadable."""
        from sleipnir.runs.journal import StateFold, read_entry

        places: list[ValuePlace] = []

        def placed(run: str, number: int, text: str) -> str:
            """What stands for a value that was left out: its place in `places`."""
            places.append(ValuePlace(run, number, int(text[1:])))
            return f"={len(places) - 1}"

        def read(key: str, text: str) -> str:
            return self._texts_at({key: places[int(text[1:])]})[key]

        fold = StateFold(read_left_out=read)
        for run, until in self._ways(run_id, step):
            for entry, written in map(read_entry, self._checked(run, until, self._outline(run, until, LONG))):
                left_out = {key: placed(run, entry.step, text) for key, text in written.items() if text[0] == "="}
                fold.add(entry, {**written, **left_out} if left_out else written)
        texts = fold.texts()
        found = {key: places[int(text[1:])] for key, text in texts.items() if text[0] == "="}
        return PastTexts({key: text for key, text in texts.items() if key not in found}, found)

    def past_values(self, run_id: str, step: int, needed: Collection[str]) -> dict[str, Any]:
        """The same as values; None for long ones of keys that are not `needed`."""
        texts, places = self.past_texts(run_id, step)
        texts |= self._texts_at({key: place for key, place in places.items() if key in needed})
        return {**dict.fromkeys(places), **{key: json.loads(text) for key, text in texts.items()}}

    def _texts_at(self, places: Mapping[str, ValuePlace]) -> dict[str, str]:
        """The values at these places, by key. Raises RunNotFound."""
        from sleipnir.runs.journal import read_entry

        entries = list(dict.fromkeys((place.run, place.step) for place in places.values()))
        pipe = self._client.pipeline(transaction=False)
        for run, step in entries:
            pipe.lindex(self._keys.of_run(run).journal, step)
        found = dict(zip(entries, pipe.execute(), strict=True))
        if gone := next((run for (run, _), element in found.items() if element is None), None):
            raise _expired(gone)
        written = {entry: read_entry(element)[1] for entry, element in found.items()}
        return {key: written[place.run, place.step][key] for key, place in places.items()}

    def _outline(self, run_id: str, last: int | None, longest: int) -> Iterator[str]:
        """The journal's entries up to `last` (None: the last one), as outline.lua reads them."""
        keys, first = {"journal": self._keys.of_run(run_id).journal}, 0
        until = -1 if last is None else last
        while last is None or first <= last:
            page: list[str] = _OUTLINE(self._client, keys, {"first": first, "last": until, "longest": longest})
            if not page:
                return
            yield from page
            first += len(page)

    def _journal(self, run_id: str, first: int, last: int | None) -> Iterator[str]:
        """The journal's entries from `first` to `last` (None: the last one)."""
        journal, count = self._keys.of_run(run_id).journal, PAGE_LEAST
        while last is None or first <= last:
            end = first + count - 1 if last is None else min(first + count - 1, last)
            page = self._client.lrange(journal, first, end)
            yield from page
            if len(page) < end - first + 1:
                return
            first += len(page)
            count = PAGE_LEAST if sum(map(len, page)) > PAGE_BYTES else min(PAGE_MOST, count * 2)

    def _whole_journal(self, run_id: str, last: int | None) -> Iterator[str]:
        """The journal up to an entry; that of a fork after those of its sources. Raises RunNotFound for a source that
        has expired."""
        for run, until in self._ways(run_id, last):
            yield from self._checked(run, until, self._journal(run, 0, until))

    def _ways(self, run_id: str, last: int | None) -> list[tuple[str, int | None]]:
        """The runs whose journals a run continues and itself, the first one first, each with the last entry that
        counts. Raises RunNotFound."""
        from sleipnir.runs.transitions import Step

        ways: list[tuple[str, int | None]] = [(run_id, last)]
        while element := self._client.lindex(self._keys.of_run(ways[-1][0]).journal, 0):
            past = Step.from_json(element.partition("\n")[0]).past
            if past is None:
                break
            ways.append(past)
        else:
            if len(ways) > 1:
                raise RunNotFound(
                    f"run {run_id!r} was forked from run {ways[-1][0]!r}, which has expired: its journal no longer has "
                    "the states of its steps"
                )
        return ways[::-1]

    def _checked(self, run_id: str, until: int | None, elements: Iterator[str]) -> Iterator[str]:
        """These entries of a run. Raises RunNotFound if the one `until` is not the last of them."""
        count = 0
        for element in elements:
            yield element
            count += 1
        if until is not None and count <= until:
            raise _expired(run_id)


def _expired(run_id: str) -> RunNotFound:
    return RunNotFound(f"run {run_id!r} has expired while it was read")
