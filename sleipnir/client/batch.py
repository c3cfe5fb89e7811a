"""Many runs of one agent at once: submit, watch and steer them from Python.

    with Client() as client:
        batch = client.batch("log-triage", ({"prompt": line} for line in open("logs")), name="monday")
        for info in batch.watch():
            print(info.completed, "of", info.total)
        for result in batch.results():
            print(result.key, result.output)

Rows wait in the batch and are admitted to the queues a few at a time, so that thousands of them do not delay other
runs.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sleipnir import waiting
from sleipnir.batches.records import (
    BatchInfo,
    ErrorGroup,
    RowResult,
    RowState,
    check_plan,
    row_run_id,
    row_text,
)
from sleipnir.batches.rollups import MOST_CELLS, BatchRow, BatchRowPage, EndedRows, RowGrid
from sleipnir.batches.rows import PROMPT, BadRow, Row, row_of
from sleipnir.client import replicas
from sleipnir.client.run import pause_ms
from sleipnir.errors import SleipnirError, UsageError
from sleipnir.graph import python_file
from sleipnir.python_graph import calling
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.schema import is_pydantic
from sleipnir.runs.failure_text import failure_of
from sleipnir.runs.initial_state import WrongState, first_state_of, is_folded_by_code, state_at_start
from sleipnir.settings import Settings
from sleipnir.store.batches.rows import STATES_PAGE, AddedRows
from sleipnir.store.store import Store

if TYPE_CHECKING:
    from sleipnir.client.mass_requests import OnSteered, SteeredRuns
    from sleipnir.client.preparation import PreparedBatch
    from sleipnir.python_graph.compiled import CompiledGraph
    from sleipnir.runs.comparison import ComparisonPage
    from sleipnir.runs.views import RunInfo

Given: TypeAlias = Mapping[str, Any] | Row | BadRow
"""A row: columns (`prompt`, and keys of the state), or a row that sleipnir.rows read from a file. Of a graph that a
program has built: an input, as `submit` takes it, or such a row."""

FIRST_CHUNK, CHUNK, CHUNK_BYTES = 50, 500, 2**20
"""Rows that are added at once, and about how many bytes of them: the first ones begin while others are being read."""

SHOWN_KEYS = 20

MOST_GROUPS = 1_000  # of errors; where each row has a message of its own there could be as many as rows
OTHER_MESSAGES = "other messages"

_START_S: Final = 10.0
"""How long a row that was admitted may take to become a run; schedulers need a moment."""

_PAGE: Final = 500


@dataclass(frozen=True)
class SubmittedRows:
    """The numbers of rows of one submission that are new, were already in the batch, or were refused."""

    added: int = 0
    known: int = 0
    bad: int = 0


OnBad: TypeAlias = Callable[[BadRow], None]
OnProgress: TypeAlias = Callable[[SubmittedRows], None]


class Batch:
    """A handle on one batch. Nothing is cached: every call asks Redis. All methods raise BatchNotFound if it does not
    exist.

    `submitted` is the outcome of the submission, if this process did it.
    """

    def __init__(self, store: Store, batch_id: str, submitted: SubmittedRows | None = None) -> None:
        self._store, self.id, self.submitted = store, batch_id, submitted

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"

    def info(self) -> BatchInfo:
        """State, rows by state, usage, rate and forecast."""
        with self._store.errors():
            return self._store.batches.info(self.id)

    def watch(self, every_s: float = 0.5) -> Iterator[BatchInfo]:
        """The current state, and each later change, until the batch ends. A batch that waits for a decision
        (`info.question`) has not ended."""
        shown: BatchInfo | None = None
        while True:
            info = self.info()
            if shown is None or replace(info, now_ms=shown.now_ms) != shown:
                shown = info
                yield info
            if info.is_over:
                return
            waiting.sleep(every_s)

    def wait(self, timeout_s: float | None = None) -> BatchInfo:
        """Block until it ends. Raises TimeoutError after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (info := self.info()).is_over:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"batch {self.id} is not over after {timeout_s:g} s: {info.state}")
            waiting.sleep(0.1)
        return info

    def run_id(self, row: int) -> str:
        """The id of the run that a row (counted from 0) is, or will be."""
        return row_run_id(self.id, row)

    def pause(self, *, timeout: float | None = None, on_progress: OnSteered | None = None) -> SteeredRuns:
        """Start no more rows; active rows continue.

        With a `timeout`, active rows are paused too, as Run.pause does: visits that still run after so many seconds are
        stopped (0: at once), and run again after `resume`. Returns how many rows that were. Safe to repeat.

        Raises UsageError if it was cancelled, or for a timeout that is no number of seconds.
        """
        from sleipnir.client import mass_requests

        timeout_ms = pause_ms(timeout)
        with self._store.errors():
            self._store.batches.hold(self.id, rows=timeout is not None)
            if timeout_ms is None:
                return mass_requests.SteeredRuns()
            return mass_requests.pause(
                self._store.runs, self._active_rows(), reason=_paused_with(self.id), timeout_ms=timeout_ms,
                on_progress=on_progress,
            )  # fmt: skip

    def _active_rows(self) -> Iterator[RunInfo]:
        """The runs of active rows, in pages. Raises UsageError for rows that have no run, though they were admitted."""
        deadline, unseen = time.monotonic() + _START_S, list[int]()
        for first in range(0, self._store.batches.info(self.id).total, STATES_PAGE):
            states = self._store.batches.states(self.id, first, first + STATES_PAGE - 1)
            rows = [first + place for place, state in enumerate(states) if state == "a"]
            for at in range(0, len(rows), _PAGE):
                infos = self._store.runs.find([self.run_id(row) for row in rows[at : at + _PAGE]])
                yield from (info for info in infos if info is not None)
                unseen += [row for row, info in zip(rows[at : at + _PAGE], infos, strict=True) if info is None]
        while unseen and time.monotonic() < deadline:
            waiting.sleep(0.1)
            infos = self._store.runs.find([self.run_id(row) for row in unseen])
            yield from (info for info in infos if info is not None)
            unseen = [row for row, info in zip(unseen, infos, strict=True) if info is None]
        if unseen:
            raise UsageError(
                f"{len(unseen):,} rows of batch {self.id!r} were admitted and have no run yet: is a scheduler running? "
                "Repeat this then"
            )

    def resume(self, *, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        """Resume a batch that is paused, has run its canary rows, or is over its budget; the last needs a larger
        budget. Rows that `pause` has paused with it are resumed too. Raises UsageError if it was cancelled, or is
        still over its budget."""
        from sleipnir.client import mass_requests

        info = self.info()
        plan = replace(info.plan, canary=None) if info.state == "canary" else info.plan
        if max_cost_usd is not None:
            plan = replace(plan, max_cost_usd=max_cost_usd)
        if max_tokens is not None:
            plan = replace(plan, max_tokens=max_tokens)
        check_plan(plan)
        with self._store.errors():
            if self._store.batches.holds_rows(self.id):
                paused = (row for row in self._active_rows() if row.holds)
                mass_requests.resume(self._store.runs, paused, reason=_paused_with(self.id))
            self._store.batches.go_on(self.id, plan)
        if self.info().state == "over_budget":
            raise UsageError(f"batch {self.id!r} has used its budget; give a larger one (max_cost_usd, max_tokens)")

    def set_parallel(self, parallel: int | None) -> None:
        """Set the maximum number of simultaneously active rows; active rows continue. None: the default. Raises
        UsageError when it was cancelled."""
        plan = replace(self.info().plan, parallel=parallel)
        check_plan(plan)
        with self._store.errors():
            self._store.batches.replan(self.id, plan)

    def cancel(self) -> bool:
        """Start no more rows, and cancel active ones. Ended rows are not changed. Idempotent. False: all rows had
        already ended; then nothing is changed, and the batch may get more rows."""
        with self._store.errors():
            return self._store.batches.cancel(self.id)

    def retry_failed(self) -> int:
        """Let all failed rows continue from where they failed, after the waiting rows. Returns their number. Raises
        UsageError if it was cancelled."""
        with self._store.errors():
            return self._store.batches.retry(self.id)

    def results(
        self, order: Literal["row", "done"] = "row", *, start: int = 0, follow: bool = False
    ) -> Iterator[RowResult]:
        """The ended rows, read lazily from Redis: in row order, or in the order in which they ended.

        `start` is the `position` of the last result read, 0: from the beginning. With `follow` it waits for unfinished
        rows; in row order each waits for the rows before it. Otherwise unfinished rows are omitted. In the order of
        ends a retried row appears again when it ends again.
        """
        return self._in_order(start, follow) if order == "row" else self._by_end(start, follow)

    def _in_order(self, at: int, follow: bool) -> Iterator[RowResult]:
        while True:
            with self._store.errors():
                page = self._store.batches.results(self.id, at)
            for result in page:
                if result is None and follow:
                    break
                at += 1
                if result is not None:
                    yield result
            else:
                if page:
                    continue
            if not follow or (not page and not self._more_to_come()):
                return
            waiting.sleep(0.1)

    def _by_end(self, at: int, follow: bool) -> Iterator[RowResult]:
        while True:
            over = self.info().is_over  # before the look, so that no end falls between the two
            with self._store.errors():
                page, after = self._store.batches.results_by_end(self.id, at)
            yield from page
            if after == at:
                if not follow or over:
                    return
                waiting.sleep(0.1)
            at = after

    def _more_to_come(self) -> bool:
        return not self.info().is_over

    def rows(self, state: RowState | None = None, *, start: int = 0, limit: int = 50) -> BatchRowPage:
        """At most `limit` rows from the row `start` on, in their order, with their runs: all, or those in a state."""
        with self._store.errors():
            found = self._store.batch_rollups.places(self.id, state, start, limit)
            names = self._store.batches.names_of(self.id, [row for row, _ in found.rows])
            runs = dict(zip(names, self._store.runs.find([self.run_id(row) for row in names]), strict=True))
            missing = [(self.id, row) for row, state_ in found.rows if state_ == "failed" and runs[row] is None]
            why = dict(zip(missing, self._store.batches.without_run(missing), strict=True))
        rows = (
            BatchRow(row, names[row], self.run_id(row), state_, runs[row], why.get((self.id, row), ("", None))[1])
            for row, state_ in found.rows
        )
        return BatchRowPage(tuple(rows), found.looked, found.after)

    def grid(self, cells: int = MOST_CELLS) -> RowGrid:
        """All rows in at most so many cells, with the worst state in each."""
        with self._store.errors():
            return self._store.batch_rollups.grid(self.id, cells)

    def ended_rows(self, points: int = 60) -> list[EndedRows]:
        """How many rows had ended at up to so many times, in order of time; rates follow from it."""
        with self._store.errors():
            return self._store.batch_rollups.ended(self.id, points)

    def comparisons(self, other: Batch | str, *, start: int = 0, limit: int = 100) -> ComparisonPage:
        """A page of Client.compare_batches with this batch as `a` and the batch `other` (its id) as `b`, from the row
        `start` on."""
        from sleipnir.client import comparison

        return comparison.compare_page(
            self._store, self.id, other if isinstance(other, str) else other.id, start, limit
        )

    def errors(self, among: int | None = None) -> list[ErrorGroup]:
        """Why rows failed: grouped by node and cause (failure_text), the largest group first. Rows with other
        messages than the first 1,000 are one group, with OTHER_MESSAGES. `among`: only of so many failed rows, the
        first ones; None: of all, which are read."""
        groups: dict[tuple[str | None, str], list[RowResult]] = {}
        counts: dict[tuple[str | None, str], int] = {}
        with self._store.errors():
            for result in islice(self._store.batches.failed(self.id), among):
                group = failure_of(result.error or "")
                if group not in groups and len(groups) >= MOST_GROUPS:
                    group = (None, OTHER_MESSAGES)
                counts[group] = counts.get(group, 0) + 1
                if len(shown := groups.setdefault(group, [])) < SHOWN_KEYS:
                    shown.append(result)
        found = [
            ErrorGroup(*group, counts[group], tuple(row.key for row in rows), tuple(row.run for row in rows))
            for group, rows in groups.items()
        ]
        return sorted(found, key=lambda group: -group.count)


def input_row(place: str, number: int, input: Any, key: str | None, program: CompiledGraph) -> Row | BadRow:
    """The row of an input of a graph, as `submit` takes it. A column `key` that is no key of the state only identifies
    the row. Raises InvalidUpdateError for what is no input."""
    keys = program.parts.keys
    columns = dict(input) if isinstance(input, Mapping) else dict(calling.read(input, keys).writes)
    named = row_of(place, number, {key: columns[key]} if key in columns else {}, key)
    if isinstance(named, BadRow):
        return named
    return replace(named, prompt="", state={name: columns[name] for name in columns if name != key or name in keys})


def _comparable(value: Any) -> Any:
    """A JSON form of an object in an input that is the same in each process."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else str(value)


class RowSubmission:
    """Adds rows to a batch."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        batch: PreparedBatch,
        *,
        on_bad: OnBad | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._store, self._settings, self._batch = store, settings, batch
        self._prompt_bytes, self._state_bytes = settings.max_prompt_bytes, settings.max_output_bytes
        self._on_bad, self._on_progress = on_bad, on_progress
        self._keys: set[str] = set()
        self._chunk: list[tuple[Row, str]] = []
        self._contents: dict[str, str] = {}
        self._unreduced: dict[str, dict[str, Any]] = {}
        """The values, by the key of the row, that reducers of the graph's code still get."""
        self._bytes, self._sent_any = 0, False
        self.so_far = SubmittedRows()

    def add_all(self, given: Iterable[Given], key: str | None) -> None:
        """Add rows as they are read, a chunk at a time, and seal the batch after the last one. If `given` raises, the
        batch is not sealed: submitting again continues from there. Raises UsageError if no row is valid."""
        for number, each in enumerate(given, 1):
            self._take(self._row(number, each, key))
        self._send()
        if not self._sent_any:
            which = " that could be run" if self.so_far.bad else ""
            raise UsageError(f"there is no row{which}; nothing was submitted")
        self._seal()

    def _seal(self) -> None:
        with self._store.errors():
            self._store.batches.seal(self._batch.id)
        replicas.confirm_batch(self._store, self._settings, self._batch.id)

    def _row(self, number: int, given: Given, key: str | None) -> Row | BadRow:
        program, place = self._batch.program, f"row {number}"
        if program is None:
            return given if isinstance(given, Row | BadRow) else row_of(place, number, given, key)
        try:
            if isinstance(given, Row):
                return self._row_of_file(given, program)
            return given if isinstance(given, BadRow) else input_row(place, number, given, key, program)
        except (SleipnirError, TypeError, ValueError) as error:
            return BadRow(place, str(error))

    def _row_of_file(self, row: Row, program: CompiledGraph) -> Row:
        """A row whose columns are the stored form of an input."""
        state = self._typed(row.state) if row.as_text else dict(row.state)
        if row.prompt and PROMPT in program.parts.keys:
            state[PROMPT] = row.prompt
        return replace(row, state=program.objects.decoded(state), as_text=False)

    def _take(self, row: Row | BadRow) -> None:
        text = self._checked(row)
        if isinstance(text, BadRow):
            self._refuse(text)
            return
        assert isinstance(row, Row)
        self._keys.add(row.key)
        self._chunk.append((row, text))
        self._bytes += len(text)
        if len(self._chunk) >= (CHUNK if self._sent_any else FIRST_CHUNK) or self._bytes >= CHUNK_BYTES:
            self._send()

    def _checked(self, row: Row | BadRow) -> str | BadRow:
        """The waiting row as JSON, or its problem."""
        if isinstance(row, BadRow):
            return row
        if row.key in self._keys:
            return BadRow(row.place, f"its key {row.key!r} is that of a row before it")
        try:
            if self._batch.program is not None:
                return self._text_of_input(row, self._batch.program)
            state = self._typed(row.state) if row.as_text else dict(row.state)
            if len(row.prompt.encode()) > self._prompt_bytes:
                return BadRow(row.place, f"its prompt has more than SLEIPNIR_MAX_PROMPT_BYTES={self._prompt_bytes:,}")
            folded = [key for key in state if is_folded_by_code(self._batch.graph, key)]
            if folded and self._batch.file is None:
                return BadRow(row.place, f"rows cannot give {folded[0]!r}: its reducer is a function of the graph")
            begin = state_at_start(self._batch.graph, row.prompt, state, self._state_bytes)
            # What was given is kept as it was encoded (times, bytes); what the graph adds, it adds at the start.
            given = {name: begin[name] for name in state}
            text = row_text(row.prompt, given)
            (row.key + text).encode()
            if folded:
                self._unreduced[row.key] = given
            return text
        except WrongState as error:
            return BadRow(row.place, "; ".join(error.problems))
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can say
            return BadRow(row.place, "it is not valid UTF-8 text")
        except (UsageError, TypeError, ValueError) as error:
            return BadRow(row.place, str(error))

    def _text_of_input(self, row: Row, program: CompiledGraph) -> str | BadRow:
        """A row that is an input of a graph: it goes through the reducers, as in `submit`."""
        try:
            # Before the reducers, which may give another value each time, as that of messages gives ids.
            contents = json.dumps(row.state, sort_keys=True, default=_comparable)
            state = first_state(program.parts, program.objects, row.state)
        except Exception as error:  # of reducers, and of classes of the program
            return BadRow(row.place, f"its input cannot be used: {type(error).__name__}: {error}")
        text = row_text(row.prompt, first_state_of(self._batch.graph, state, self._state_bytes))
        (row.key + text).encode()
        self._contents[row.key] = contents
        return text

    def _reduced(self, file: Path) -> Iterator[tuple[Row, str]]:
        """The rows of the chunk, with what reducers of a graph.py make of their values, in the process that executes
        the file. A row that a reducer refuses is left out."""
        graph, unreduced = self._batch.graph, self._unreduced
        folded = [{k: v for k, v in each.items() if is_folded_by_code(graph, k)} for each in unreduced.values()]
        made = dict(zip(unreduced, python_file.first_states(file, folded), strict=True))
        self._unreduced = {}
        for row, text in self._chunk:
            values = made.get(row.key)
            if isinstance(values, str):
                self._refuse(BadRow(row.place, values))
            elif values is None:
                yield row, text
            else:
                self._contents[row.key] = text  # reducers may give another value each time
                given = unreduced[row.key]
                yield row, row_text(row.prompt, {name: values.get(name, value) for name, value in given.items()})

    def _typed(self, state: Mapping[str, str]) -> dict[str, Any]:
        """Parses cells of keys that are declared as numbers, lists and similar; an invalid one is kept and refused
        later."""
        found: dict[str, Any] = dict(state)
        for name, cell in state.items():
            declared = self._batch.graph.state.get(name)
            if declared is not None and declared.type not in ("any", "string", "datetime", "bytes"):
                with contextlib.suppress(ValueError, RecursionError):
                    found[name] = json.loads(cell)
        return found

    def _refuse(self, bad: BadRow) -> None:
        self.so_far = replace(self.so_far, bad=self.so_far.bad + 1)
        if self._on_bad is not None:
            self._on_bad(bad)

    def _add(self, rows: Sequence[tuple[str, str]]) -> AddedRows:
        batch = self._batch
        with self._store.errors():
            return self._store.batches.add(batch.id, batch.spec, batch.plan, rows, self._contents)

    def _send(self) -> None:
        if not self._chunk:
            return
        if self._unreduced and self._batch.file is not None:
            self._chunk = list(self._reduced(self._batch.file))
            if not self._chunk:
                self._bytes = 0
                return
        added = self._add([(row.key, text) for row, text in self._chunk])
        self.so_far = replace(self.so_far, added=self.so_far.added + added.added, known=self.so_far.known + added.known)
        for at in added.conflicts:
            row, _ = self._chunk[at]
            self._refuse(BadRow(row.place, f"its key {row.key!r} is that of a row of the batch with other contents"))
        self._chunk, self._contents, self._bytes, self._sent_any = [], {}, 0, True
        if self._on_progress is not None:
            self._on_progress(self.so_far)


def _paused_with(batch: str) -> str:
    """Why the rows of a paused batch are paused: it is how `resume` knows them."""
    return f"batch {batch} is paused with its rows"
