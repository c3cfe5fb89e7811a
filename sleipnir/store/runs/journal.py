"""What a run has done: its journal, its state and its output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sleipnir.errors import RunNotFound
from sleipnir.messages import Usage
from sleipnir.runs.views import LateResult, StepInfo
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.streams import ms_of

if TYPE_CHECKING:
    from sleipnir.runs.journal import StateDifference
    from sleipnir.runs.transitions import Step

PAGE_LEAST, PAGE_MOST, PAGE_BYTES = 100, 500, 2**20  # journal entries per command; fewer if they are large


class RunJournal(RunConnection):
    """Read what a run has written."""

    def history(self, run_id: str, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """The journal, oldest first; `limit` steps after the step `after`. Visits that ended before their super-step
        have the targets that it gave them, if its last step is included."""
        from sleipnir.runs.transitions import Step

        steps: list[StepInfo] = []
        place_of: dict[str, int] = {}
        first = 0 if after is None else max(0, after + 1)
        for element in self._journal(run_id, first, None if limit is None else first + limit - 1):
            header, *written = element.split("\n")
            step = Step.from_json(header)
            for seq, ways in (step.routes or {}).items():
                if (place := place_of.get(seq)) is not None:
                    steps[place] = replace(steps[place], next=ways[0] if len(ways) == 1 else tuple(ways))
            place_of[str(step.seq)] = len(steps)
            steps.append(_step(step, written))
        return steps

    def late_results(self, run_id: str) -> list[LateResult]:
        """The refused results, oldest first, among the newest 1,000 or so events of the run."""
        late: list[tuple[int, dict[str, Any]]] = []
        for id_, fields in self._client.xrange(self._keys.of_run(run_id).events):
            if "late_result" in fields["e"]:
                late += [(ms_of(id_), data) for type_, data in json.loads(fields["e"]) if type_ == "late_result"]
        # A scheduler that drops a result of a finished visit knows only its number.
        node_of = {step.seq: step.node for step in self.history(run_id)} if late else {}
        return [
            LateResult(
                at_ms, data["seq"], data.get("node") or node_of.get(data["seq"]), data["attempt"], data["worker"]
            )
            for at_ms, data in late
        ]

    def fold(self, run_id: str, step: int | None = None) -> dict[str, Any]:
        """The state as of a journal step (None: the last), computed from the journal alone (journal.py)."""
        from sleipnir.runs.journal import state_after  # imports the reducers of the graph language

        return state_after(self._whole_journal(run_id, step))

    def difference(self, run_id: str, first: int, second: int) -> StateDifference:
        """What distinguishes the state at the step `second` from that at `first`; the journal is read once."""
        from sleipnir.runs.journal import StateFold

        lower, upper = sorted((first, second))
        fold = StateFold().over(self._whole_journal(run_id, lower))
        difference = fold.difference(self._journal(run_id, lower + 1, upper))
        return difference if first == lower else difference.reversed()

    def entries(self, run_id: str) -> Iterator[tuple[Step, bool]]:
        """The steps of a run, each with whether it wrote anything; read lazily."""
        from sleipnir.runs.transitions import Step

        for element in self._journal(run_id, 0, None):
            header, newline, _ = element.partition("\n")
            yield Step.from_json(header), bool(newline)

    def _whole_journal(self, run_id: str, last: int | None) -> Iterator[str]:
        """The journal up to an entry; that of a fork after those of its sources. Raises RunNotFound for a source that
        has expired."""
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
        for each, until in reversed(ways):
            count = 0
            for element in self._journal(each, 0, until):
                yield element
                count += 1
            if until is not None and count <= until:
                raise RunNotFound(f"run {each!r} has expired while it was read")

    def checkpoint(self, run_id: str, step: int) -> int:
        """The last checkpoint up to a step, read backwards from there."""
        from sleipnir.runs.transitions import Step

        journal, last = self._keys.of_run(run_id).journal, step
        while last > 0:
            first = max(0, last - PAGE_LEAST + 1)
            for element in reversed(self._client.lrange(journal, first, last)):
                if (found := Step.from_json(element.partition("\n")[0])).is_checkpoint:
                    return found.step
            last = first - 1
        return 0

    def last_step(self, run_id: str) -> int:
        """The number of the last journal step. Raises RunNotFound."""
        length: int = self._client.llen(self._keys.of_run(run_id).journal)
        if not length:
            raise RunNotFound(f"no run {run_id!r}: never submitted here, or finished longer ago than the retention")
        return length - 1

    def _journal(self, run_id: str, first: int, last: int | None) -> Iterator[str]:
        """The journal's entries from `first` to `last` (None: the last one), read in pages: there may be millions."""
        journal, count = self._keys.of_run(run_id).journal, PAGE_LEAST
        while last is None or first <= last:
            end = first + count - 1 if last is None else min(first + count - 1, last)
            page = self._client.lrange(journal, first, end)
            yield from page
            if len(page) < end - first + 1:
                return
            first += len(page)
            count = PAGE_LEAST if sum(map(len, page)) > PAGE_BYTES else min(PAGE_MOST, count * 2)

    def state(self, run_id: str) -> dict[str, Any]:
        """The committed state."""
        return {key: json.loads(text) for key, text in self._client.hgetall(self._keys.of_run(run_id).state).items()}

    def output(self, run_id: str) -> str | None:
        """The result text of a completed run; None for other runs, even if they have passed an end node."""
        return self.outputs([run_id])[0]

    def outputs(self, run_ids: Sequence[str]) -> list[str | None]:
        """The result texts of several runs, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for run in map(self._keys.of_run, run_ids):
            pipe.hget(run.run, "status")
            pipe.get(run.output)
        replies = pipe.execute()
        return [
            text if status == "completed" else None for status, text in zip(replies[::2], replies[1::2], strict=True)
        ]


def _step(step: Step, written: list[str]) -> StepInfo:
    return StepInfo(
        step=step.step,
        kind=step.kind,
        at_ms=step.at_ms,
        seq=step.seq,
        node=step.node,
        attempt=step.attempt,
        ok=step.ok,
        next=step.next,
        error=step.error,
        took_ms=step.took_ms,
        worker=step.worker,
        keys=tuple(map(json.loads, written[::2])),
        usage=Usage(**step.usage) if step.usage else None,
        role=step.role,
        item=step.item,
        part=step.part,
        calls=step.calls,
        goes_on=step.goes_on,
        checkpoint=step.is_checkpoint,
        by=step.by,
        reason=step.reason,
        gate=step.gate,
        answer=step.answer,
        key=step.key,
    )
