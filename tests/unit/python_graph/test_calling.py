"""How functions of a graph are called, what they may return, and what routers may choose."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

from sleipnir import (
    END,
    START,
    Command,
    InvalidUpdateError,
    Runtime,
    Send,
    StateGraph,
    get_config,
    get_runtime,
    get_stream_writer,
)
from sleipnir.python_graph import calling
from sleipnir.python_graph.schema import keys_of

pytestmark = pytest.mark.filterwarnings("ignore:Node .* is unreachable")  # some graphs here have parts only


class State(TypedDict):
    n: int
    text: str
    log: Annotated[list[Any], operator.add]


@dataclass
class Record:
    n: int = 1
    text: str = "default"


class Model(BaseModel):
    n: int = 1
    text: str | None = None


KEYS = keys_of(State)


def ran(node: Any, input: Any = None, config: Any = None, **options: Any) -> Any:
    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    return graph.invoke({} if input is None else input, config, **options)


@pytest.mark.parametrize(
    ("returned", "writes", "updates"),
    [
        ({"n": 1}, [("n", 1)], [{"n": 1}]),
        (None, [], [None]),
        ({}, [], [None]),
        (Record(n=2), [("n", 2), ("text", "default")], [{"n": 2, "text": "default"}]),
        (Model(n=1), [("n", 1)], [{"n": 1}]),
        (Model(text=None), [("n", 1), ("text", None)], [{"n": 1, "text": None}]),
        (Command(update={"n": 1}), [("n", 1)], [{"n": 1}]),
        (Command(update=Record(3)), [("n", 3), ("text", "default")], [{"n": 3, "text": "default"}]),
        (Command(update=[("log", [1]), ("log", [2])]), [("log", [1]), ("log", [2])], [{"log": [2]}]),
        ([Command(update={"n": 1}), {"text": "x"}], [("n", 1), ("text", "x")], [{"n": 1}, {"text": "x"}]),
        ((Command(), None), [], [None, None]),
    ],
)
def test_a_return_value_is_read_as_writes_and_as_updates(returned: Any, writes: Any, updates: Any) -> None:
    result = calling.read(returned, KEYS)
    assert (result.writes, result.updates, result.targets) == (writes, updates, [])


@pytest.mark.parametrize("returned", [7, "text", [{"n": 1}], [Send("a", {})], [1], (1, 2), Command(update=7), object()])
def test_what_is_no_update_is_refused(returned: Any) -> None:
    with pytest.raises(InvalidUpdateError, match="Expected dict, got"):
        ran(lambda state: returned)


def test_targets_of_commands_come_in_order() -> None:
    send = Send("c", 1)
    result = calling.read([Command(goto="a"), Command(goto=["b", send]), Command(goto=()), Command(goto=send)], KEYS)
    assert result.targets == ["a", "b", send, send]


def test_a_command_to_the_graph_above_is_no_write() -> None:
    command = Command(update={"n": 1}, goto="x", graph=Command.PARENT)
    result = calling.read(command, KEYS)
    assert (result.writes, result.targets, result.to_parent) == ([], [], [command])


def test_parameters_are_filled_by_their_names() -> None:
    seen: dict[str, Any] = {}

    def node(state: State, config: Any, runtime: Any, writer: Any, store: Any, previous: Any) -> None:
        seen.update(locals())

    ran(node, {"n": 1}, {"configurable": {"who": "ann"}, "tags": ["t"]})
    assert seen["state"] == {"n": 1, "log": []}
    assert (seen["config"]["configurable"]["who"], seen["config"]["tags"]) == ("ann", ["t"])
    assert isinstance(seen["runtime"], Runtime)
    assert seen["writer"] is seen["runtime"].stream_writer
    assert (seen["store"], seen["previous"]) == (None, None)


def test_any_other_parameter_and_none_at_all_are_the_program_s_own_mistake() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'other'"):
        ran(lambda state, other: None)
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        ran(lambda: None)


class Callable_:
    """A callable object, and methods."""

    def __call__(self, state: State) -> dict[str, Any]:
        return {"text": "called"}

    def method(self, state: State, config: Any) -> dict[str, Any]:
        return {"text": str(config["tags"])}

    async def later(self, state: State) -> dict[str, Any]:
        return {"text": "later"}


def test_objects_methods_partials_and_async_functions_are_nodes() -> None:
    one = Callable_()

    def two(prefix: str, state: State) -> dict[str, Any]:
        return {"text": prefix}

    nodes = (one, one.method, one.later, partial(two, "partial"))
    assert [ran(node)["text"] for node in nodes] == ["called", "None", "later", "partial"]
    assert StateGraph(State).add_node(one).add_edge(START, "Callable_").compile().invoke({})["text"] == "called"


def test_a_node_knows_its_run() -> None:
    seen: list[Any] = []

    def node(state: State) -> None:
        get_stream_writer()("ignored")
        seen.extend((get_config()["configurable"]["thread_id"], get_runtime().execution_info))

    ran(node, None, {"configurable": {"thread_id": "7"}})
    assert seen[0] == "7"
    assert (seen[1].thread_id, seen[1].node_attempt) == ("7", 1)
    for ask in (get_config, get_runtime, get_stream_writer):
        with pytest.raises(RuntimeError, match="Called get_config outside of a runnable context"):
            ask()


def routed(path: Any, *path_map: Any) -> Any:
    graph = StateGraph(State).add_node("first", lambda state: {"log": ["first"]})
    for name in ("one", "two"):
        graph.add_node(name, lambda state, name=name: {"log": [name]})  # type: ignore[misc]
    graph.add_edge(START, "first").add_conditional_edges("first", path, *path_map)
    return graph.compile().invoke({"n": 5})["log"][1:]


@pytest.mark.parametrize(
    ("chosen", "path_map", "log"),
    [
        ("one", None, ["one"]), (END, None, []), (["one", "two"], None, ["one", "two"]), ([], None, []),
        (("two",), None, ["two"]), ([Send("one", {"n": 1}), "two"], None, ["two", "one"]),
        ("a", {"a": "one"}, ["one"]), (True, {True: "one", False: END}, ["one"]),
        (False, {True: "one", False: END}, []),
        (3, {3: "two"}, ["two"]), (["a", "b"], {"a": "one", "b": "two"}, ["one", "two"]), ("one", ["one"], ["one"]),
        ([Send("two", {}), "a"], {"a": "one"}, ["one", "two"]),
    ],
)  # fmt: skip
def test_a_router_chooses_by_name_label_list_or_send(chosen: Any, path_map: Any, log: list[str]) -> None:
    assert routed(lambda state: chosen, *([path_map] if path_map is not None else [])) == log


@pytest.mark.parametrize(
    ("chosen", "path_map", "error", "text"),
    [
        (None, None, ValueError, "Branch did not return a valid destination"),
        (["one", None], None, ValueError, "Branch did not return a valid destination"),
        ("other", {"a": "one"}, KeyError, "other"),
        (Send(END, {}), None, InvalidUpdateError, "Cannot send a packet to the END node"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_an_error(chosen: Any, path_map: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        routed(lambda state: chosen, *([path_map] if path_map is not None else []))


def test_a_choice_of_an_unknown_node_fails_the_run() -> None:
    with pytest.raises(Exception, match="Node 'nowhere' not found in graph"):
        routed(lambda state: "nowhere")
    with pytest.raises(Exception, match="Node 'nowhere' not found in graph"):
        ran(lambda state: Command(goto="nowhere"))


def test_a_router_sees_the_writes_of_its_own_node_and_not_those_of_siblings() -> None:
    seen: list[Any] = []
    graph = StateGraph(State).add_node("a", lambda state: {"log": ["a"]}).add_node("b", lambda state: {"log": ["b"]})
    graph.add_edge(START, "a").add_edge(START, "b")
    graph.add_conditional_edges("a", lambda state: seen.append(state["log"]) or END)  # type: ignore[func-returns-value]
    graph.compile().invoke({"log": [0]})
    assert seen == [[0, "a"]]


def test_a_goto_adds_to_the_edges_and_end_in_it_stops_only_the_branch() -> None:
    graph = StateGraph(State).add_node("a", lambda state: Command(goto=["b", END], update={"log": ["a"]}))
    graph.add_node("b", lambda state: {"log": ["b"]}).add_node("c", lambda state: {"log": ["c"]})
    graph.add_edge(START, "a").add_edge("a", "c")
    assert graph.compile().invoke({})["log"] == ["a", "b", "c"]


def test_the_argument_of_a_send_is_the_whole_input_and_may_be_anything() -> None:
    seen: list[Any] = []
    graph = StateGraph(State).add_node("n", lambda given: seen.append(given))
    graph.add_conditional_edges(START, lambda state: [Send("n", given) for given in (1, "x", [2], {"other": 3}, None)])
    graph.compile().invoke({"n": 9})
    assert sorted(map(repr, seen)) == sorted(map(repr, [1, "x", [2], {"other": 3}, None]))


def test_a_node_that_is_triggered_twice_in_a_step_runs_once_and_each_send_once_more() -> None:
    graph = StateGraph(State).add_node("a", lambda state: Command(goto=["c", Send("c", {})]))
    graph.add_node("c", lambda state: {"log": ["c"]}).add_edge(START, "a").add_edge("a", "c")
    assert graph.compile().invoke({})["log"] == ["c", "c"]


@pytest.mark.parametrize("given", [7, "text", [], [{"n": 1}], Command(update={"n": 1})])
def test_an_input_that_is_no_update_is_refused(given: Any) -> None:
    with pytest.raises(InvalidUpdateError, match="Expected dict, got"):
        ran(lambda state: None, given)
