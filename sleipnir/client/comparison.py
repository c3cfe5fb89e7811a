"""Compares runs, and the rows of batches: sides are read a page at a time, so that batches of any size can be compared.

Rows of two batches belong together if they have the same key. A judge says of each row whether `b` is better: an
expression that holds for `b`, seen from `a`, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from sleipnir.batches.records import row_run_id
from sleipnir.errors import BatchNotFound, RunNotFound, UsageError
from sleipnir.graph.expression import Expression, ExpressionError, parse
from sleipnir.runs.comparison import ComparedRun, Comparison, ComparisonPage, compared

if TYPE_CHECKING:
    from sleipnir.store.store import Store

FEWEST_PAIRS, MOST_PAIRS, PAIR_BYTES = 4, 128, 4 * 2**20
"""Pairs whose sides are read at once; fewer if they are large."""

PAGE_PAIRS: Final = 32
"""Pairs of a page that are read at once."""

SIDES: Final = ("a", "b")

Judge: TypeAlias = Callable[[Comparison], Comparison]


def judge_of(text: str) -> Judge:
    """The judge that an expression over `a` and `b` is. Raises UsageError for one that is not CEL."""
    try:
        expression = parse(text, SIDES)
    except ExpressionError as error:
        no_agent = "" if " " in text else "; nor is there an agent or a folder of this name"
        raise UsageError(f"the judge cannot be used: {error}{no_agent}") from error
    return lambda comparison: _judged(comparison, expression)


def _judged(comparison: Comparison, expression: Expression) -> Comparison:
    if comparison.a is None or comparison.b is None:
        return comparison
    sides = [_data(side, "state" in expression.text) for side in (comparison.a, comparison.b)]
    try:
        holds = expression.is_true(dict(zip(SIDES, sides, strict=True)))
        holds_reversed = expression.is_true(dict(zip(SIDES, reversed(sides), strict=True)))
    except ExpressionError as error:
        return comparison.judged("undecided", str(error))
    if holds == holds_reversed:
        return comparison.judged("equal")
    return comparison.judged("better" if holds else "worse")


def _data(side: ComparedRun, with_state: bool) -> dict[str, object]:
    return {**side.to_data(), **({"state": side.values()} if with_state else {})}


def compare_runs(store: Store, a: str, b: str, judge: Judge | None) -> Comparison:
    """Two runs. Raises RunNotFound."""
    with store.errors():
        side_a, side_b = store.runs.compared([a, b])
    for run_id, side in ((a, side_a), (b, side_b)):
        if side is None:
            raise RunNotFound(f"no run {run_id!r}")
    comparison = compared(side_a, side_b)
    return judge(comparison) if judge else comparison


@dataclass(frozen=True)
class _Pair:
    """The numbers of the rows with a key; None: the batch has no such row."""

    key: str
    a: int | None
    b: int | None


def compare_rows(store: Store, a: str, b: str, judge: Judge | None) -> Iterator[Comparison]:
    """The rows of two batches: those of `a` in order, then those that only `b` has. Read lazily."""
    count = FEWEST_PAIRS
    pairs = _pairs(store, a, b)
    while page := list(islice(pairs, count)):
        with store.errors():
            comparisons = _compared(store, a, b, page)
        yield from map(judge, comparisons) if judge else comparisons
        count = FEWEST_PAIRS if _size(comparisons) > PAIR_BYTES else min(count * 2, MOST_PAIRS)


def _pairs(store: Store, a: str, b: str) -> Iterator[_Pair]:
    for first, names, found in _matched(store, a, b):
        yield from (_Pair(key, first + at, row) for at, (key, row) in enumerate(zip(names, found, strict=True)))
    for first, names, found in _matched(store, b, a):
        yield from (
            _Pair(key, None, first + at) for at, (key, row) in enumerate(zip(names, found, strict=True)) if row is None
        )


def compare_page(store: Store, a: str, b: str, start: int, limit: int) -> ComparisonPage:
    """A page of the rows of two batches. Places count the rows of `a`, then those of `b`."""
    with store.errors():
        info_a, info_b = store.batches.infos([a, b])
    for batch, info in ((a, info_a), (b, info_b)):
        if info is None:
            raise BatchNotFound(f"no batch {batch!r}")
    assert info_a is not None and info_b is not None
    only_b = start >= info_a.total
    batch, other, first = (b, a, start - info_a.total) if only_b else (a, b, start)
    with store.errors():
        names = store.batches.names(batch, first)[:limit]
        found = store.batches.rows_of(other, names) if names else []
        places = zip(names, range(first, first + len(names)), found, strict=True)
        if only_b:
            pairs = [_Pair(key, None, row) for key, row, match in places if match is None]
        else:
            pairs = [_Pair(key, row, match) for key, row, match in places]
        comparisons = [
            each
            for at in range(0, len(pairs), PAGE_PAIRS)
            for each in _compared(store, a, b, pairs[at : at + PAGE_PAIRS])
        ]
    after = start + len(names)
    return ComparisonPage(tuple(comparisons), after if names and after < info_a.total + info_b.total else None)


def _matched(store: Store, batch: str, other: str) -> Iterator[tuple[int, list[str], list[int | None]]]:
    """Pages of the rows of a batch: the number of the first one, their keys, and the rows of the other batch."""
    first = 0
    while True:
        with store.errors():
            names = store.batches.names(batch, first)
            found = store.batches.rows_of(other, names) if names else []
        if not names:
            return
        yield first, names, found
        first += len(names)


def _compared(store: Store, a: str, b: str, pairs: Sequence[_Pair]) -> list[Comparison]:
    rows = [(a, pair.a) for pair in pairs] + [(b, pair.b) for pair in pairs]
    sides = dict(zip(rows, rows_compared(store, rows), strict=True))
    return [compared(sides[a, pair.a], sides[b, pair.b], pair.key) for pair in pairs]


def rows_compared(
    store: Store, rows: Sequence[tuple[str, int | None]], *, paths: bool = True
) -> list[ComparedRun | None]:
    """Rows of batches as sides of a comparison; None for no row. Without `paths` they have none."""
    run_ids = [row_run_id(batch, row) if row is not None else None for batch, row in rows]
    named = [run_id for run_id in run_ids if run_id is not None]
    found = dict(zip(named, store.runs.compared(named, paths=paths), strict=True))
    missing = [(batch, row) for batch, row in rows if row is not None and found[row_run_id(batch, row)] is None]
    without_run = dict(zip(missing, store.batches.without_run(missing), strict=True))
    sides: list[ComparedRun | None] = []
    for (batch, row), run_id in zip(rows, run_ids, strict=True):
        if row is None or run_id is None:
            sides.append(None)
            continue
        status, why = without_run.get((batch, row), ("", None))
        sides.append(found[run_id] or ComparedRun(run_id, status, error=why))
    return sides


def _size(comparisons: Iterable[Comparison]) -> int:
    """About how many bytes were read for these."""
    return sum(
        len(text)
        for comparison in comparisons
        for side in (comparison.a, comparison.b)
        if side is not None
        for text in (side.output or "", *side.state.values())
    )
