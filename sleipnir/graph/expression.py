"""Conditions in CEL, the Common Expression Language: `state.score > 0.8 && !has(state.error)` (F11 `cases:`).

Rules. An expression sees `state` and nothing else: no clock, no files, no functions but CEL's own. It is true or false;
anything else, and a key that is not there, is an error that names the expression. Whole numbers and floats compare with
one another, but arithmetic does not mix them (`double(state.n) * 0.5`).

The engine is imported by the first expression, as that takes a third of a second. Then parsing takes 50 us (once per
text and process) and evaluating 10 us, plus 3 us for each element inside the values that are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from sleipnir.graph.model import Json
from sleipnir.graph.reducers import type_name

if TYPE_CHECKING:
    import cel

MOST_CHARACTERS = 4_000
MOST_WEIGHT = 2_000_000
"""Of the values that are read: 3 us each."""

MOST_LEVELS = 500
"""Nesting of the values that are read; far deeper ones would overflow the engine's stack, and so end the process."""

TOO_DEEP: Final = 2**60

FUNCTIONS: Final = frozenset(
    {"size", "type", "int", "uint", "double", "string", "bytes", "dyn", "timestamp", "duration"}
    | {"matches", "contains", "startsWith", "endsWith", "getFullYear", "getMonth", "getDate", "getDayOfMonth"}
    | {"getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds"}
)
"""What an expression can call, macros (`has`, `all`, `exists`, `exists_one`, `filter`, `map`) apart."""

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
    """An expression is no CEL, or neither true nor false of a state. One line that names it."""

    def __init__(self, text: str, problem: str) -> None:
        shown = " ".join(text.split())
        super().__init__(f"expression `{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}`: {problem}")


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `keys` are the state keys that it reads; None: it needs the whole state."""

    text: str
    keys: frozenset[str] | None
    reads: int
    """How often `state` stands in it: `+` copies what it joins."""
    is_costly: bool
    """It loops, or matches a pattern that is not a short text: its cost is more than that of what it reads."""
    _program: cel.Program = field(repr=False, compare=False)

    def holds(self, state: Mapping[str, Json]) -> bool:
        """Whether it is true of this state. Raises ExpressionError when it is neither true nor false."""
        names = state if self.keys is None else self.keys & state.keys()
        read = {name: state[name] for name in names}
        found = weight(read)
        if found == TOO_DEEP:
            raise ExpressionError(self.text, f"reads a value of more than {MOST_LEVELS} levels")
        if found > MOST_WEIGHT:
            raise ExpressionError(self.text, f"reads values of more than {MOST_WEIGHT:,} parts; count them in a node")
        try:
            result = self._program.execute({"state": read})
        except KeyError as error:
            raise ExpressionError(self.text, f"{_bare(error)!r} is not there; has(...) asks for it first") from None
        except TypeError as error:
            hint = "int(), double() and string() convert"
            raise ExpressionError(self.text, f"{_first_sentence(str(error))}; {hint}") from None
        except Exception as error:  # the engine raises what Python raises for the like: ZeroDivisionError, ...
            raise ExpressionError(self.text, _first_sentence(str(error))) from None
        if not isinstance(result, bool):
            raise ExpressionError(self.text, f"is neither true nor false but of type {type_name(result)}")
        return result


@lru_cache(maxsize=1_000)
def parse(text: str) -> Expression:
    """The expression, checked as far as it can be without a state. Raises ExpressionError."""
    import cel

    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(text, f"has {len(text):,} characters, at most {MOST_CHARACTERS:,} are possible")
    if not text.strip():
        raise ExpressionError(text, "is empty")
    if "{{" in text:
        raise ExpressionError(text, "placeholders are for texts; a key of the state is state.key here")
    try:
        program = cel.compile(text)
    except Exception as error:
        raise ExpressionError(text, _syntax_problem(text, str(error))) from None
    if problem := _unknown_name(text, program):
        raise ExpressionError(text, problem)
    tokens = _tokens(text)
    reads = sum(token == ("name", "state") for token in tokens)
    return Expression(text, _keys_read(tokens), max(1, reads), _is_costly(tokens), program)


def _unknown_name(text: str, program: cel.Program) -> str | None:
    """An expression can read its loops' variables besides `state`."""
    for name in set(program.variables()) - _TYPES - {"state", *_LOOP_VARIABLE.findall(text)}:
        if name in _INSTEAD:
            return f"{name!r} does not exist; write {_INSTEAD[name]}"
        return f"{name!r} does not exist; a key of the state is state.{name.lstrip('.')}, a text is in quotes"
    for name in set(program.functions()) - FUNCTIONS:
        if name.isidentifier() and not name.startswith("_"):
            return f"function {name!r} does not exist; there are has, {', '.join(sorted(FUNCTIONS))}"
    return None


def _tokens(text: str) -> list[_Token]:
    """Without blanks and comments, and with three empty ones at the end."""
    tokens: list[_Token] = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(text) if not _is_blank(match[0])]
    return [*tokens, *[(None, "")] * 3]


def _is_costly(tokens: Sequence[_Token]) -> bool:
    for place, (kind, word) in enumerate(tokens[:-3]):
        following = tokens[place + 1 : place + 4]
        if kind == "name" and word in _LOOPS and following[0][1] == "(":
            return True
        if kind == "name" and word == "matches" and not _is_short_pattern(following):
            return True
    return False


def _is_short_pattern(tokens: Sequence[_Token]) -> bool:
    """`("...")`. Compiling one that ignores case takes up to a millisecond for each character."""
    (_, opening), (kind, pattern), (_, closing) = tokens
    return opening == "(" and kind == "string" and closing == ")" and len(pattern) <= 200 and "(?" not in pattern


def _keys_read(tokens: Sequence[_Token]) -> frozenset[str] | None:
    """The keys in `state.key` and `state["key"]`; None when `state` stands anywhere else."""
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


def _is_blank(token: str) -> bool:
    return token.isspace() or token.startswith("//")


def _is_plain(quoted: str) -> bool:
    """No prefix, no escape, quoted once: what it says is what stands between its quotes."""
    return quoted[0] in "'\"" and quoted[:3] not in ("'''", '"""') and "\\" not in quoted


def _syntax_problem(text: str, said: str) -> str:
    """The engine's first complaint in an author's words: where, and what."""
    found = _SYNTAX.search(said)
    if found is None:
        return _first_sentence(said)
    line, column, problem = int(found[1]), int(found[2]), found[3]
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


def _bare(error: KeyError) -> str:
    return str(error.args[0]).strip("'") if error.args else ""


def weight(values: Mapping[str, Json]) -> int:
    """How much the values are to hand to the engine: their elements, and their text in pieces of 100 characters.
    TOO_DEEP for more than MOST_LEVELS levels."""
    found = 0
    layer: list[Json] = [dict(values)]
    for _ in range(MOST_LEVELS):
        inner: list[Json] = []
        for part in layer:
            elements = part.values() if isinstance(part, dict) else part
            found += len(part)
            for item in elements:
                if isinstance(item, str):
                    found += len(item) // 100
                elif isinstance(item, dict | list):
                    inner.append(item)
        if not inner:
            return found
        layer = inner
    return TOO_DEEP
