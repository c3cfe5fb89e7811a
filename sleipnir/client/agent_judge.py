"""A judge that is an agent: it gets two outputs, and says which is better.

What has to be judged is submitted as a batch, so its runs are as durable as others, and wait in the batch until there
is room. Its rows have the keys of the rows that they judge. Only outputs that differ are judged: of two sides of which
one has an output, that one is better.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeAlias

from sleipnir.batches.rows import BadRow, Row
from sleipnir.errors import UsageError
from sleipnir.runs.comparison import Comparison, Verdict

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo, RowResult
    from sleipnir.client.batch import Batch, OnBad
    from sleipnir.runs.comparison import ComparedRun
    from sleipnir.store.store import Store

OnJudging: TypeAlias = Callable[["BatchInfo"], None]
SubmitRows: TypeAlias = Callable[[Iterable[Row], str, "OnBad"], "Batch"]

PAGE: Final = 100
SHOWN: Final = 60
KEY: Final = "runs"
"""The key of the only row when two runs are compared."""

_VERDICTS: Final[dict[str, Verdict]] = {"a": "worse", "b": "better", "same": "equal"}
_PROMPT: Final = """\
Compare two answers to the same task.

{task}Answer a:
{a}

Answer b:
{b}

Which answer is better? Reply with one word: a, b or same."""


class AgentJudge:
    """`submit` makes a batch of the judge's agent, of rows, with a name; it passes bad rows to a function.
    `on_judging` is called when that batch has changed."""

    def __init__(self, store: Store, submit: SubmitRows, on_judging: OnJudging | None = None) -> None:
        self._store, self._submit, self._on_judging = store, submit, on_judging

    def judged(self, read: Callable[[], Iterable[Comparison]], name: str) -> Iterator[Comparison]:
        """The comparisons with verdicts. They are read twice: when they are submitted to the judge, and when it is
        done; `name` is that of the batch. If the iteration is given up meanwhile, the batch is cancelled."""
        rows = (_row(comparison) for comparison in read() if _is_for_agent(comparison))
        first = next(rows, None)
        batch = None if first is None else self._done(chain([first], rows), name)
        comparisons = iter(read())
        while page := list(islice(comparisons, PAGE)):
            results = {} if batch is None else self._results(batch, page)
            yield from (_with_verdict(comparison, results.get(_key(comparison))) for comparison in page)

    def _done(self, rows: Iterable[Row], name: str) -> Batch:
        """The batch of these rows, when it is over."""
        bad: list[BadRow] = []

        def refuse(row: BadRow) -> None:
            bad[1:] = [row]

        try:
            batch = self._submit(rows, name, refuse)
        except UsageError as error:
            raise UsageError(f"the judge cannot be asked: {bad[0] if bad else error}") from error
        try:
            for info in batch.watch():
                if self._on_judging is not None:
                    self._on_judging(info)
        except BaseException:
            batch.cancel()
            raise
        return batch

    def _results(self, batch: Batch, page: Sequence[Comparison]) -> dict[str, RowResult]:
        keys = [_key(comparison) for comparison in page]
        with self._store.errors():
            rows = self._store.batches.rows_of(batch.id, keys)
            found = {row: key for row, key in zip(rows, keys, strict=True) if row is not None}
            results = self._store.batches.results_of(batch.id, found)
        return {result.key: result for result in results}


def _key(comparison: Comparison) -> str:
    return KEY if comparison.key is None else comparison.key


def _is_for_agent(comparison: Comparison) -> bool:
    outputs = _outputs(comparison)
    return outputs is not None and None not in outputs and outputs[0] != outputs[1]


def _outputs(comparison: Comparison) -> tuple[str | None, str | None] | None:
    """The outputs of both sides; None: there is nothing to compare yet, or at all."""
    a, b = comparison.a, comparison.b
    return (a.output, b.output) if a is not None and b is not None and a.is_over and b.is_over else None


def _row(comparison: Comparison) -> Row:
    assert comparison.a is not None and comparison.b is not None
    a, b = comparison.a.output or "", comparison.b.output or ""
    prompt = _PROMPT.format(task=_task(comparison.a), a=a, b=b)
    return Row(f"row {_key(comparison)}", _key(comparison), prompt, {"a": a, "b": b})


def _task(side: ComparedRun) -> str:
    task = json.loads(side.state.get("initial_prompt", '""'))
    return f"The task:\n{task}\n\n" if task and isinstance(task, str) else ""


def _with_verdict(comparison: Comparison, result: RowResult | None) -> Comparison:
    if comparison.a is None or comparison.b is None:
        return comparison
    outputs = _outputs(comparison)
    if outputs is None:
        return comparison.judged("undecided", "it is not over")
    if not _is_for_agent(comparison):
        has_a, has_b = (output is not None for output in outputs)
        return comparison.judged("equal" if has_a == has_b else "better" if has_b else "worse")
    if result is None:
        return comparison.judged(
            "undecided", "it was not judged: it has changed since, or could not be given to the judge"
        )
    if result.status != "completed":
        return comparison.judged(
            "undecided", f"the run {result.run} of the judge {result.status}: {result.error or ''}"
        )
    said = (result.output or "").strip()
    verdict = _VERDICTS.get(said.strip("'\".").lower())
    if verdict is None:
        return comparison.judged("undecided", f"the judge, run {result.run}, said {said[:SHOWN]!r}, not a, b or same")
    return comparison.judged(verdict)
