"""The ends of rows, which their runs report by effects."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sleipnir.batches.records import RowState, parse_place
from sleipnir.messages import RunStatus, Usage
from sleipnir.store.batches.connection import BatchConnection
from sleipnir.store.batches.rows import BYTE_OF
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand

_ENDED = LuaScript("batch_ended")

_ROW_STATE: Mapping[str, RowState] = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}


class RowEnds(BatchConnection):
    """Commands that record how rows ended."""

    def ended(self, place: str, status: RunStatus, version: int, usage: Usage, failed_visits: int = 0) -> RedisCommand:
        """The command that records the end of a row's run; batch_ended.lua has the replies. `usage` is the total usage
        of the run."""
        calls = {"model_calls": usage.calls, "tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens}
        cost = {"unpriced_calls": usage.calls} if usage.cost_usd is None else {"cost_usd": usage.cost_usd}
        return self._ended(place, BYTE_OF[_ROW_STATE[status]], version, calls | cost | {"failed_visits": failed_visits})

    def refused(self, place: str, error: str, text: str = "") -> RedisCommand:
        """The command that records that a row cannot become a run (`text` is the row), or that its run cannot continue;
        a later end of the run still counts."""
        return self._ended(place, BYTE_OF["failed"], 0, {}, error, text)

    def _ended(
        self, place: str, byte: str, version: int, used: Mapping[str, float], error: str = "", text: str = ""
    ) -> RedisCommand:
        batch, row = parse_place(place)
        args: dict[str, Arg] = {
            "id": batch,
            "row": row,
            "status": byte,
            "version": version,
            "usage": json.dumps({name: amount for name, amount in used.items() if amount}),
            "error": error,
            "text": text,
            "retention_ms": self._retention_ms,
        }
        return RedisCommand(_ENDED, _ENDED.vector(self._changing(batch), args))
