"""Forms of state, functions and edges of graphs in Python: a program runs each on the fleet and in process, and the
final states are equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.processes import Stack

PROGRAM = '''
import json
import operator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel

from sleipnir import END, START, Client, Command, MessagesState, RetryPolicy, Runtime, Send, StateGraph, get_config
from sleipnir.python_graph.runtime import merged_config


class Order(BaseModel):
    amount: int = 0
    names: Annotated[list[str], operator.add] = []


def count(order: Order):
    assert isinstance(order, Order) and isinstance(order.amount, int)
    return {"amount": order.amount + 1, "names": ["count"]}


def whole(order: Order) -> Order:
    return Order(amount=order.amount * 2, names=["whole"])


pydantic = StateGraph(Order).add_sequence([count, whole]).add_edge(START, "count"), {"amount": "4"}


@dataclass
class Trip:
    begin: datetime
    days: int = 1
    stops: Annotated[list[str], operator.add] = field(default_factory=list)
    end: datetime | None = None


def travel(trip: Trip):
    return {"end": trip.begin + timedelta(days=trip.days), "stops": ["travelled"]}


dataclasses = StateGraph(Trip).add_node(travel).add_edge(START, "travel"), {"begin": datetime(2026, 1, 1)}


class Public(TypedDict, total=False):
    question: str
    answer: str


class Private(TypedDict, total=False):
    secret: str


def hide(state: Public):
    return {"secret": state["question"][::-1]}


def tell(state: Private):
    return {"answer": f"{sorted(state)} {state['secret']}"}


private = StateGraph(Public).add_sequence([hide, tell]).add_edge(START, "hide"), {"question": "abc"}


class Flaky(Exception):
    pass


class Lists(TypedDict, total=False):
    n: int
    log: Annotated[list[Any], operator.add]


def fails_twice(state: Lists, runtime: Runtime):
    if runtime.execution_info.node_attempt < 3:
        raise Flaky("again")
    return {"log": ["third"]}


def is_flaky(error):
    return isinstance(error, Flaky)


QUICK = dict(initial_interval=0.01, max_attempts=3, jitter=False)
retries = (
    StateGraph(Lists)
    .add_node("by_class", fails_twice, retry_policy=RetryPolicy(retry_on=Flaky, **QUICK))
    .add_node("by_function", fails_twice, retry_policy=RetryPolicy(retry_on=is_flaky, **QUICK))
    .add_edge(START, "by_class").add_edge("by_class", "by_function"),
    {},
)


def is_small(state: Lists) -> bool:
    return state["n"] < 3


def grow(state: Lists):
    return {"n": state["n"] + 1, "log": [state["n"]]}


loop = (
    StateGraph(Lists).add_node(grow)
    .add_conditional_edges(START, is_small, {True: "grow", False: END})
    .add_conditional_edges("grow", is_small, {True: "grow", False: END}),
    {"n": 0, "log": ["begin"]},
)


class Steps:
    """Functions of a class are found by its name."""

    @staticmethod
    async def left(state: Lists):
        return {"log": ["left"]}

    @classmethod
    def right(cls, state: Lists, config: dict):
        assert get_config()["configurable"]["thread_id"] is None
        return {"log": ["right"]}


def both(state: Lists):
    return [Command(update={"log": ["both"]}), Command(goto=[Send("note", {"n": n}) for n in (1, 2)])]


def note(sent):
    return {"log": [sent]}


joins = (
    StateGraph(Lists)
    .add_node("left", Steps.left).add_node("right", Steps.right).add_node(both).add_node(note)
    .add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "both"),
    {},
)

inner = loop[0].compile()


def calls_a_graph(state: Lists):
    return {"log": inner.invoke({"n": state["n"]})["log"]}


calls = StateGraph(Lists).add_node(calls_a_graph).add_edge(START, "calls_a_graph"), {"n": 1}


def reply(state: MessagesState):
    return {"messages": [{"role": "assistant", "content": state["messages"][-1].content.upper(), "id": "2"}]}


messages = (
    StateGraph(MessagesState).add_node(reply).add_edge(START, "reply"),
    {"messages": [{"role": "user", "content": "hello", "id": "1"}]},
)

@dataclass
class Who:
    name: str
    born: datetime


def greet(state: Lists, runtime: Runtime[Who]):
    assert isinstance(runtime.context, Who)
    return {"log": [f"{runtime.context.name} {runtime.context.born:%Y}"]}


def is_known(state: Lists, runtime: Runtime[Who]) -> bool:
    return runtime.context.name == "Ada"


context = (
    StateGraph(Lists, context_schema=Who).add_node(greet).add_edge(START, "greet")
    .add_conditional_edges("greet", is_known, {True: END, False: "greet"}),
    {},
)


def told(state: Lists, config: dict):
    own = [config["configurable"]["who"], config["metadata"]["of"], config["tags"], config["recursion_limit"]]
    return {"log": [*own, get_config()["configurable"]["bound"]]}


def is_told(state: Lists, config: dict) -> bool:
    return config["configurable"]["who"] == "Ada"


config = (
    StateGraph(Lists).add_node(told).add_edge(START, "told")
    .add_conditional_edges("told", is_told, {True: END, False: "told"}),
    {},
)

if __name__ == "__main__":
    configs = {
        "config": {"configurable": {"who": "Ada"}, "metadata": {"of": 1}, "tags": ["a"], "recursion_limit": 5},
        "calls": {"max_concurrency": 1},
    }
    contexts = {"context": Who("Ada", datetime(1815, 12, 10))}
    forms = {
        "pydantic": pydantic, "dataclasses": dataclasses, "private": private, "retries": retries, "loop": loop,
        "joins": joins, "calls": calls, "messages": messages, "context": context, "config": config,
    }
    graphs = {name: builder.compile(name=name) for name, (builder, _) in forms.items()}
    graphs["config"] = graphs["config"].with_config(configurable={"bound": "b", "who": "Bob"})
    states = {}
    with Client() as client:
        runs = {
            name: client.submit(graph, forms[name][1], context=contexts.get(name), config=configs.get(name))
            for name, graph in graphs.items()
        }
        for name, graph in graphs.items():
            here = graph.invoke(
                forms[name][1], merged_config({"configurable": {"thread_id": None}}, configs.get(name, {})),
                context=contexts.get(name),
            )
            states[name] = [runs[name].result(60), graph.objects.encoded(here)]
    print(json.dumps(states))
'''

EXPECTED = {
    "pydantic": {"amount": 10, "names": ["count", "whole"]},
    "dataclasses": {"begin": "2026-01-01T00:00:00", "end": "2026-01-02T00:00:00", "stops": ["travelled"]},
    "private": {"question": "abc", "answer": "['secret'] cba"},
    "retries": {"log": ["third", "third"]},
    "loop": {"n": 3, "log": ["begin", 0, 1, 2]},
    "joins": {"log": ["left", "right", "both", {"n": 1}, {"n": 2}]},
    "context": {"log": ["Ada 1815"]},
    "config": {"log": ["Ada", 1, ["a"], 5, "b"]},
    "calls": {"n": 1, "log": [1, 2]},
}


def test_every_form_gives_the_state_of_a_run_in_process(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "forms.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(file)], env=stack.environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    states = json.loads(done.stdout)
    for fleet, in_process in states.values():
        assert {key: fleet[key] for key in fleet if key != "secret"} == in_process
    found = {name: in_process for name, (_, in_process) in states.items()}
    assert [message["content"] for message in found.pop("messages")["messages"]] == ["hello", "HELLO"]
    assert found == EXPECTED


LIMITED = """
import json
import operator
from typing import Annotated, TypedDict

from sleipnir import START, GraphRecursionError, StateGraph


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def add(state: State) -> dict:
    return {"log": ["x"]}


builder = StateGraph(State).add_node("a", add).add_node("b", add).add_node("c", add)
graph = builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").compile()


def outcome(call):
    try:
        return call()
    except GraphRecursionError as error:
        return str(error)


if __name__ == "__main__":
    runs = {limit: graph.submit({}, config={"recursion_limit": limit}) for limit in (3, 4)}
    found = {}
    for limit, run in runs.items():
        here = outcome(lambda: graph.invoke({}, {"recursion_limit": limit}))
        found[limit] = [outcome(lambda: run.result(60)), here, run.status, run.state()["log"]]
    print(json.dumps(found))
"""


def test_a_limit_of_super_steps_ends_a_run_as_it_ends_one_in_process(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "limited.py"
    file.write_text(LIMITED)
    done = subprocess.run(
        [sys.executable, str(file)], env=stack.environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    too_many, enough = json.loads(done.stdout).values()
    assert too_many[1].startswith("Recursion limit of 3 reached without hitting a stop condition. You can increase")
    assert too_many[0].endswith(too_many[1])
    assert too_many[2:] == ["failed", ["x"] * 3]
    assert enough[0] == enough[1] == {"log": ["x"] * 3}
    assert enough[2] == "completed"


BELOW = """
import json
import operator
from dataclasses import dataclass
from typing import Annotated, TypedDict

from sleipnir import END, START, GraphRecursionError, Runtime, StateGraph


@dataclass
class Who:
    name: str


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def told(state: State, config: dict, runtime: Runtime[Who]) -> dict:
    return {"log": [config["configurable"]["title"] + runtime.context.name]}


def is_over(state: State, config: dict) -> bool:
    return len(state["log"]) >= config["configurable"]["most"]


below = StateGraph(State, context_schema=Who).add_node(told).add_edge(START, "told")
below = below.add_conditional_edges("told", is_over, {True: END, False: "told"}).compile()
graph = StateGraph(State, context_schema=Who).add_node("below", below).add_edge(START, "below").compile()


def outcome(call):
    try:
        return call()["log"]
    except GraphRecursionError as error:
        return str(error)


if __name__ == "__main__":
    configs = [{"configurable": {"title": "Countess ", "most": most}, "recursion_limit": 4} for most in (2, 9)]
    runs = [graph.submit({}, config=config, context=Who("Ada")) for config in configs]
    here = [outcome(lambda: graph.invoke({}, config, context={"name": "Ada"})) for config in configs]
    print(json.dumps([[outcome(lambda: run.result(60)) for run in runs], here]))
"""


def test_a_graph_that_is_a_node_has_the_configuration_and_the_context_of_the_run_above(
    stack: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "above.py"
    file.write_text(BELOW)
    done = subprocess.run(
        [sys.executable, str(file)], env=stack.environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    fleet, here = json.loads(done.stdout)
    assert fleet[0] == here[0] == ["Countess Ada"] * 2
    assert here[1].startswith("Recursion limit of 4 reached")
    assert fleet[1].endswith(here[1])


COUNTED = """
import json
import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, IsLastStep, RemainingSteps, StateGraph


class State(TypedDict):
    seen: Annotated[list, operator.add]
    remaining: RemainingSteps
    is_last: IsLastStep


def note(state: State):
    return {"seen": [[state["remaining"], state["is_last"]]]}


def choose(state: State):
    return END if state["remaining"] <= 1 else "note"


def begin(state: State):
    return "note"


def graph_from(start):
    builder = StateGraph(State).add_node(note).add_conditional_edges("note", choose, ["note", END])
    return start(builder).compile()


graphs = [
    graph_from(lambda builder: builder.add_edge(START, "note")),
    graph_from(lambda builder: builder.add_conditional_edges(START, begin, ["note"])),
]

if __name__ == "__main__":
    config = {"recursion_limit": 4}
    runs = [graph.submit({}, config=config) for graph in graphs]
    print(json.dumps([[run.result(60), graph.invoke({}, config)] for run, graph in zip(runs, graphs)]))
"""


def test_nodes_and_routers_see_how_many_steps_are_left(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    done = subprocess.run(
        [sys.executable, str(file)], env=stack.environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for fleet, in_process in json.loads(done.stdout):
        assert fleet == in_process == {"seen": [[3, False], [2, False], [1, True]]}
