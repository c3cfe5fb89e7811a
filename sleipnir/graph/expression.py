"""Conditions in CEL, the Common Expression Language: `state.score > 0.8 && !has(state.error)` (F11 `cases:`).

Rules. An expression sees only `state`, or what else its place names (`a` and `b` of a comparison): no clock, no files,
no functions but CEL's own. Its value is true or false; any
other value, or a missing key, is an error that names the expression. Whole numbers and floats can be compared, but
arithmetic does not mix them (`double(state.n) * 0.5`).

The first expression imports the engine, which takes a third of a second. Afterwards parsing takes 50 us (once per text
and process) and evaluating 10 us, plus 3 us for each element inside the values that are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sleipnir.graph.model import Json
from sleipnir.graph.reducers import type_name

if TYPE_CHECKING:
    import cel

MOST_CHARACTERS = 4_000
MOST_WEIGHT = 2_000_000
"""The largest weight of the values that are read: 3 us per unit."""

MOST_LEVELS = 500
"""The deepest nesting of the values that are read; far deeper ones overflow the engine's stack and end the process."""

TOO_DEEP: Final = 2**60

FUNCTIONS: Final = frozenset(
    {"size", "type", "int", "uint", "double", "string", "bytes", "dyn", "timestamp", "duration"}
    | {"matches", "contains", "startsWith", "endsWith", "getFullYear", "getMonth", "getDate", "getDayOfMonth"}
    | {"getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds"}
)
"""The functions of an expression, without macros (`has`, `all`, `exists`, `exists_one`, `filter`, `map`)."""

_TYPES = frozenset(["int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type"])
_SHOWN = 200
_INSTEAD = {"and": "&&", "or": "||", "not": "!", "=": "==", "True": "true", "False": "false", "None": "null"}

_TOKEN = re.compile(
    r"""(?P<string>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
      | (?P<name>[A-Za-z_]\w*) | (?P<other>\d[\w.]*|//[^\n]*|\s+|.)""",
    re.VERBOSE | re.DOTALL,
)
_LOOPS = frozenset(["all", "exists", "exists_one", "filter", "map"])
_Token: TypeAlias = tuple[str | None, str]
_LOOP_VARIABLE = re.compile(r"\.\s*(?:all|exists|exists_one|filter|map)\s*\(\s*([A-Za-z_]\w*)\s*,")
_SYNTAX = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_UNEXPECTED = re.compile(r"(?:mismatched|extraneous) input '(.*?)' expecting .*|token recognition error at: '(.*)'")


class ExpressionError(Exception):
    """An expression is not CEL, or its value is neither true nor false. One line that names it."""

    def __init__(self, text: str, problem: str) -> None:
        shown = " ".join(text.split())
        super().__init__(f"expression `{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}`: {problem}")


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `keys` are the state keys that it reads; None: the whole state."""

    text: str
    keys: frozenset[str] | None
    reads: int
    """How often `state` occurs: `+` copies its operands."""
    is_costly: bool
    """It loops, or matches a pattern that is not a short text: it costs more than the values that it reads."""
    _program: cel.Program = field(repr=False, compare=False)

    def holds(self, state: Mapping[str, Json]) -> bool:
        """Whether the expression is true for this state. Raises ExpressionError if it is neither true nor false."""
        names = state if self.keys is None else self.keys & state.keys()
        read = {name: state[name] for name in names}
        self._refuse_large(read)
        return self._is_true({"state": read})

    def is_true(self, values: Mapping[str, Json]) -> bool:
        """Whether it is true for these values of its names. Raises ExpressionError if it is neither true nor false."""
        self._refuse_large(values)
        return self._is_true(values)

    def _refuse_large(self, values: Mapping[str, Json]) -> None:
        size = weight(values)
        if size == TOO_DEEP:
            raise ExpressionError(self.text, f"reads a value of more than {MOST_LEVELS} levels")
        if size > MOST_WEIGHT:
            raise ExpressionError(self.text, f"reads values of more than {MOST_WEIGHT:,} parts; count them in a node")

    def value(self, state: Mapping[str, Json]) -> Any:
        """What the expression makes of this state. Raises ExpressionError."""
        names = state if self.keys is None else self.keys & state.keys()
        read = {name: state[name] for name in names}
        self._refuse_large(read)
        return self._value({"state": read})

    def _is_true(self, values: Mapping[str, Json]) -> bool:
        result = self._value(values)
        if not isinstance(result, bool):
            raise ExpressionError(self.text, f"is neither true nor false but of type {type_name(result)}")
        return result

    def _value(self, values: Mapping[str, Json]) -> Any:
        try:
            return self._program.execute(dict(values))
        except KeyError as error:
            key = str(error.args[0]).strip("'") if error.args else ""
            raise ExpressionError(self.text, f"{key!r} does not exist; check for it first with has(...)") from None
        except TypeError as error:
            hint = "int(), double() and string() convert"
            raise ExpressionError(self.text, f"{_first_sentence(str(error))}; {hint}") from None
        except Exception as error:  # the engine raises Python's exceptions: ZeroDivisionError, ...
            raise ExpressionError(self.text, _first_sentence(str(error))) from None


@lru_cache(maxsize=1_000)
def parse(text: str, names: tuple[str, ...] = ("state",)) -> Expression:
    """The expression over these names, with every check that needs no values. Raises ExpressionError."""
    import cel

    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(text, f"has {len(text):,} characters, at most {MOST_CHARACTERS:,} are possible")
    if not text.strip():
        raise ExpressionError(text, "is empty")
    if "{{" in text:
        raise ExpressionError(text, "placeholders are not allowed in conditions; write state.key")
    try:
        program = cel.compile(text)
    except Exception as error:
        raise ExpressionError(text, _syntax_problem(text, str(error))) from None
    if problem := _unknown_name(text, program, names):
        raise ExpressionError(text, problem)
    tokens = _tokens(text)
    reads = sum(token == ("name", "state") for token in tokens)
    return Expression(text, _keys_read(tokens), max(1, reads), _is_costly(tokens), program)


def _unknown_name(text: str, program: cel.Program, names: tuple[str, ...]) -> str | None:
    """The problem of a name that is none of these, no loop variable and no function; None: there is none."""
    for name in set(program.variables()) - _TYPES - {*names, *_LOOP_VARIABLE.findall(text)}:
        if name in _INSTEAD:
            return f"{name!r} does not exist; write {_INSTEAD[name]}"
        if names != ("state",):
            return f"{name!r} does not exist; there are {', '.join(names)}. Put text in quotes"
        return f"{name!r} does not exist; write state.{name.lstrip('.')} for a state key, and put text in quotes"
    for name in set(program.functions()) - FUNCTIONS:
        if name.isidentifier() and not name.startswith("_"):
            return f"function {name!r} does not exist; available are has, {', '.join(sorted(FUNCTIONS))}"
    return None


def _tokens(text: str) -> list[_Token]:
    """The tokens without blanks and comments, followed by three empty ones."""
    matches = (match for match in _TOKEN.finditer(text) if not (match[0].isspace() or match[0].startswith("//")))
    return [*((match.lastgroup, match[0]) for match in matches), *[(None, "")] * 3]


def _is_costly(tokens: Sequence[_Token]) -> bool:
    for place, (kind, word) in enumerate(tokens[:-3]):
        following = tokens[place + 1 : place + 4]
        if kind == "name" and word in _LOOPS and following[0][1] == "(":
            return True
        if kind == "name" and word == "matches" and not _is_short_pattern(following):
            return True
    return False


def _is_short_pattern(tokens: Sequence[_Token]) -> bool:
    """Whether the tokens are `("...")` with a short text. Compiling a pattern that ignores case takes up to a
    millisecond for each character."""
    (_, opening), (kind, pattern), (_, closing) = tokens
    return opening == "(" and kind == "string" and closing == ")" and len(pattern) <= 200 and "(?" not in pattern


def _keys_read(tokens: Sequence[_Token]) -> frozenset[str] | None:
    """The keys in `state.key` and `state["key"]`; None if `state` is used in any other way."""
    keys = set()
    for place, token in enumerate(tokens[:-3]):
        if token != ("name", "state") or (place and tokens[place - 1][1] == "."):
            continue
        (_, sign), (kind, named), (_, after) = tokens[place + 1 : place + 4]
        if sign == "." and kind == "name" and after != "(":
            keys.add(named)
        elif sign == "[" and kind == "string" and after == "]" and _is_plain(named):
            keys.add(named[1:-1])
        else:
            return None
    return frozenset(keys)


def _is_plain(quoted: str) -> bool:
    """Whether a literal has no prefix, no escape and no triple quotes, so that its value is the quoted text."""
    return quoted[0] in "'\"" and quoted[:3] not in ("'''", '"""') and "\\" not in quoted


def _syntax_problem(text: str, complaint: str) -> str:
    """The engine's first complaint in terms of the author: the problem and its place."""
    mistake = _SYNTAX.search(complaint)
    if mistake is None:
        return _first_sentence(complaint)
    line, column, problem = int(mistake[1]), int(mistake[2]), mistake[3]
    if unexpected := _UNEXPECTED.fullmatch(problem):
        token = (unexpected[1] or unexpected[2] or "").strip()
        if token == "<EOF>":
            return "ends too early"
        words = {match[0] for match in _TOKEN.finditer(text) if match["name"]} & _INSTEAD.keys()
        instead = "".join(f"; for {word} write {_INSTEAD[word]}" for word in sorted({token, *words} & _INSTEAD.keys()))
        problem = f"unexpected {token}{instead}"
    where = f"character {column}" if "\n" not in text.strip() else f"line {line}, character {column}"
    return f"{problem} (at {where})"


def _first_sentence(text: str) -> str:
    return text.split("\n", 1)[0].split(". ", 1)[0].strip("(.")


def weight(values: Mapping[str, Json]) -> int:
    """The cost of passing the values to the engine: their elements, and their text in units of 100 characters.
    TOO_DEEP for more than MOST_LEVELS levels."""
    total = 0
    layer: list[Json] = [dict(values)]
    for _ in range(MOST_LEVELS):
        inner: list[Json] = []
        for part in layer:
            elements = part.values() if isinstance(part, dict) else part
            total += len(part)
            for item in elements:
                if isinstance(item, str):
                    total += len(item) // 100
                elif isinstance(item, dict | list):
                    inner.append(item)
        if not inner:
            return total
        layer = inner
    return TOO_DEEP
