"""Regular expressions from authors of graphs, model answers and servers: matched in bounded time, or refused.

Python's `re` backtracks: `(a+)+$` needs 2^n steps for n times `a`, and no other thread of the process runs meanwhile.
The engine here is a finite automaton: its time grows with the length of the text times the size of the pattern, and
both are bounded. Features that an automaton lacks (look-around, back-references) are refused.

The syntax is ECMA 262, as JSON Schema requires: a pattern matches anywhere in the text unless `^` and `$` anchor
it; `\\d` and `\\w` are ASCII, `\\p{L}` is Unicode; `$` matches only at the end of the text, not before a last newline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import jsonschema_rs

MOST_CHARACTERS: Final = 1_000
"""The longest pattern."""

SMALL_BYTES: Final = 65_536
"""The compiled size up to which a pattern is matched with texts of MOST_TEXT characters: at most 4 us per character."""

LARGE_BYTES: Final = 1_048_576
"""The largest compiled size. A counted repetition of a large class, such as `.{1,500}`, needs much of it."""

MOST_TEXT: Final = 200_000
MOST_TEXT_OF_LARGE: Final = 10_000

_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|/]")
_UNICODE_CLASS = re.compile(r"\\[pP]\{\w+(?:=\w+)?\}")  # unknown to Python's `re`
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_BACK_REFERENCE = re.compile(r"\\(?:[1-9]|k<)|\(\?P=")
_POSSESSIVE = re.compile(r"\(\?>")
_PYTHON_END = re.compile(r"\\Z")
_ESCAPED_BACKSLASH = re.compile(r"\\\\")
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")


class PatternRefused(Exception):
    """The pattern cannot be matched in bounded time, or the text is too long for it. One line."""


class NoPattern(PatternRefused):
    """It is not a regular expression."""


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern."""

    text: str
    is_large: bool
    compile_work: int
    """The cost of compiling, in steps of `sleipnir.graph.schema`."""
    _engine: jsonschema_rs.Draft202012Validator = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in `text`. Raises PatternRefused for a text that is too long."""
        most = MOST_TEXT_OF_LARGE if self.is_large else MOST_TEXT
        if len(text) > most:
            raise PatternRefused(
                f"the pattern {shown(self.text)} is matched with at most {most:,} characters, not {len(text):,}"
            )
        try:
            return self._engine.is_valid(text)
        except UnicodeEncodeError:  # half of a surrogate pair, as in the name of a file that is not UTF-8
            return self._engine.is_valid(text.encode(errors="replace").decode())

    def work(self, text: str) -> int:
        """The highest cost of matching `text`, in the same steps."""
        return 2 * len(text) if self.is_large else len(text) // 4


@lru_cache(maxsize=2_000)
def compiled(text: str, most_characters: int = MOST_CHARACTERS) -> Pattern:
    """The compiled pattern. Raises PatternRefused, with an alternative if there is one."""
    if len(text) > most_characters:
        raise PatternRefused(
            f"the pattern {shown(text)} has {len(text):,} characters, at most {most_characters:,} are possible"
        )
    # A pattern that ignores case folds each of its classes: 1 ms each instead of 10 us.
    work = len(text) * (50 if _IGNORES_CASE.search(text) else 2)
    for size in (SMALL_BYTES, LARGE_BYTES):
        engine = _engine(text, size)
        if engine is not None:
            return Pattern(text, size == LARGE_BYTES, work, engine)
    raise _refusal(text)


def _engine(text: str, size_bytes: int) -> jsonschema_rs.Draft202012Validator | None:
    # Imported here: 30 ms, and few graphs have a pattern.
    import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=size_bytes, dfa_size_limit=LARGE_BYTES)
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": text}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return None


def _refusal(text: str) -> PatternRefused:
    try:
        re.compile(_UNICODE_CLASS.sub("a", text))
    except (re.error, OverflowError, RecursionError) as error:
        return NoPattern(f"{shown(text)} is not a 'regex': {error}")
    return PatternRefused(f"the pattern {shown(text)} {_problem(text)}")


def _problem(text: str) -> str:
    plain = _ESCAPED_BACKSLASH.sub("", text)
    if _LOOK_AROUND.search(plain):
        return (
            "uses look-around, which cannot be bounded. Write what must match as one pattern, and combine several with "
            "`allOf` or `not` of the schema"
        )
    if _BACK_REFERENCE.search(plain):
        return "uses a back-reference, which cannot be bounded. Check equal parts in a node"
    if _POSSESSIVE.search(plain):
        return "uses an atomic group, which is not needed here: write (?:...)"
    if _PYTHON_END.search(plain):
        return "uses \\Z, which is Python's own: write $"
    return (
        f"is not a regular expression of ECMA 262 or needs more than {LARGE_BYTES:,} bytes. Write smaller counts, or "
        "`maxLength` of the schema, in place of a counted repetition"
    )


def escaped(text: str) -> str:
    """A pattern that matches the text literally."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
