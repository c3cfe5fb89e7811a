"""The rules about declared state: types, reducers, first values, and the agent's own code for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sleipnir.graph.reducers import BUILT_IN
from sleipnir.graph.state import TYPES
from tests.unit.graph.test_graph_check import hints, in_folder
from tests.unit.graph.writing import checked, errors

END = "a: {type: end}"


def state(text: str, *, more: str = "") -> list[str]:
    """What is found in a `state:` block, as `line level message`."""
    return [f"{p.line} {p.level} {p.message}" for p in checked(END, top=f"state: {{{text}}}\n{more}")]


@pytest.mark.conformance("ST-05")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k: inte", "state key 'k' is of an unknown type 'inte'"),
        ("k: {type: list, items: strnig}", "state key 'k' is of an unknown type 'strnig'"),
        ("k: {reducer: apend}", "state key 'k' has an unknown reducer 'apend'"),
        ("k: {type: int, default: x}", "the default of state key 'k' must be int, not string 'x'"),
        (
            "k: {type: list, items: int, default: [1, x]}",
            "the default of state key 'k' [1] must be int, not string 'x'",
        ),
        ("k: {type: string, reducer: sum}", "reducer 'sum' cannot fold state key 'k' of type string"),
        ("k: {type: messages, reducer: concat}", "reducer 'concat' cannot fold state key 'k' of type messages"),
        (
            "k: {type: object, schema: {type: 5}}",
            "the schema of state key 'k' is not a valid JSON Schema: 5 is not valid under any of the given schemas",
        ),
    ],
)
def test_a_wrong_declaration_is_an_error_that_names_its_key(text: str, message: str) -> None:
    assert state(text) == [f"3 error {message}"]


@pytest.mark.conformance("ST-05")
def test_many_concurrent_checks_have_the_same_result() -> None:
    expected = state("k: {type: int, default: x}, m: inte")
    with ThreadPoolExecutor(8) as pool:
        assert all(
            found == expected for found in pool.map(lambda _: state("k: {type: int, default: x}, m: inte"), range(50))
        )


def test_every_type_and_reducer_there_is_may_be_named() -> None:
    assert state(", ".join(f"k{n}: {name}" for n, name in enumerate(TYPES))) == []
    assert state(", ".join(f"k{n}: {{reducer: {name}}}" for n, name in enumerate(BUILT_IN))) == []
    assert checked(END, top=f"reducers: {{{', '.join(f'k{n}: {name}' for n, name in enumerate(BUILT_IN))}}}") == []


def test_a_misspelt_name_is_answered_with_the_closest() -> None:
    found = checked(END, top="state: {k: strin, l: {reducer: mrge}}\nreducers: {m: concta}")
    assert hints(found) == ['Did you mean "string"?', 'Did you mean "concat"?', 'Did you mean "merge"?']


@pytest.mark.parametrize(
    "text",
    [
        "k: {type: int, reducer: sum, default: 0}",
        "k: {type: float, default: 1}",
        "k: {type: list, items: string, reducer: append, default: [x]}",
        "k: {type: object, reducer: deep_merge, default: {a: {b: 1}}}",
        "k: {type: datetime, default: '2024-01-01T00:00:00+00:00'}",
        "k: {type: bytes, default: aGk=}",
        "k: {type: messages, default: [{role: user, content: hi}]}",
        "k: {default: [1, x]}",
    ],
)
def test_a_right_declaration_is_let_through(text: str) -> None:
    assert state(text) == []


def test_what_a_run_begins_with_is_held_against_the_declaration() -> None:
    more = "initial_state: {k: x, m: 5, free: x}"
    assert state("k: int, m: {type: int, schema: {maximum: 3}}", more=more) == [
        "4 error initial_state: 'k' must be int, not string 'x'",
        "4 error initial_state: 'm' does not match its schema: $: 5 is greater than the maximum of 3",
    ]


def test_a_required_key_that_has_a_value_is_a_warning() -> None:
    assert state("k: {type: int, required: true, default: 1}, m: {required: true}", more="initial_state: {m: 1}") == [
        "3 warning state key 'k' is required although it has a default",
        "3 warning state key 'm' is required although it has a value in `initial_state`",
    ]


def test_a_key_has_one_reducer() -> None:
    more = "reducers: {k: sum, l: sum, m: append, n: max}"
    assert state("k: {type: int, reducer: max}, l: {type: int, reducer: sum}, m: messages, n: string", more=more) == [
        "4 error state key 'k' has two reducers: 'sum' here, and 'max' under `state:`",
        "4 error state key 'm' has two reducers: 'append' here, and 'messages' under `state:`",
        "3 error reducer 'max' cannot fold state key 'n' of type string",
    ]


def test_only_a_list_has_items() -> None:
    assert state("k: {type: int, items: int}") == ["3 warning 'items' has no effect on state key 'k' of type int"]


def test_own_reducers_and_models_are_looked_for_in_their_files(tmp_path: Path) -> None:
    in_folder(tmp_path, r_dot_py="def fold(current, incoming): ...\nclass Order: ...\n")
    top = 'state: {a: {reducer: "r.py:fold"}, b: {reducer: "r.py:flod"}, c: {reducer: "x.py:fold"}, d: "r.py:Order"'
    top += ', e: {type: list, items: "y.py:Order"}, f: "../r.py:Order"}\nreducers: {g: "z.py:f"}'
    found = checked(END, top=top, folder=tmp_path)
    assert errors(found) == [
        f"Reducer file not found: '{tmp_path}/z.py'",
        f"Reducer file not found: '{tmp_path}/x.py'",
        f"Model file not found: '{tmp_path}/y.py'",
        "'r.py' does not define 'flod'",
        "Model path '../r.py' leaves the agent's folder",
    ]
    assert {problem.line for problem in found} == {3, 4}


@pytest.mark.parametrize(
    ("given", "known"), [("integer", "int"), ("str", "string"), ("dict", "object"), ("boolean", "bool")]
)
def test_a_type_with_another_name_in_other_languages_is_suggested(given: str, known: str) -> None:
    [found] = checked(END, top=f"state: {{k: {given}}}")
    assert found.hint == f'Write "{known}".'
