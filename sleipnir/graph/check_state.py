"""Rules about declared state: the blocks `state:` and `reducers:`, and the values that must fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from sleipnir.graph import schema as json_schema
from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import KeyPath, suggestion
from sleipnir.graph.model import SINGLE, SLEIPNIR, Json, StateField
from sleipnir.graph.reducers import NAMES, is_custom
from sleipnir.graph.state import TYPES, is_model, problem

_TYPES_OF: Final[Mapping[str, Sequence[str]]] = {
    "append": ("list",),
    "extend": ("list",),
    "union": ("list",),
    "concat": ("string",),
    "sum": ("int", "float"),
    "max": ("int", "float"),
    "min": ("int", "float"),
    "merge": ("object",),
    "deep_merge": ("object",),
    "messages": ("messages", "list"),
    "by_node": ("object",),
}
"""The key types that a reducer can fold; reducers that are not listed fold every type."""

_SYNONYMS: Final[Mapping[str, str]] = {
    "str": "string", "text": "string", "integer": "int", "number": "float", "boolean": "bool", "array": "list",
    "dict": "object", "map": "object", "json": "any",
}  # fmt: skip
"""The names of the types in Python, JSON Schema and other languages."""


def every_type_exists(case: Case) -> None:
    hint = "For a model of the agent, write its file and name: `models.py:Order`."
    for key, declared in case.graph.state.items():
        for name, given in (("type", declared.type), ("items", declared.items)):
            if given is not None and given not in TYPES and not is_model(given):
                message = f"state key '{key}' is of an unknown type '{given}'"
                known = f'Write "{_SYNONYMS[given]}".' if given in _SYNONYMS else suggestion(given, TYPES, "types")
                case.findings.error(_place(case, key, name), message, known or hint)
        if declared.items is not None and declared.type != "list":
            message = f"'items' has no effect on state key '{key}' of type {declared.type}"
            case.findings.warning(("state", key, "items"), message, "Only a list has items.")


def every_reducer_exists(case: Case) -> None:
    for key, reducer, path in _reducers(case):
        if reducer == SINGLE and case.is_loki:
            message = f"state key '{key}' has the reducer '{SINGLE}', which needs version {SLEIPNIR}"
            case.findings.error(path, message, f"Write `version: {SLEIPNIR}`.")
        if reducer not in NAMES and not is_custom(reducer):
            hint = suggestion(reducer, NAMES, "reducers")
            case.findings.error(path, f"state key '{key}' has an unknown reducer '{reducer}'", hint)


def every_key_has_one_reducer(case: Case) -> None:
    for key, reducer in case.graph.reducers.items():
        if key in case.graph.state and case.graph.reducer_of(key) not in (reducer, None):
            other = case.graph.reducer_of(key)
            message = f"state key '{key}' has two reducers: '{reducer}' here, and '{other}' under `state:`"
            case.findings.error(("reducers", key), message, "Keep the one under `state:`.")


def every_reducer_fits_its_type(case: Case) -> None:
    for key in case.graph.state:
        reducer, type_ = case.graph.reducer_of(key), case.graph.state[key].type
        types = _TYPES_OF.get(reducer or "", ())
        if types and type_ in TYPES and type_ not in (*types, "any"):
            path = ("state", key, "reducer") if case.findings.has(("state", key, "reducer")) else ("state", key)
            message = f"reducer '{reducer}' cannot fold state key '{key}' of type {type_}"
            case.findings.error(path, message, f"It folds keys of type {' or '.join(types)}.")


def every_state_schema_is_a_schema(case: Case) -> None:
    for key, declared in case.graph.state.items():
        if declared.schema is not None:
            check_schema(case, declared.schema, ("state", key, "schema"), f"the schema of state key '{key}'")


def every_first_value_has_its_type(case: Case) -> None:
    """Checks defaults, and the values of declared keys in `initial_state`."""
    for key, declared in case.graph.state.items():
        if declared.schema is not None and json_schema.problem(declared.schema) is not None:
            continue
        values: list[tuple[str, Json, KeyPath]] = []
        if declared.default is not None:
            values.append(("the default of state key", declared.default, ("state", key, "default")))
        if key in case.graph.initial_state:
            values.append(("initial_state:", case.graph.initial_state[key], ("initial_state", key)))
        for name, value, path in values:
            mismatch = problem(declared, value)
            if mismatch is not None:
                case.findings.error(path, f"{name} '{key}' {mismatch}", f"It is declared as {_described(declared)}.")


def no_required_key_has_a_first_value(case: Case) -> None:
    for key, declared in case.graph.state.items():
        if declared.required and (declared.default is not None or key in case.graph.initial_state):
            where = "a default" if declared.default is not None else "a value in `initial_state`"
            message = f"state key '{key}' is required although it has {where}"
            case.findings.warning(("state", key, "required"), message, "Remove one of the two.")


RULES: Sequence[Rule] = (
    every_type_exists,
    every_reducer_exists,
    every_key_has_one_reducer,
    every_reducer_fits_its_type,
    every_state_schema_is_a_schema,
    every_first_value_has_its_type,
    no_required_key_has_a_first_value,
)


def calls(case: Case) -> Iterator[tuple[KeyPath, Literal["Reducer", "Model"], str]]:
    """The agent's own reducers and models: the path of each, its role in messages, and `file.py:name`."""
    for _, reducer, path in _reducers(case):
        if is_custom(reducer):
            yield path, "Reducer", reducer
    for key, declared in case.graph.state.items():
        for name, given in (("type", declared.type), ("items", declared.items)):
            if given is not None and is_model(given):
                yield _place(case, key, name), "Model", given


def check_schema(case: Case, schema: dict[str, Json], path: KeyPath, called: str) -> None:
    """Report why `schema` is not a JSON Schema, at the place inside it."""
    defect = json_schema.problem(schema)
    if defect is not None:
        what = "cannot be applied" if defect.is_refused else "is not a valid JSON Schema"
        case.findings.error((*path, *defect.place), f"{called} {what}: {defect.message}")


def _reducers(case: Case) -> Iterator[tuple[str, str, KeyPath]]:
    """Every reducer in the file: its key, its name, its path."""
    for key, reducer in case.graph.reducers.items():
        yield key, reducer, ("reducers", key)
    for key, declared in case.graph.state.items():
        if declared.reducer is not None:
            yield key, declared.reducer, ("state", key, "reducer")


def _place(case: Case, key: str, name: str) -> KeyPath:
    """The path of a field of a declared key; the short form has only the type."""
    return ("state", key, name) if case.findings.has(("state", key, name)) else ("state", key)


def _described(declared: StateField) -> str:
    items = f" of {declared.items}" if declared.type == "list" and declared.items else ""
    return f"{declared.type}{items}{', with a schema' if declared.schema else ''}"
