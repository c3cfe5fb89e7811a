"""What is compared of runs (runs/comparison.py), read for many runs in two round trips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.messages import FINAL
from sleipnir.runs.comparison import MOST_PATH, ComparedRun
from sleipnir.runs.run import RunSpec
from sleipnir.store.runs.journal import RunJournal
from sleipnir.store.runs.run_infos import status_of, usage_total

if TYPE_CHECKING:
    from sleipnir.runs.transitions import Step

_SUMMARY: Final = ("status", "error", "created_ms", "started_ms", "ended_ms", "retrying", "past")
_USAGE: Final = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")
FIRST_STEPS: Final = 100
"""The journal entries that are read with the run; those of a longer journal follow in pages."""

EXPIRED_PAST: Final = "..."
"""Stands in a path for that of a source that has expired."""


@dataclass(frozen=True)
class _Journal:
    """The ended visits of a run, each with its step, its place in the visit order and its node. `past` is Step.past of
    step 0; `has_expired`: there is no such run; `unreadable`: why it cannot be read."""

    visits: tuple[tuple[int, tuple[Any, ...], str], ...] = ()
    count: int = 0
    past: tuple[str, int] | None = None
    has_expired: bool = False
    unreadable: str | None = None


class ComparedRuns(RunJournal):
    """Read what is compared of runs."""

    def compared(self, run_ids: Sequence[str], *, paths: bool = True) -> list[ComparedRun | None]:
        """Several runs; None for a missing one. All their states are in memory: the caller reads pages. Without `paths`
        their journals are not read."""
        read = (0, FIRST_STEPS - 1) if paths else (1, 0)  # which is nothing
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            run = self._keys.of_run(run_id)
            pipe.hmget(run.run, [*_SUMMARY, *_USAGE])
            pipe.get(run.output)
            pipe.hgetall(run.state)
            pipe.lrange(run.journal, *read)
            pipe.get(run.spec)
        replies = iter(pipe.execute())
        found = {run_id: [next(replies) for _ in range(5)] for run_id in run_ids}
        journals = {run_id: self._read(run_id, entries) for run_id, (*_, entries, _) in found.items()}
        self._add_pasts(journals)
        return [
            None if fields[0] is None else self._compared(run_id, fields, output, state, journals, spec)
            for run_id in run_ids
            for fields, output, state, _, spec in [found[run_id]]
        ]

    def _compared(
        self,
        run_id: str,
        fields: Sequence[str | None],
        output: str | None,
        state: Mapping[str, str],
        journals: Mapping[str, _Journal],
        spec: str | None,
    ) -> ComparedRun:
        """One that cannot be read does not hide the others."""
        if (why := journals[run_id].unreadable) is not None:
            return ComparedRun(run_id, "unreadable", error=why)
        try:
            state = self._state(run_id, fields, state)
            overrides = _overrides(run_id, spec)
            return _compared(run_id, fields, output, state, *_path(run_id, journals), overrides)
        except (RecordUnreadable, ValueError, OverflowError) as error:
            return ComparedRun(run_id, "unreadable", error=f"damaged: {error}")

    def _state(self, run_id: str, fields: Sequence[str | None], state: Mapping[str, str]) -> Mapping[str, str]:
        """A fork that has not begun refers to the state of its source; if that has expired, it has none."""
        if fields[_SUMMARY.index("past")] is None:
            return state
        try:
            return self.fold_texts(run_id, 0)
        except RunNotFound:
            return {}

    def _read(self, run_id: str, first: Sequence[str]) -> _Journal:
        """The journal of which these are the first entries."""
        more = self._journal(run_id, len(first), None) if len(first) == FIRST_STEPS else iter(())
        try:
            return _journal_of(first, more)
        except RecordUnreadable as error:
            return _Journal(has_expired=True, unreadable=error.why)

    def _add_pasts(self, journals: dict[str, _Journal]) -> None:
        """Read the journals of sources, and of their sources."""
        while missing := {each.past[0] for each in journals.values() if each.past} - journals.keys():
            pipe = self._client.pipeline(transaction=False)
            for source in missing:
                pipe.lrange(self._keys.of_run(source).journal, 0, FIRST_STEPS - 1)
            for source, entries in zip(missing, pipe.execute(), strict=True):
                journals[source] = self._read(source, entries)


def _journal_of(first: Sequence[str], more: Iterable[str]) -> _Journal:
    visits: list[tuple[int, tuple[Any, ...], str]] = []
    count, past, has_expired = 0, None, True
    for step in _steps(first, more):
        past, has_expired = step.past if step.step == 0 else past, False
        if step.seq is None or step.node is None or step.role != "node" or step.item or step.part:
            continue
        count += 1
        if len(visits) < MOST_PATH:
            visits.append((step.step, step.rank or (step.seq,), step.node))
    return _Journal(tuple(visits), count, past, has_expired)


def _steps(*parts: Iterable[str]) -> Iterator[Step]:
    from sleipnir.runs.transitions import Step

    for part in parts:
        for element in part:
            yield Step.from_json(element.partition("\n")[0])


def _path(run_id: str, journals: Mapping[str, _Journal]) -> tuple[tuple[str, ...], int]:
    """The path of a run, which begins with that of its source, and the number of its visits. Visits of one super-step
    end in any order, so they are listed in that in which they were opened."""
    nodes: list[str] = []
    count, until = 0, None
    while True:
        journal = journals[run_id]
        own = sorted((place, node) for step, place, node in journal.visits if until is None or step <= until)
        nodes[:0] = [node for _, node in own]
        count += journal.count if until is None else len(own)
        if journal.past is None:
            return tuple(nodes[:MOST_PATH]), count
        run_id, until = journal.past
        if journals[run_id].has_expired:
            return (EXPIRED_PAST, *nodes[:MOST_PATH]), count


def _compared(
    run_id: str,
    fields: Sequence[str | None],
    output: str | None,
    state: Mapping[str, str],
    path: tuple[str, ...],
    visits: int,
    overrides: tuple[str, ...],
) -> ComparedRun:
    record_ = dict(zip([*_SUMMARY, *_USAGE], fields, strict=True))
    status = str(status_of(record_["status"], record_["retrying"]))
    usage = usage_total(record_)
    began, ended = record_["started_ms"] or record_["created_ms"], record_["ended_ms"]
    return ComparedRun(
        id=run_id,
        status=status,
        output=output if status == "completed" else None,
        error=record_["error"],
        tokens=usage.input_tokens + usage.output_tokens,
        cost_usd=usage.cost_usd if usage.calls else 0.0,
        took_ms=int(ended) - int(began) if ended and began and status in FINAL else None,
        path=path,
        visits=visits,
        state=state,
        overrides=overrides,
    )


def _overrides(run_id: str, spec: str | None) -> tuple[str, ...]:
    """The overrides of nodes of a run, in words."""
    if spec is None or '"nodes"' not in spec:
        return ()
    from sleipnir.graph.node_overrides import in_words

    return tuple(in_words(read_text(RunSpec, spec, "spec", run_id).of_nodes))
