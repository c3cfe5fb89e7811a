"""JSON Schemas of authors, applied to untrusted values, with a bound on the work.

Rules. Validation counts steps, one for each keyword and more for expensive ones, and gives up after MOST_STEPS: a
schema whose `$ref`s double with each level, or a value of a million items, must not stop the process. Patterns are
matched by `sleipnir.graph.patterns`. `uniqueItems` is linear. `format` is an annotation and not checked. A `$ref` to
another document is never fetched, and `$schema` is only read at the top.

If the check is not completed, the value has not passed: `violation` raises.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

from sleipnir.graph.model import Json
from sleipnir.graph.patterns import NoPattern, PatternRefused, compiled

MOST_STEPS: Final = 200_000
"""About a second of one core: enough for a list of 20,000 objects with three checked properties each."""

MOST_STEPS_OF_SCHEDULER: Final = 10_000
"""About 30 ms of one core, during which a scheduler does nothing else: enough for a list of 1,000 such objects. The
bound applies to all writes of one node's `state_updates` together."""

MOST_STEPS_OF_CHECK: Final = 1_000_000
"""The bound for checking the schema itself, which happens at validation, not in the scheduler."""

_SHOWN = 300
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items", "extends", "disallow", "type")
_ONE = (
    "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "not", "if",
    "then", "else", "contains", "propertyNames", "extends",
)  # fmt: skip
_EACH_PART = frozenset(
    (
        "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "properties", "patternProperties",
        "additionalProperties", "unevaluatedProperties", "propertyNames", "dependentSchemas", "dependencies",
    )
)  # fmt: skip
"""Keywords that visit each part of a list or an object."""

_EACH_OPTION = frozenset(["enum", "required", "properties", "patternProperties", "dependentRequired", "dependencies"])
"""Keywords that visit each part of their own value in the schema."""

_REFERENCES = frozenset(["$ref", "$dynamicRef", "$recursiveRef"])
"""Resolving one costs as much as eight other keywords."""

Place: TypeAlias = tuple[str | int, ...]
Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


@dataclass(frozen=True)
class SchemaProblem:
    """Why a schema cannot be applied."""

    place: Place
    message: str
    is_refused: bool = False
    """It is a valid JSON Schema that cannot be applied in bounded time."""


class NotChecked(Exception):
    """A value cannot be checked against its schema. Completes "it cannot be checked: ...". One line."""


class Unresolvable(NotChecked):
    """The schema has a reference to something outside it."""


class _RemainingSteps(threading.local):
    """The steps left for the validation of this thread."""

    allowance: int | None = None
    """The steps left for all checks within `at_most`."""
    most = MOST_STEPS

    def begin(self, steps: int, *, has_pattern_properties: bool = False) -> None:
        self.left = steps
        self.patterns: set[str] = set()
        """The patterns that were already matched: compiling counts once."""
        self.has_pattern_properties = has_pattern_properties

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise NotChecked(f"it needs more than {self.most:,} steps; use a smaller value or a simpler schema")


_work = _RemainingSteps()


@contextmanager
def at_most(steps: int) -> Iterator[None]:
    """Within the context, all calls of `violation` in this thread share `steps`, instead of MOST_STEPS each."""
    before = _work.allowance, _work.most
    _work.allowance = _work.most = steps
    try:
        yield
    finally:
        _work.allowance, _work.most = before


def violation(schema: Json, value: Json) -> str | None:
    """The most relevant violation, as `$.items[0]: ...`; None: the value matches. Raises NotChecked."""
    from jsonschema.exceptions import best_match

    text = json.dumps(schema)
    validator = _validator(text)
    steps = MOST_STEPS if _work.allowance is None else _work.allowance
    _work.begin(steps, has_pattern_properties='"patternProperties":' in text)
    try:
        error = _bounded(lambda: best_match(validator.iter_errors(value)))
    finally:
        if _work.allowance is not None:
            _work.allowance = max(_work.left, 0)
    if error is None:
        return None
    message = error.message
    more = len(message) - _SHOWN
    return f"{error.json_path}: {message if more <= 0 else f'{message[:_SHOWN]}… ({more} more characters)'}"


def problem(schema: Json) -> SchemaProblem | None:
    """Why `schema` is not a JSON Schema that can be applied; None if it is."""
    # Imported here: the import costs more than the rest of a check, and few graphs have a schema.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        return SchemaProblem(("$schema",), "'$schema' must be text")
    stock = validator_for(schema, default=Draft202012Validator)
    validator = _counting(stock)(stock.META_SCHEMA, registry=Registry())
    try:
        _work.begin(MOST_STEPS_OF_CHECK)
        error = _bounded(lambda: next(iter(validator.iter_errors(schema)), None))
    except NotChecked as refused:
        return SchemaProblem((), f"it cannot be checked: {refused}", is_refused=True)
    if error is not None:
        return SchemaProblem(tuple(error.absolute_path), error.message[:200])
    return next(_refused(schema), None)


def _bounded(check: Callable[[], Any]) -> Any:
    from referencing.exceptions import Unresolvable as Elsewhere

    try:
        return check()
    except Elsewhere as unresolvable:
        raise Unresolvable(f"its schema refers to {unresolvable.ref!r}, which is not in it") from None
    except PatternRefused as refused:
        raise NotChecked(str(refused)) from None
    except RecursionError:
        raise NotChecked("the schema or the value has too many levels, or a `$ref` leads back to itself") from None
    except NotChecked:
        raise
    except Exception as error:  # raised by jsonschema for an invalid schema: UnknownType, TypeError, ...
        reason = str(error).split("\n", 1)[0]
        raise NotChecked(f"its schema is not a JSON Schema: {type(error).__name__}: {reason}") from error


def _refused(schema: Json) -> Iterator[SchemaProblem]:
    """The patterns that cannot be matched, and keywords that cannot be combined."""
    parts: list[tuple[Place, Json]] = [((), schema)]
    has_patterns = False
    unevaluated: Place | None = None
    while parts:
        place, part = parts.pop()
        if not isinstance(part, dict):
            continue
        by_pattern = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())):
            if isinstance(pattern, str) and (error := _refusal(pattern)):
                inner = ("pattern",) if pattern == part.get("pattern") else ("patternProperties", pattern)
                yield SchemaProblem((*place, *inner), str(error), is_refused=not isinstance(error, NoPattern))
        has_patterns = has_patterns or bool(by_pattern)
        if "unevaluatedProperties" in part:
            unevaluated = (*place, "unevaluatedProperties")
        parts += _inside(part, place)
    if has_patterns and unevaluated is not None:
        yield SchemaProblem(unevaluated, _NOT_TOGETHER, is_refused=True)


def _inside(part: Mapping[str, Json], place: Place) -> Iterator[tuple[Place, Json]]:
    for name in _MAPS:
        inner = part.get(name)
        for key, schema in inner.items() if isinstance(inner, dict) else ():
            yield (*place, name, key), schema
    for name in _LISTS:
        inner = part.get(name)
        for index, schema in enumerate(inner if isinstance(inner, list) else ()):
            yield (*place, name, index), schema
    for name in _ONE:
        yield (*place, name), part.get(name)


def _refusal(pattern: str) -> PatternRefused | None:
    try:
        compiled(pattern)
    except PatternRefused as refused:
        return refused
    return None


@lru_cache(maxsize=200)
def _validator(text: str) -> Any:
    # Imported here: the import costs more than the rest of a check, and few keys have a schema.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    return _counting(validator_for(schema, default=Draft202012Validator))(schema, registry=Registry())


# The keywords, counted


@cache
def _counting(stock: Any) -> Any:
    """The validator class of a draft, with keywords that count their steps."""
    from jsonschema.validators import extend

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {name: _counted(name, own.get(name, check)) for name, check in stock.VALIDATORS.items()}
    counting: Any = extend(stock, keywords)  # type: ignore[no-untyped-call]
    evolve = counting.evolve

    def evolved(self: Any, **changes: Any) -> Any:
        """Drop a nested `$schema`, which would restore the keywords that do not count."""
        schema = changes.get("schema")
        if isinstance(schema, dict) and "$schema" in schema:
            changes["schema"] = {key: value for key, value in schema.items() if key != "$schema"}
        return evolve(self, **changes)

    counting.evolve = evolved
    return counting


def _counted(name: str, check: Keyword) -> Keyword:
    each_part, each_option, first = name in _EACH_PART, name in _EACH_OPTION, 8 if name in _REFERENCES else 1

    def counted(validator: Any, argument: Any, instance: Any, schema: Any) -> Iterator[Any]:
        steps = first
        if each_part and isinstance(instance, list | dict):
            steps += len(instance) // 4
        if each_option and isinstance(argument, list | dict):
            steps += len(argument) // 4
        _work.spend(steps)
        if name == "unevaluatedProperties" and _work.has_pattern_properties:
            raise NotChecked(_NOT_TOGETHER)
        for error in check(validator, argument, instance, schema) or ():
            _work.spend(5 + _size(instance, 4 * _work.left) // 4)  # the message of an error holds the value
            yield error

    return counted


# jsonschema's own `unevaluatedProperties` matches the patterns of `patternProperties` by `re`.
_NOT_TOGETHER = (
    "`unevaluatedProperties` cannot be applied in a schema with `patternProperties`: write `additionalProperties`"
)


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for key, value in instance.items():
            if _matches(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [key for key in instance if key not in named and not any(_matches(each, key) for each in patterns)]
    if isinstance(allowed, dict):
        for key in extra:
            yield from validator.descend(instance[key], allowed, path=key)
    elif not allowed and extra:
        names = ", ".join(repr(key) for key in extra[:20])
        if patterns:
            verb = "does" if len(extra) == 1 else "do"
            yield ValidationError(f"{names} {verb} not match any of the regexes: {', '.join(map(repr, patterns))}")
        else:
            verb = "was" if len(extra) == 1 else "were"
            yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not wanted or not isinstance(instance, list):
        return
    _work.spend(_size(instance, 4 * _work.left) // 4)
    seen = {json.dumps(_comparable(item), sort_keys=True) for item in instance}
    if len(seen) != len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _matches(pattern: str, text: str) -> bool:
    matcher = compiled(pattern)
    if pattern not in _work.patterns:
        _work.patterns.add(pattern)
        _work.spend(matcher.compile_work)
    _work.spend(1 + matcher.work(text))
    return matcher.found_in(text)


def _comparable(value: Json) -> Json:
    """The value with whole floats as ints: 1 and 1.0 are equal in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return {key: _comparable(item) for key, item in value.items()} if isinstance(value, dict) else value


def _size(value: Json, most: int) -> int:
    """The size of a value: its parts, and its text in units of 64 characters. Counting stops above `most`."""
    size, parts = 0, [value]
    while parts and size < most + 4:
        part = parts.pop()
        size += 1
        if isinstance(part, str):
            size += len(part) // 64
        elif isinstance(part, dict):
            size += len(part)
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return size
