"""Runs whose cards are missing or old: services/listing.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL, STATUSES
from sleipnir.runs.cards import card_of, card_text
from sleipnir.runs.run import RunSpec
from sleipnir.store.partitions.run_records import RunRecords
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_LIST_RUN = LuaScript("list_run")


class ListedRuns(RunRecords):
    """Compare the cards of runs with their records, and list them again. Scripts list runs with every change; what
    differs was made by an earlier release, or by hand."""

    def wrongly_listed(self, partition: int, run_ids: Sequence[str]) -> list[str]:
        """Those of these runs that have no card, or that of another status. Two commands a thousand runs, and one for
        each run."""
        if not run_ids:
            return []
        pipe = self._client.pipeline(transaction=False)
        pipe.hmget(self._of(partition).cards, run_ids)
        for run_id in run_ids:
            pipe.hget(self._keys.of_run(run_id).run, "status")
        cards, *statuses = pipe.execute(raise_on_error=False)
        return [
            run_id
            for run_id, card, status in zip(run_ids, checked(cards), statuses, strict=True)
            if status in STATUSES and _status_of(card) != status
        ]

    def some_cards(self, partition: int, cursor: int, count: int) -> tuple[int, list[str]]:
        """About `count` runs that have a card, and the next cursor: 0 at the end."""
        following, cards = self._client.hscan(self._of(partition).cards, cursor, count=count)
        return int(following), list(cards)

    def gone_among(self, run_ids: Sequence[str]) -> list[str]:
        """Those of these runs that do not exist."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.exists(self._keys.of_run(run_id).run)
        return [run_id for run_id, exists in zip(run_ids, pipe.execute(), strict=True) if not exists]

    def list_again(self, partition: int, run_ids: Sequence[str]) -> int:
        """List these runs as their records say; those that are gone nowhere. Returns how many were changed: a run that
        has gone on meanwhile is listed by its commit. Safe to repeat."""
        unreadable: dict[str, RecordUnreadable] = {}
        views = self.load(run_ids, unreadable)
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "version", "status", "ended_ms", "error")
        vectors = []
        for run_id, fields in zip(run_ids, pipe.execute(raise_on_error=False), strict=True):
            version, status, ended_ms, error = checked(fields)
            if version is None:
                card, number = "", -1
            elif (view := views.get(run_id)) is None:
                card, number = card_text(RunSpec("?", "?"), status if status in STATUSES else "submitted"), int(version)
            else:
                ended = int(ended_ms or 0) if status in FINAL else None
                card, number = card_of(view, ended_ms=ended, error=error), view.version
            keys = {"run": self._keys.of_run(run_id).run, "cards": self._of(partition).cards}
            args: dict[str, Arg] = {"run_id": run_id, "version": number, "card": card}
            vectors.append(_LIST_RUN.vector(keys, args))
        return sum(int(checked(reply)) for reply in run_batch(self._client, _LIST_RUN, vectors))

    def all_listed(self, partition: int) -> bool:
        """Whether every run of the partition has had a card."""
        return bool(self._client.exists(self._of(partition).all_listed))

    def note_all_listed(self, partition: int) -> None:
        """Every run of the partition has a card; from now on lists are walked instead of the index of all runs."""
        self._client.set(self._of(partition).all_listed, 1)


def _status_of(card: Any) -> str | None:
    try:
        return str(json.loads(card)["s"]).partition(":")[0]
    except (TypeError, ValueError, LookupError):
        return None
