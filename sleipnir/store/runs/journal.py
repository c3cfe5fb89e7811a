"""What a run has done: its journal, its state and its output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sleipnir.decoding import read, read_text
from sleipnir.errors import RunNotFound
from sleipnir.graph.error_records import ERRORS_KEY
from sleipnir.messages import Usage
from sleipnir.runs.handling import Voice
from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import LateResult, StepInfo
from sleipnir.store.keys import RunKeys
from sleipnir.store.runs.journal_entries import PAGE_BYTES, PAGE_LEAST, PAGE_MOST, JournalEntries
from sleipnir.store.streams import ms_of

if TYPE_CHECKING:
    from sleipnir.runs.journal import StateFold
    from sleipnir.runs.state_differences import StateDifference
    from sleipnir.runs.transitions import Step

_LASTS, _GONE = -1, -2  # the replies of PTTL for a key that does not expire, and for a key that is not there


@dataclass(frozen=True)
class PastInfo:
    """How long the journals with the past of a run exist at least: `left_ms` after `now_ms`; below 0 if one is gone.
    All of them have this many `steps`, and take so many bytes of memory. `is_past`: it is a fork that has no state of
    its own."""

    now_ms: int
    left_ms: int
    steps: int
    bytes_: int
    is_past: bool


def _ask_size(pipe: Any, run: RunKeys) -> None:
    """Ask how long the journal of a run lasts, for its steps, and for the bytes that it takes. All of its nodes are
    counted: the first ones, of which Redis estimates the rest by default, have the largest values of most runs."""
    pipe.pttl(run.journal)
    pipe.llen(run.journal)
    pipe.memory_usage(run.journal, samples=0)


class RunJournal(JournalEntries):
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

    def past_steps(self, run_id: str) -> list[StepInfo]:
        """The steps of its sources that a fork goes on from, the oldest first, as far as the sources have not expired;
        none of a run that is no fork."""
        steps: list[StepInfo] = []
        spec = self._client.get(self._keys.of_run(run_id).spec)
        while spec and (fork := read_text(RunSpec, spec, "spec", run_id).fork):
            run_id = fork.run
            steps = [*self.history(run_id, limit=fork.checkpoint.step + 1), *steps]
            spec = self._client.get(self._keys.of_run(run_id).spec)
        return steps

    def newest_steps(self, run_id: str) -> Iterator[StepInfo]:
        """The journal, newest first, read lazily. Visits that ended before their super-step have the targets that they
        chose themselves."""
        from sleipnir.runs.transitions import Step

        # Counted from the end: steps that are added meanwhile let some be read twice, and none be missed.
        journal, count, last = self._keys.of_run(run_id).journal, PAGE_LEAST, -1
        while page := self._client.lrange(journal, last - count + 1, last):
            for element in reversed(page):
                header, *written = element.split("\n")
                yield _step(Step.from_json(header), written)
            if len(page) < count:
                return
            last, count = last - count, PAGE_LEAST if sum(map(len, page)) > PAGE_BYTES else min(PAGE_MOST, count * 2)

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

    def fold_texts(self, run_id: str, step: int) -> dict[str, str]:
        """The same as JSON texts."""
        from sleipnir.runs.journal import StateFold

        return StateFold().over(self._whole_journal(run_id, step)).texts()

    def past_info(self, run_id: str, spec: RunSpec) -> PastInfo:
        """How long the past of a run stays readable, and how large it is. A journal that does not expire yet is kept
        for the whole retention from the end of its run on. It takes a round trip, and one for each source."""
        pipe = self._client.pipeline(transaction=False)
        run = self._keys.of_run(run_id)
        pipe.hexists(run.run, "past")
        pipe.time()
        _ask_size(pipe, run)
        is_past, (seconds, micros), left_ms, *size = pipe.execute()
        lefts_ms, sizes, fork = [left_ms], [size], spec.fork
        while fork is not None and left_ms != _GONE:
            above = self._keys.of_run(fork.run)
            pipe.get(above.spec)
            _ask_size(pipe, above)
            text, left_ms, *size = pipe.execute()
            sizes.append(size)
            lefts_ms.append(left_ms)
            fork = read_text(RunSpec, text, "spec", fork.run).fork if text else None
        return PastInfo(
            seconds * 1000 + micros // 1000,
            min(self._retention_ms if left_ms == _LASTS else left_ms for left_ms in lefts_ms),
            sum(steps for steps, _ in sizes),
            sum(bytes_ or 0 for _, bytes_ in sizes),
            bool(is_past),
        )

    def difference(self, run_id: str, first: int, second: int) -> StateDifference:
        """What distinguishes the state at the step `second` from that at `first`; the journal is read once."""
        from sleipnir.runs.journal import StateFold

        lower, upper = sorted((first, second))
        fold = StateFold().over(self._whole_journal(run_id, lower))
        difference = fold.difference(self._journal(run_id, lower + 1, upper))
        return difference if first == lower else difference.reversed()

    def written(self, run_id: str, until: int | None = None) -> Iterator[tuple[Step, dict[str, str]]]:
        """The steps of a run with what they wrote, as JSON texts, before the step `until`; read lazily."""
        from sleipnir.runs.journal import read_entry

        yield from map(read_entry, self._journal(run_id, 0, None if until is None else until - 1))

    def written_after(self, run_id: str, first: int) -> Iterator[tuple[Step, dict[str, str]]]:
        """The steps from `first` on with what they wrote, as JSON texts; read lazily."""
        from sleipnir.runs.journal import read_entry

        yield from map(read_entry, self._journal(run_id, first, None))

    def fold_of_past(self, run_id: str, spec: RunSpec) -> StateFold:
        """What the journal of a run with this spec continues: of a fork the journals of its sources. Raises RunNotFound
        for a source that has expired."""
        from sleipnir.runs.journal import StateFold

        fork = spec.fork
        return StateFold() if fork is None else StateFold().over(self._whole_journal(fork.run, fork.checkpoint.step))

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

    def state(self, run_id: str) -> dict[str, Any]:
        """The committed state."""
        run = self._keys.of_run(run_id)
        pipe = self._client.pipeline(transaction=False)
        pipe.hgetall(run.state)
        pipe.hexists(run.run, "past")
        texts, is_past = pipe.execute()
        return self.fold(run_id) if is_past else {key: json.loads(text) for key, text in texts.items()}

    def errors_of(self, run_id: str) -> list[dict[str, Any]]:
        """The failures that a run has collected in its state (planner/recovering.py)."""
        text = self._client.hget(self._keys.of_run(run_id).state, ERRORS_KEY)
        records = json.loads(text) if text else []
        return records if isinstance(records, list) else []

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
        skipped=step.skipped,
        cached=step.cached,
        callbacks=step.callbacks,
        voices=tuple(read(Voice, voice, "voice") for voice in step.voices),
    )
