"""The states that forks take from their sources before they begin.

A fork of a run that is over only refers to the state that it begins with (runs.PastState), so that forks that wait cost
nothing. Its source may be retried meanwhile: then its current state is another one, and that of the step is computed
from its journal, which never changes.
"""

from __future__ import annotations

from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.runs.run import PastState
from sleipnir.store.keys import RunKeys
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.runs.journal import RunJournal
from sleipnir.store.scripts import Arg, LuaScript

_TAKE_PAST = LuaScript("take_past")


class ForkStates(PartitionConnection):
    """Give forks their states."""

    def take_past(self, run_id: str, past: PastState) -> str | RecordUnreadable | None:
        """Make the state that a fork refers to its own; safe to repeat. None: it has one. A text: why there is none to
        take; an error: its source cannot be read."""
        if self._take(run_id, past, {}):
            return None
        try:
            texts = RunJournal(self._client, self._keys).fold_texts(past.run, past.step)
        except RunNotFound as gone:
            return f"the state that it begins with, of run {past.run!r} after step {past.step}, is lost: {gone}"
        except RecordUnreadable as unreadable:
            return unreadable
        self._take(run_id, past, texts, is_folded=True)
        return None

    def _take(self, run_id: str, past: PastState, texts: dict[str, str], *, is_folded: bool = False) -> bool:
        run, source = self._keys.of_run(run_id), self._keys.of_run(past.run)
        timers = self._of(self.partition_of(run_id)).timers
        rest: list[Arg] = [part for pair in texts.items() for part in pair]
        args: dict[str, Arg] = {"run_id": run_id, "folded": int(is_folded)}
        return bool(_TAKE_PAST(self._client, _take_keys(run, source, timers), args, rest))


def _take_keys(run: RunKeys, source: RunKeys, timers: str) -> dict[str, str]:
    return {
        "source": source.run, "past": source.state, "run": run.run, "state": run.state, "journal": run.journal,
        "timers": timers, "specs": run.spec,
    }  # fmt: skip
