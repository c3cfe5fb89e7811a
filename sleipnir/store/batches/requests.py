"""Requests of people for whole batches: seal, hold, replan, cancel and retry."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, Literal

from sleipnir.access.audit import audit_text
from sleipnir.batches.records import BatchPlan
from sleipnir.errors import UsageError
from sleipnir.runs.actor import Change, change_text
from sleipnir.store.batches.connection import BatchConnection, not_found
from sleipnir.store.batches.records import plan_field
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript

_CHANGE = LuaScript("batch_change")
_WORK = LuaScript("batch_work")

_WITH_ROWS: Final = "rows"
"""The mark of a batch that is held with its active rows; that of one that only admits none is 1."""


class BatchRequests(BatchConnection):
    """Change batches."""

    def seal(self, batch: str) -> None:
        """Mark the batch as complete: no more rows will be added."""
        self._change(batch, "seal")

    def hold(self, batch: str, *, rows: bool = False) -> None:
        """Admit no rows until `go_on`. `rows`: active rows are to be paused too."""
        held = rows or self.holds_rows(batch)
        self._change(batch, "set", {"paused": _WITH_ROWS if held else "1", **self._signed(batch, "paused")})

    def holds_rows(self, batch: str) -> bool:
        """Whether it is held with its active rows."""
        return bool(self._client.hget(self._keys.of_batch(batch).batch, "paused") == _WITH_ROWS)

    def go_on(self, batch: str, plan: BatchPlan) -> None:
        """Admit rows again, with this plan from now on."""
        self._change(batch, "set", {"paused": "", plan_field(plan): record(plan), **self._signed(batch, "resumed")})

    def replan(self, batch: str, plan: BatchPlan) -> None:
        """Admit rows with this plan from now on."""
        self._change(batch, "set", {plan_field(plan): record(plan), **self._signed(batch, "replanned")})

    def cancel(self, batch: str, *, by: str | None = None) -> bool:
        """Admit no more rows, cancel the waiting ones, and let the scheduler cancel the active ones. The scheduler
        continues if this process dies. `by` is who does it, if it is not who acts through this client. False: all rows
        were over, and nothing was changed."""
        if self._change(batch, "cancel", self._signed(batch, "cancelled", by)) == -3:
            return False
        while self.work(batch):
            pass
        return True

    def retry(self, batch: str) -> int:
        """Let all failed rows wait again; returns how many. The scheduler continues if this process dies."""
        self._change(batch, "set", self._signed(batch, "retried"))
        request = secrets.token_hex(8)
        state, rows = 1, 0
        while state == 1:
            state, rows = self._work(batch, request)
        if state == -1:
            raise not_found(batch)
        if state == -2:
            raise _was_cancelled(batch)
        return rows

    def work(self, batch: str) -> bool:
        """Do the next piece of a cancel or a retry in progress. Returns whether there is more to do."""
        state, _ = self._work(batch, "")
        return state == 1

    def _work(self, batch: str, request: str) -> tuple[int, int]:
        args: dict[str, Arg] = {"id": batch, "request": request, **self._ending(batch)}
        state, rows = _WORK(self._client, self._changing(batch), args)
        return int(state), int(rows)

    def _signed(self, batch: str, what: str, by: str | None = None) -> dict[str, str]:
        """The field that records who did this last, and when."""
        return {f"by:{what}": change_text(Change(what, self._by if by is None else by, self.now_ms(batch)))}

    def _change(
        self, batch: str, wish: Literal["seal", "set", "cancel"], fields: Mapping[str, str] | None = None
    ) -> int:
        entry = _audit_entry(batch, fields, self._by) if fields and self._by else ""
        args: dict[str, Arg] = {
            "id": batch, "wish": wish, **self._ending(batch), "entry": entry, "keep_ms": self._audit_ms,
        }  # fmt: skip
        rest = [part for pair in (fields or {}).items() for part in pair]
        keys = {**self._changing(batch), "audit": self._part_of(batch).audit}
        reply = int(_CHANGE(self._client, keys, args, rest))
        if reply == -1:
            raise not_found(batch)
        if reply == -2:
            raise _was_cancelled(batch)
        return reply


def _audit_entry(batch: str, fields: Mapping[str, str], by: str) -> str:
    """What is said of a change: the field `by:` names it, the others are what is set."""
    what = next(name.removeprefix("by:") for name in fields if name.startswith("by:"))
    after = {name: text for name, text in fields.items() if not name.startswith("by:")}
    return audit_text(f"batch {what}", f"batch {batch}", by, after=after or None)


def _was_cancelled(batch: str) -> UsageError:
    return UsageError(f"batch {batch!r} was cancelled; its rows can be submitted again as another batch")
