"""Which error a failed run raises, in this process and as `Run.result()` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pydantic_core
import pytest

from sleipnir import END, START, GraphRecursionError, InvalidUpdateError, RetryPolicy, StateGraph
from sleipnir.errors import RunFailure
from sleipnir.python_graph.errors import run_failure
from sleipnir.runs.visits import Failure


class State(TypedDict, total=False):
    n: int
    seen: str


def both(a: Any, b: Any) -> StateGraph:
    """A graph with two nodes in its first super-step. A failure of `a` is tried again a minute later."""
    later = RetryPolicy(initial_interval=60, jitter=False, retry_on=OSError)
    graph = StateGraph(State).add_node("a", a, retry_policy=later).add_node("b", b)
    return graph.add_edge(START, "a").add_edge(START, "b")


def raises(error: Exception) -> Callable[[State], dict[str, Any]]:
    def node(state: State) -> dict[str, Any]:
        raise error

    return node


def test_contradicting_writes_raise_their_own_error() -> None:
    graph = both(lambda state: {"n": 1}, lambda state: {"n": 2}).compile()
    with pytest.raises(InvalidUpdateError, match="At key 'n': Can receive only one value per step") as raised:
        graph.invoke({})
    assert isinstance(raised.value, RunFailure)


def test_a_limit_of_the_graph_raises_the_error_of_a_limit() -> None:
    graph = StateGraph(State).add_node("up", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "up").add_conditional_edges("up", lambda state: "up", ["up", END])
    with pytest.raises(GraphRecursionError, match="is not done after 3 super-steps"):
        graph.compile(max_steps=3).invoke({"n": 0})


def test_the_error_that_is_raised_is_the_one_that_the_run_failed_for() -> None:
    error = ValueError("b")
    with pytest.raises(ValueError) as raised:
        both(raises(OSError("is tried again")), raises(error)).compile(engine="dag").invoke({})
    assert raised.value is error


def test_the_text_of_a_failure_does_not_choose_its_error() -> None:
    error = ValueError("Can receive only one value per step")
    with pytest.raises(ValueError) as raised:
        both(lambda state: None, raises(error)).compile().invoke({})
    assert raised.value is error


class Needy(Exception):
    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"{code} at {place}")


@pytest.mark.parametrize(
    "kind",
    [KeyError, FileNotFoundError, UnicodeDecodeError, SyntaxError, InvalidUpdateError, Needy],
    ids=lambda kind: kind.__name__,
)
def test_a_failure_is_also_an_error_of_the_class_of_its_cause(kind: type[Exception]) -> None:
    error = run_failure("run r1 failed: 'n'", Failure("visit", 3, f"{kind.__module__}:{kind.__qualname__}"))
    assert isinstance(error, RunFailure) and isinstance(error, kind)
    assert (str(error), type(error).__name__, error.args) == ("run r1 failed: 'n'", kind.__name__, (str(error),))


@pytest.mark.parametrize(
    "failure",
    [
        None,
        Failure("visit", 3),
        Failure("of a newer release"),
        Failure("visit", 3, "no.such_module:Error"),
        Failure("visit", 3, "builtins:NoSuchError"),
        Failure("visit", 3, "builtins:SystemExit"),
        Failure("visit", 3, "builtins:len"),
        Failure("visit", 3, "builtins:ExceptionGroup"),
        Failure("visit", 3, f"{pydantic_core.ValidationError.__module__}:ValidationError"),
        Failure("visit", 3, "nonsense"),
    ],
    ids=str,
)
def test_a_failure_without_a_usable_class_is_a_plain_one(failure: Failure | None) -> None:
    error = run_failure("it failed", failure)
    assert (type(error), str(error)) == (RunFailure, "it failed")
