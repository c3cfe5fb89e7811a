"""Batches over HTTP: rows are sent as they are read, and results are read as they are sent."""

from __future__ import annotations

import csv
import http.client
import io
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from sleipnir import waiting
from sleipnir.batches.records import BatchInfo, ErrorGroup, RowResult, RowState
from sleipnir.batches.rollups import MOST_CELLS, BatchRowPage, EndedRows, RowGrid
from sleipnir.batches.rows import PROMPT, BadRow, Row
from sleipnir.client.batch import Batch, Given, OnBad, OnProgress, SubmittedRows
from sleipnir.client.http.connections import (
    FIRST_PAUSE_S,
    MOST_PAUSE_S,
    PATIENCE_S,
    ApiRequest,
    ServerConnections,
    part,
)
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.unserved import not_served
from sleipnir.client.mass_requests import SteeredRuns
from sleipnir.client.run import pause_ms
from sleipnir.errors import AgentNotFound, BatchNotFound, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from sleipnir.client.mass_requests import OnSteered
    from sleipnir.runs.comparison import ComparisonPage

SUBMIT_S: Final = 900.0
_LINES: Final = "application/x-ndjson"
_CSV: Final = "text/csv"
_SENT_AS_BAD: Final = ("the row must be an object of columns", "the row has ")
"""The words for the lines of rows that were refused here, and are known."""


class HttpBatch(Batch):
    """A batch of a server. Nothing is cached: every call asks it."""

    def __init__(self, server: ServerConnections, batch_id: str, submitted: SubmittedRows | None = None) -> None:
        self._server, self.id, self.submitted = server, batch_id, submitted

    def _get(self, rest: str) -> Any:
        return self._server.get(f"/batches/{part(self.id)}{rest}", missing=BatchNotFound)

    def _post(self, rest: str, body: Any = None, *, repeats: bool) -> Any:
        path = f"/batches/{part(self.id)}{rest}"
        return of_json(self._server.call(ApiRequest("POST", path, None, body, repeats=repeats, missing=BatchNotFound)))

    def info(self) -> BatchInfo:
        """As Batch.info."""
        return decoded(BatchInfo, self._get("")["batch"])

    def errors(self, among: int | None = None) -> list[ErrorGroup]:
        """As Batch.errors."""
        path = f"/batches/{part(self.id)}/errors"
        return decoded(list[ErrorGroup], self._server.get(path, {"among": among}, missing=BatchNotFound))

    def rows(self, state: RowState | None = None, *, start: int = 0, limit: int = 50) -> BatchRowPage:
        """As Batch.rows."""
        query = {"state": state, "start": start, "limit": limit}
        path = f"/batches/{part(self.id)}/rows"
        return decoded(BatchRowPage, self._server.get(path, query, missing=BatchNotFound))

    def grid(self, cells: int = MOST_CELLS) -> RowGrid:
        """As Batch.grid."""
        path = f"/batches/{part(self.id)}/grid"
        return decoded(RowGrid, self._server.get(path, {"cells": cells}, missing=BatchNotFound))

    def ended_rows(self, points: int = 60) -> list[EndedRows]:
        """As Batch.ended_rows."""
        path = f"/batches/{part(self.id)}/ended-rows"
        return decoded(list[EndedRows], self._server.get(path, {"points": points}, missing=BatchNotFound))

    def comparisons(self, other: Batch | str, *, start: int = 0, limit: int = 100) -> ComparisonPage:
        """As Batch.comparisons."""
        from sleipnir.runs.comparison import ComparisonPage

        path = f"/batches/{part(self.id)}/compare/{part(other if isinstance(other, str) else other.id)}"
        found = self._server.get(path, {"start": start, "limit": limit}, missing=BatchNotFound)
        return decoded(ComparisonPage, found)

    def pause(self, *, timeout: float | None = None, on_progress: OnSteered | None = None) -> SteeredRuns:
        """As Batch.pause; `on_progress` is called once, at the end."""
        pause_ms(timeout)
        done = SteeredRuns(self._post("/pause", {"timeout_s": timeout}, repeats=True)["rows"])
        if on_progress is not None and timeout is not None:
            on_progress(done)
        return done

    def resume(self, *, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        """As Batch.resume."""
        self._post("/resume", {"max_cost_usd": max_cost_usd, "max_tokens": max_tokens}, repeats=False)

    def set_parallel(self, parallel: int | None) -> None:
        """As Batch.set_parallel."""
        self._post("/parallel", {"parallel": parallel}, repeats=True)

    def cancel(self) -> bool:
        """As Batch.cancel."""
        return bool(self._post("/cancel", repeats=True)["cancelled"])

    def retry_failed(self) -> int:
        """As Batch.retry_failed. Not repeated: rows may have failed again meanwhile."""
        return int(self._post("/retry-failed", repeats=False)["rows"])

    def results(
        self, order: Literal["row", "done"] = "row", *, start: int = 0, follow: bool = False
    ) -> Iterator[RowResult]:
        """As Batch.results, over breaks of the connection and restarts of the server."""
        at, pause_s = start, FIRST_PAUSE_S
        lost_s: float | None = None
        while True:
            query = {"order": order, "start": at, "follow": follow}
            request = ApiRequest("GET", f"/batches/{part(self.id)}/results", query, repeats=True, missing=BatchNotFound)
            try:
                for line in self._server.lines(request):
                    result = decoded(RowResult, of_json(line))
                    at, lost_s, pause_s = result.position, None, FIRST_PAUSE_S
                    yield result
            except (OSError, http.client.HTTPException, StoreUnavailable) as lost:
                lost_s = time.monotonic() if lost_s is None else lost_s
                if time.monotonic() - lost_s > PATIENCE_S:
                    raise StoreUnavailable(f"the results of batch {self.id!r} broke off: {lost}") from lost
            else:
                return
            waiting.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)


class RowRequest:
    """The rows of one submission, as lines of JSON, or as CSV if they come from such a file. A row that was refused
    here has a line too, which the server leaves out: it counts rows to name them."""

    def __init__(self, on_bad: OnBad | None) -> None:
        self._on_bad, self._has_good = on_bad, False

    def chunks(self, rows: Iterable[Given]) -> tuple[str, Iterator[bytes]]:
        """The media type, and the body. Reads the first rows."""
        before: list[BadRow] = []
        given = iter(rows)
        for first in given:
            if not isinstance(first, BadRow):
                rest = chain(before, [first], given)
                if isinstance(first, Row) and first.as_text:
                    return _CSV, self._csv_lines([PROMPT, *first.state], rest)
                return _LINES, map(self._line, rest)
            before.append(first)
        for bad in before:
            self._refuse(bad)
        raise UsageError(f"there is no row{' that could be run' if before else ''}; nothing was submitted")

    def _refuse(self, bad: BadRow) -> None:
        if self._on_bad is not None:
            self._on_bad(bad)

    def _line(self, row: Given) -> bytes:
        if isinstance(row, BadRow):
            self._refuse(row)
            return b"null\n"
        if not isinstance(row, Row | Mapping):
            raise not_served(f"a row of the class {type(row).__name__}", "rows are objects of columns")
        columns = {PROMPT: row.prompt, **row.state} if isinstance(row, Row) else dict(row)
        try:
            return json.dumps(columns, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise UsageError(f"a row cannot be sent as JSON: {error}") from None

    def _csv_lines(self, names: list[str], rows: Iterable[Given]) -> Iterator[bytes]:
        yield _record(names)
        for row in rows:
            if isinstance(row, BadRow):
                self._refuse(row)
                yield _record([""] * (len(names) + 1))  # it has too many cells
            elif isinstance(row, Row):
                yield _record([row.prompt, *(row.state.get(name, "") for name in names[1:])])
            else:
                raise not_served("a batch of rows of a CSV file and others", "a body has one media type")


def _record(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def submit(
    server: ServerConnections,
    query: Mapping[str, Any],
    rows: Iterable[Given],
    *,
    on_bad: OnBad | None,
    on_progress: OnProgress | None,
) -> HttpBatch:
    """Send the rows; `query` has the parameters of the route. If it breaks off, the error names the id with which it
    can be continued. `on_progress` is called once, at the end, and `on_bad` for the first 100 rows that the server
    leaves out."""
    batch_id = query.get("id") or secrets.token_hex(6)
    media_type, chunks = RowRequest(on_bad).chunks(rows)
    request = ApiRequest(
        "POST", "/batches", {**query, "id": batch_id}, headers={"Content-Type": media_type}, missing=AgentNotFound,
        timeout_s=SUBMIT_S,
    )  # fmt: skip
    try:
        found = of_json(server.upload(request, chunks))
    except StoreUnavailable as lost:
        raise StoreUnavailable(f"{lost}. Rows may be in batch {batch_id!r}: with this id it can be continued") from None
    bad = [row for row in found["bad_rows"] if not row["message"].startswith(_SENT_AS_BAD)]
    return _submitted(server, found, bad, on_bad, on_progress)


def fork(
    server: ServerConnections,
    source: str,
    body: Mapping[str, Any],
    *,
    on_bad: OnBad | None,
    on_progress: OnProgress | None,
) -> HttpBatch:
    """Submit a batch of forks of the rows of `source`; `body` is that of the route. It is repeated with one id, so that
    a lost answer makes no second batch."""
    path, wanted = f"/batches/{part(source)}/fork", {**body, "id": body.get("id") or secrets.token_hex(6)}
    request = ApiRequest("POST", path, None, wanted, repeats=True, missing=BatchNotFound, timeout_s=SUBMIT_S)
    found = of_json(server.call(request))
    return _submitted(server, found, found["bad_rows"], on_bad, on_progress)


def _submitted(
    server: ServerConnections,
    found: Mapping[str, Any],
    bad_rows: Iterable[Mapping[str, str]],
    on_bad: OnBad | None,
    on_progress: OnProgress | None,
) -> HttpBatch:
    for row in bad_rows:
        if on_bad is not None:
            on_bad(BadRow(row["place"], row["message"]))
    done = SubmittedRows(found["added"], found["known"], found["bad"])
    if on_progress is not None:
        on_progress(done)
    return HttpBatch(server, found["id"], done)
