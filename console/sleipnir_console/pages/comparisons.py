"""Two runs side by side as pages show them: numbers with their difference in words, texts and paths as lines with
signs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.runs.comparison import ComparedRun, Comparison
from sleipnir_console.pages.formats import cost, count, duration, json_text
from sleipnir_console.pages.text_difference import ChangedLine, changed_lines

MOST_LINES: Final = 400
"""Lines of each side that are compared."""
MOST_CHARS: Final = 20_000
MOST_KEYS: Final = 200
MOST_VISITS: Final = 1_000


@dataclass(frozen=True)
class FactRow:
    """A number or a word of both sides. `words` is how `b` differs from `a`; empty: it does not."""

    name: str
    a: str
    b: str
    words: str


@dataclass(frozen=True)
class TextDifference:
    """What differs in a text. `is_cut`: only the beginning was compared."""

    lines: Sequence[ChangedLine]
    is_cut: bool

    @property
    def is_same(self) -> bool:
        return not self.lines


@dataclass(frozen=True)
class KeyDifference:
    """A key of the state that differs: how, in words, and its values as lines."""

    name: str
    words: str
    difference: TextDifference


def facts_of(a: ComparedRun, b: ComparedRun) -> list[FactRow]:
    """What can be compared as a number or a word."""
    return [
        FactRow("State", a.status, b.status, "" if a.status == b.status else "differs"),
        fact_of("Cost", a.cost_usd, b.cost_usd, cost),
        fact_of("Tokens", a.tokens, b.tokens, count),
        fact_of("Took", a.took_ms, b.took_ms, duration),
        fact_of("Visits", a.visits, b.visits, count),
        *([FactRow("Overrides", _overrides(a), _overrides(b), "" if a.overrides == b.overrides else "differ")]
          if a.overrides or b.overrides else []),
    ]  # fmt: skip


def _overrides(side: ComparedRun) -> str:
    return "; ".join(side.overrides) or "none"


def fact_of(name: str, a: float | None, b: float | None, words: Callable[[Any], str]) -> FactRow:
    """A number of both sides; None: it is not known."""
    shown_a, shown_b = (words(each) if each is not None else "–" for each in (a, b))
    difference = "not known" if a is None or b is None else ""
    if a is not None and b is not None and a != b:
        percent = f" ({100 * (b - a) / a:+.0f} %)" if a else ""
        difference = f"{words(abs(b - a))} {'more' if b > a else 'less'}{percent}"
    return FactRow(name, shown_a, shown_b, difference)


def changed_in_words(comparison: Comparison) -> str:
    """What differs, for a title."""
    match comparison.outcome:
        case "only_a":
            return "only in the first"
        case "only_b":
            return "only in the second"
        case "same":
            return "the same"
    return ", ".join(comparison.changed) + (" differ" if len(comparison.changed) > 1 else " differs")


def text_difference(a: str | None, b: str | None) -> TextDifference:
    """Two texts by their lines."""
    first, second = ((text or "")[:MOST_CHARS].splitlines()[:MOST_LINES] for text in (a, b))
    is_cut = any(len(text or "") > MOST_CHARS or (text or "").count("\n") > MOST_LINES for text in (a, b))
    return TextDifference(changed_lines(first, second, 2 * MOST_LINES), is_cut)


def path_difference(a: ComparedRun, b: ComparedRun) -> TextDifference:
    """The nodes of two runs, in the order of their visits."""
    first, second = (side.path[:MOST_VISITS] for side in (a, b))
    return TextDifference(
        changed_lines(first, second, 2 * MOST_LINES), any(side.visits > MOST_VISITS for side in (a, b))
    )


def state_differences(comparison: Comparison) -> list[KeyDifference]:
    """The keys of the state that differ, by name; the first ones of very many."""
    state = comparison.state
    found = [
        *(KeyDifference(name, "differs", text_difference(json_text(a), json_text(b)))
          for name, (a, b) in list(state.changed.items())[:MOST_KEYS]),
        *(KeyDifference(name, "only in the second", text_difference("", json_text(value)))
          for name, value in list(state.added.items())[:MOST_KEYS]),
        *(KeyDifference(name, "only in the first", text_difference(json_text(value), ""))
          for name, value in list(state.removed.items())[:MOST_KEYS]),
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.name)[:MOST_KEYS]
