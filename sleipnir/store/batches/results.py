"""How rows of batches ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sleipnir.batches.records import ROW_STATES, RowResult, row_run_id
from sleipnir.decoding import decoded_object
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.failure_text import failure_of
from sleipnir.store.batches.rows import PAGE, BatchRows

OUTPUT_BYTES = 8 * 2**20
"""The total size of outputs that are read in one round trip, unless a single one is larger."""


class RowResults(BatchRows):
    """Read the results of rows."""

    def results(self, batch: str, first: int) -> list[RowResult | None]:
        """A page of rows from `first`; None for an unfinished row. Empty: there are no more."""
        names = self._client.lrange(self._keys.of_batch(batch).names, first, first + PAGE - 1)
        rows = list(range(first, first + len(names)))
        return self._results(batch, [(row, row + 1) for row in rows], dict(zip(rows, names, strict=True)))

    def results_by_end(self, batch: str, first: int) -> tuple[list[RowResult], int]:
        """A page of rows in the order in which they ended, from this place, and the place of the next page, the same
        one if there is none yet. A row that was retried since is left out; it is listed again later."""
        rows = list(map(int, self._client.lrange(self._keys.of_batch(batch).ends, first, first + PAGE - 1)))
        places = [(row, first + at + 1) for at, row in enumerate(rows)]
        results = self._results(batch, places, self.names_of(batch, rows))
        return [result for result in results if result is not None], first + len(rows)

    def failed(self, batch: str) -> Iterator[RowResult]:
        """The rows that failed, in order."""
        rows = self.rows_in(batch, "failed")
        while page := list(islice(rows, PAGE)):
            results = self._results(batch, [(row, row + 1) for row in page], self.names_of(batch, page))
            yield from (result for result in results if result is not None)

    def results_of(self, batch: str, names: Mapping[int, str]) -> list[RowResult]:
        """The ended ones of these rows, whose keys are known: not too many, as they are read at once."""
        results = self._results(batch, [(row, row + 1) for row in names], names)
        return [result for result in results if result is not None]

    def without_run(self, rows: Sequence[tuple[str, int]]) -> list[tuple[str, str | None]]:
        """The status of rows of batches that have no run, and why they failed."""
        if not rows:
            return []
        pipe = self._client.pipeline(transaction=False)
        for batch, row in rows:
            keys = self._keys.of_batch(batch)
            pipe.getrange(keys.states, row, row)
            pipe.hget(keys.failures, str(row))
        replies = iter(pipe.execute())
        return [_without_run(next(replies), next(replies)) for _ in rows]

    def _results(self, batch: str, rows: Sequence[tuple[int, int]], names: Mapping[int, str]) -> list[RowResult | None]:
        keys = self._keys.of_batch(batch)
        pipe = self._client.pipeline(transaction=False)
        for row, _ in rows:
            run = self._keys.of_run(row_run_id(batch, row))
            pipe.getrange(keys.states, row, row)
            pipe.hmget(run.run, "status", "error")
            pipe.strlen(run.output)
            pipe.hget(keys.failures, str(row))
        replies = iter(pipe.execute())
        rows_read = [(row, position, *islice(replies, 4)) for row, position in rows]
        outputs = self._outputs(batch, {row: size for row, _, byte, _, size, _ in rows_read if byte == "c" and size})
        return [
            _result(batch, row, position, names[row], byte, status, outputs.get(row), failure)
            for row, position, byte, status, _, failure in rows_read
        ]

    def _outputs(self, batch: str, sizes: Mapping[int, int]) -> dict[int, str | None]:
        """Outputs of rows whose sizes are known, read in parts, because a page of large ones may not fit into
        memory."""
        outputs: dict[int, str | None] = {}
        remaining = list(sizes)
        while remaining:
            count, bytes_ = 0, 0
            while count < len(remaining) and (not count or bytes_ + sizes[remaining[count]] <= OUTPUT_BYTES):
                bytes_ += sizes[remaining[count]]
                count += 1
            names = [self._keys.of_run(row_run_id(batch, row)).output for row in remaining[:count]]
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.get(name)
            outputs |= zip(remaining, pipe.execute(), strict=False)
            remaining = remaining[count:]
        return outputs


def _result(
    batch: str,
    row: int,
    position: int,
    key: str,
    byte: str,
    record_: Sequence[str | None],
    output: str | None,
    failure: str | None,
) -> RowResult | None:
    status = ROW_STATES[byte]
    if status in ("waiting", "active"):
        return None
    run_status, error = record_
    not_started = _failure(failure)
    if status == "failed" and run_status is None:
        error = not_started.get("error", "its run has expired")
    return RowResult(
        row=row,
        key=key,
        run=row_run_id(batch, row),
        status=status,
        position=position,
        output=output if status == "completed" else None,
        error=error if status == "failed" else None,
        node=failure_of(error or "")[0] if status == "failed" else None,
    )


def _without_run(byte: str, failure: str | None) -> tuple[str, str | None]:
    status = ROW_STATES.get(byte, "waiting")
    error = _failure(failure).get("error") if status == "failed" else None
    has_expired = status == "completed" or (status == "failed" and error is None)
    return ("expired", None) if has_expired else (status, error)


def _failure(text: str | None) -> dict[str, Any]:
    """The record of a failed row; for a damaged record, its error."""
    if not text:
        return {}
    try:
        return decoded_object(text, "failure")
    except RecordUnreadable as error:
        return {"error": str(error)}
