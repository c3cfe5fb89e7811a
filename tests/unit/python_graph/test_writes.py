"""What the writes of nodes make of the state: their order, several of one node, overwriting, unknown keys, copies."""

from __future__ import annotations

import operator
import warnings
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, Command, InvalidUpdateError, MessagesState, Overwrite, RemoveMessage, Send, StateGraph
from sleipnir.graph.reducers import ReducerError, fold_all

pytestmark = pytest.mark.filterwarnings("ignore:Node .* is unreachable")  # some graphs here have parts only


def chain(old: list[Any], new: Any) -> list[Any]:
    """Not associative: two writes must not be combined with each other first."""
    return [*old, new]


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]
    own: Annotated[list[Any], chain]
    last: str


def parallel(**nodes: Any) -> Any:
    """A graph whose nodes all run in the first super-step."""
    graph = StateGraph(Log)
    for name, node in nodes.items():
        graph.add_node(name, node).add_edge(START, name)
    return graph.compile()


def test_writes_of_a_super_step_fold_by_the_names_of_nodes_and_those_of_sends_after_them() -> None:
    graph = StateGraph(Log)
    graph.add_node("zed", lambda state: {"log": ["zed"]})
    graph.add_node("amy", lambda state: {"log": ["amy"]})
    graph.add_node("Bob", lambda state: {"log": ["Bob"]})
    graph.add_node("again", lambda state: {"log": [f"again {state['n']}"]})
    graph.add_conditional_edges(
        START, lambda state: [Send("again", {"n": 2}), "zed", Send("again", {"n": 1}), "amy", "Bob"]
    )
    assert graph.compile().invoke({"log": []})["log"] == ["Bob", "amy", "zed", "again 2", "again 1"]


def test_several_writes_of_one_node_go_through_the_reducer_one_by_one() -> None:
    def several(state: Log) -> list[Any]:
        return [{"log": [1], "own": "a"}, Command(update={"log": [2], "own": "b"})]

    assert parallel(n=several).invoke({"log": [0]}) == {"log": [0, 1, 2], "own": ["a", "b"]}


def test_several_writes_of_one_node_to_a_key_without_a_reducer_are_an_error() -> None:
    def several(state: Log) -> list[Any]:
        return [Command(update={"last": "a"}), {"last": "b"}]

    with pytest.raises(InvalidUpdateError, match="At key 'last': Can receive only one value per step"):
        parallel(n=several).invoke({})


@pytest.mark.parametrize("key", ["log", "own"])
def test_overwrite_replaces_the_value_past_its_reducer_and_other_writes_of_the_step(key: str) -> None:
    graph = parallel(a=lambda state: {key: [1]}, b=lambda state: {key: Overwrite([2])}, c=lambda state: {key: [3]})
    assert graph.invoke({"log": [0]})[key] == [2]


@pytest.mark.parametrize("key", ["log", "own"])
def test_two_overwrites_in_one_super_step_are_an_error(key: str) -> None:
    graph = parallel(a=lambda state: {key: Overwrite([1])}, b=lambda state: {key: Overwrite([2])})
    with pytest.raises(InvalidUpdateError, match="Can receive only one Overwrite value per super-step"):
        graph.invoke({})


def test_overwrite_of_a_key_without_a_reducer_is_a_plain_write() -> None:
    assert parallel(a=lambda state: {"last": Overwrite("x")}).invoke({})["last"] == "x"


def test_an_overwritten_value_is_what_the_router_sees() -> None:
    seen: list[Any] = []
    graph = StateGraph(Log).add_node("a", lambda state: {"own": Overwrite(["new"])}).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: seen.append(state["own"]) or END)  # type: ignore[func-returns-value]
    graph.compile().invoke({"own": "old"})
    assert seen == [["new"]]


def test_the_language_folds_an_overwriting_write_by_any_reducer() -> None:
    assert fold_all("append", [1], [[2], {"__overwrite__": 3}, [4]], strict=False) == 3
    assert fold_all("append", [1], [{"__overwrite__": 3}], strict=True) == [1, {"__overwrite__": 3}]
    with pytest.raises(ReducerError, match="only one Overwrite"):
        fold_all("sum", 1, [{"__overwrite__": 3}, {"__overwrite__": 4}], strict=False)


def test_an_unknown_key_is_dropped_with_a_warning_that_names_a_near_one() -> None:
    with pytest.warns(UserWarning, match=r"node 'n' writes 'lats', which is no key of the state.*mean \"last\"\?"):
        assert parallel(n=lambda state: {"lats": "x"}).invoke({"log": [1]}) == {"log": [1], "own": []}


def test_an_unknown_key_of_the_input_is_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the input writes 'nope', which is no key of the state"):
        parallel(n=lambda state: None).invoke({"nope": 1})


def test_keys_that_stay_in_a_subgraph_give_no_warning() -> None:
    class Inner(TypedDict):
        last: str
        secret: str

    inner = StateGraph(Inner).add_node("w", lambda state: {"secret": "s", "last": "x"}).add_edge(START, "w").compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parallel(inner=inner).invoke({})["last"] == "x"


def test_a_node_that_changes_its_state_in_place_changes_nothing_stored() -> None:
    seen: list[Any] = []

    def changes(state: Log) -> dict[str, Any]:
        state["log"].append("in place")
        return {"last": "done"}

    def router(state: Log) -> str:
        seen.append(state["log"])
        return END

    graph = StateGraph(Log).add_node("n", changes).add_edge(START, "n").add_conditional_edges("n", router).compile()
    assert graph.invoke({"log": ["kept"]})["log"] == ["kept"]
    assert seen == [["kept"]]


class Refused(Exception):
    """A program's own exception."""


def refuse(old: Any, new: Any) -> Any:
    raise Refused(f"no {new}")


class Strict(TypedDict):
    value: Annotated[Any, refuse]
    names: Annotated[list[str], operator.add]


def test_the_exception_of_a_reducer_is_raised_as_it_is() -> None:
    graph = StateGraph(Strict).add_node("n", lambda state: {"value": "more"}).add_edge(START, "n").compile()
    with pytest.raises(Refused, match="no more") as raised:
        graph.invoke({"value": "first"})
    assert "During task with name 'n'" in raised.value.__notes__[0]


def test_a_value_that_the_reducer_of_the_program_would_refuse_is_refused() -> None:
    graph = StateGraph(Strict).add_node("n", lambda state: {"names": "text"}).add_edge(START, "n").compile()
    with pytest.raises(TypeError, match="can only concatenate list"):
        graph.invoke({"names": []})


def test_the_removal_of_an_unknown_message_is_a_value_error() -> None:
    graph = StateGraph(MessagesState).add_node("n", lambda state: {"messages": [RemoveMessage(id="x")]})
    with pytest.raises(ValueError, match="doesn't exist \\('x'\\)"):
        graph.add_edge(START, "n").compile().invoke({"messages": ["hi"]})


def test_a_join_that_lacks_sources_at_the_end_warns_and_names_them() -> None:
    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, lambda state, name=name: {"log": [name]})  # type: ignore[misc]
    graph.add_conditional_edges(START, lambda state: "a", ["a", "b"]).add_edge(["a", "b"], "c")
    with pytest.warns(UserWarning, match="the join before node 'c' can never fire: 'a' arrived, and 'b' did not"):
        assert graph.compile().invoke({})["log"] == ["a"]


def joining(*edges: tuple[Any, str]) -> list[Any]:
    """What ran, in a graph of the nodes a to e with these edges."""
    graph = StateGraph(Log)
    for name in "abcde":
        graph.add_node(name, lambda state, name=name: {"log": [name]})  # type: ignore[misc]
    for source, target in edges:
        graph.add_edge(source, target)
    log: list[Any] = graph.compile().invoke({})["log"]
    return log


def test_two_joins_that_fire_in_one_super_step_start_their_node_once() -> None:
    parts = [(START, "a"), (START, "b"), (START, "c")]
    assert joining(*parts, (["a", "b"], "d"), (["b", "c"], "d")) == ["a", "b", "c", "d"]


def test_an_edge_and_a_join_that_lead_to_a_node_in_one_super_step_start_it_once() -> None:
    assert joining((START, "a"), (START, "b"), (["a", "b"], "d"), ("a", "d")) == ["a", "b", "d"]


def test_an_edge_into_a_node_that_also_waits_for_others_starts_it_by_itself() -> None:
    edges = [(START, "a"), (START, "b"), ("b", "c")]
    assert joining(*edges, (["a", "c"], "d"), ("a", "d")) == ["a", "b", "c", "d", "d"]
    assert joining(*edges, (["a", "b"], "d"), ("c", "d")) == ["a", "b", "c", "d", "d"]
