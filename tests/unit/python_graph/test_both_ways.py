"""One graph, written in Python and as a graph.yaml, is one definition."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

from sleipnir import END, START, RetryPolicy, StateGraph
from sleipnir.graph.check import check
from sleipnir.graph.load import parse
from sleipnir.graph.model import Graph

pytestmark = pytest.mark.filterwarnings("ignore:Node .* is unreachable")  # some graphs here have parts only

HERE = __name__


class Plain(TypedDict):
    topic: str
    draft: str
    notes: Annotated[list[str], operator.add]


PLAIN = """
state:
  topic: {type: any, reducer: single}
  draft: {type: any, reducer: single}
  notes: {type: list, reducer: append, default: []}
"""
PLAIN_CLASS = PLAIN + "state_classes: [HERE:Plain]"


def plan(state: Plain) -> dict[str, Any]:
    return {"topic": "bees"}


def write(state: Plain) -> dict[str, Any]:
    return {"draft": state["topic"]}


def check_draft(state: Plain) -> dict[str, Any]:
    return {"notes": ["checked"]}


def choose(state: Plain) -> str:
    return "long"


def choose_also(state: Plain) -> list[str]:
    return []


def last_one(old: Any, new: Any) -> Any:
    return new


def is_busy(error: Exception) -> bool:
    return "busy" in str(error)


class Part(TypedDict):
    topic: str


class Model(BaseModel):
    topic: str = ""
    draft: str = ""


@dataclass
class Record:
    topic: str = ""
    best: Annotated[int, max] = 0
    last: Annotated[Any, last_one] = None


def read_part(state: Part) -> dict[str, Any]:
    return {}


def read_model(state: Model) -> dict[str, Any]:
    return {}


def read_record(state: Record) -> dict[str, Any]:
    return {}


def graph_of_functions() -> StateGraph:
    return StateGraph(Plain).add_node("plan", plan).add_node("write", write).add_node("check", check_draft)


def chain() -> StateGraph:
    return graph_of_functions().add_edge(START, "plan").add_edge("plan", "write").add_edge("write", "check")


CHAIN = """
start: plan
nodes:
  plan: {type: function, call: "HERE:plan", protocol: state_graph, next: write}
  write: {type: function, call: "HERE:write", protocol: state_graph, next: check}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph}
"""


def sequence() -> StateGraph:
    steps = [("plan", plan), ("write", write), ("check", check_draft)]
    return StateGraph(Plain).add_sequence(steps).set_entry_point("plan").set_finish_point("check")


SEQUENCE = CHAIN.replace(
    '"HERE:check_draft", protocol: state_graph', '"HERE:check_draft", protocol: state_graph, next: end'
)


def branch() -> StateGraph:
    graph = graph_of_functions().add_edge(START, "plan")
    return graph.add_conditional_edges("plan", choose, {"long": "write", "short": "check", "none": END})


BRANCH = """
start: plan
nodes:
  plan:
    type: function
    call: HERE:plan
    protocol: state_graph
    routers: [{call: "HERE:choose", to: {long: write, short: check, none: end}}]
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph}
"""


def free_branch() -> StateGraph:
    return graph_of_functions().add_edge(START, "plan").add_conditional_edges("plan", choose)


FREE_BRANCH = BRANCH.replace(", to: {long: write, short: check, none: end}", "")


def two_routers() -> StateGraph:
    graph = graph_of_functions().add_edge(START, "plan").add_edge("plan", "check")
    return graph.add_conditional_edges("plan", choose, {"long": "write"}).add_conditional_edges("plan", choose_also)


TWO_ROUTERS = """
start: plan
nodes:
  plan:
    type: function
    call: HERE:plan
    protocol: state_graph
    routers: [{call: "HERE:choose", to: {long: write}}, {call: "HERE:choose_also"}]
    next: check
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph}
"""


def parallel() -> StateGraph:
    return graph_of_functions().add_edge(START, "plan").add_edge(START, "write").add_edge(START, "check")


PARALLEL = """
start: __start__
nodes:
  __start__: {type: router, next: [plan, write, check]}
  plan: {type: function, call: "HERE:plan", protocol: state_graph}
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph}
"""


def conditional_entry() -> StateGraph:
    return graph_of_functions().set_conditional_entry_point(choose, {"long": "plan", "short": "write"})


CONDITIONAL_ENTRY = """
start: __start__
nodes:
  __start__:
    type: function
    call: sleipnir.python_graph.document:nothing
    protocol: state_graph
    routers: [{call: "HERE:choose", to: {long: plan, short: write}}]
  plan: {type: function, call: "HERE:plan", protocol: state_graph}
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph}
"""


def join() -> StateGraph:
    graph = graph_of_functions().add_edge(START, "plan").add_edge(START, "write")
    return graph.add_edge(["plan", "write"], "check").add_edge("check", END)


JOIN = """
start: __start__
nodes:
  __start__: {type: router, next: [plan, write]}
  plan: {type: function, call: "HERE:plan", protocol: state_graph}
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check: {type: function, call: "HERE:check_draft", protocol: state_graph, wait_for: [write, plan], next: end}
"""


def two_joins() -> StateGraph:
    graph = join().add_node("more", plan).add_edge(START, "more")
    return graph.add_edge(["more", "plan"], "check")


TWO_JOINS = """
start: __start__
nodes:
  __start__: {type: router, next: [plan, write, more]}
  plan: {type: function, call: "HERE:plan", protocol: state_graph}
  more: {type: function, call: "HERE:plan", protocol: state_graph}
  write: {type: function, call: "HERE:write", protocol: state_graph}
  check:
    type: function
    call: HERE:check_draft
    protocol: state_graph
    wait_for: [[write, plan], [more, plan]]
    next: end
"""


def loop() -> StateGraph:
    graph = chain()
    return graph.add_conditional_edges("check", choose, {"long": "write", "short": END})


LOOP = """
start: plan
nodes:
  plan: {type: function, call: "HERE:plan", protocol: state_graph, next: write}
  write: {type: function, call: "HERE:write", protocol: state_graph, next: check}
  check:
    type: function
    call: HERE:check_draft
    protocol: state_graph
    routers: [{call: "HERE:choose", to: {long: write, short: end}}]
"""


def retry() -> StateGraph:
    policy = RetryPolicy(initial_interval=0.1, backoff_factor=3, max_interval=5, max_attempts=4, jitter=False)
    return StateGraph(Plain).add_node("plan", plan, retry_policy=policy).add_edge(START, "plan")


RETRY = """
start: plan
nodes:
  plan:
    type: function
    call: HERE:plan
    protocol: state_graph
    retry:
      max_attempts: 4
      initial_interval: 100ms
      backoff: 3
      max_interval: 5s
      jitter: false
      on: ["sleipnir.python_graph.policies:default_retry_on"]
"""


def several_retries() -> StateGraph:
    policies = [RetryPolicy(retry_on=is_busy), RetryPolicy(max_attempts=2, retry_on=[KeyError, OSError])]
    return StateGraph(Plain).add_node("plan", plan, retry_policy=policies).add_edge(START, "plan")


SEVERAL_RETRIES = """
start: plan
nodes:
  plan:
    type: function
    call: HERE:plan
    protocol: state_graph
    retry:
      - max_attempts: 3
        initial_interval: 500ms
        backoff: 2
        max_interval: 128s
        jitter: true
        on: ["HERE:is_busy"]
      - max_attempts: 2
        initial_interval: 500ms
        backoff: 2
        max_interval: 128s
        jitter: true
        on: ["builtins:KeyError", "builtins:OSError"]
"""


def deferred() -> StateGraph:
    graph = StateGraph(Plain).add_node("plan", plan, timeout=2.5).add_node("last", write, defer=True)
    return graph.add_edge(START, "plan").add_edge("plan", "last").add_edge(START, "last")


DEFERRED = """
start: __start__
nodes:
  __start__: {type: router, next: [plan, last]}
  plan: {type: function, call: "HERE:plan", protocol: state_graph, timeout: 3, next: last}
  last: {type: function, call: "HERE:write", protocol: state_graph, defer: true}
"""


def destinations() -> StateGraph:
    graph = StateGraph(Plain).add_node("plan", plan, destinations=("write", END)).add_node("write", write)
    return graph.add_edge(START, "plan")


DESTINATIONS = """
start: plan
nodes:
  plan: {type: function, call: "HERE:plan", protocol: state_graph, ends: {write: write, __end__: end}}
  write: {type: function, call: "HERE:write", protocol: state_graph}
"""


def narrow_node() -> StateGraph:
    return StateGraph(Plain).add_node("part", read_part).add_edge(START, "part")


NARROW_NODE = """
start: part
nodes:
  part: {type: function, call: "HERE:read_part", protocol: state_graph, reads: [topic]}
"""


def pydantic_state() -> StateGraph:
    return StateGraph(Model).add_node("read", read_model).add_edge(START, "read")


PYDANTIC_STATE = """
state: {topic: {type: any, reducer: single}, draft: {type: any, reducer: single}}
state_classes: [HERE:Model]
start: read
nodes:
  read: {type: function, call: "HERE:read_model", protocol: state_graph, state_class: HERE:Model}
"""


def own_reducers() -> StateGraph:
    return StateGraph(Record).add_node("read", read_record).add_edge(START, "read")


OWN_REDUCERS = """
state:
  topic: {type: any, reducer: single}
  best: {type: int, reducer: max, default: 0}
  last: {type: any, reducer: HERE:last_one}
state_classes: [HERE:Record]
start: read
nodes:
  read: {type: function, call: "HERE:read_record", protocol: state_graph, state_class: HERE:Record}
"""


def models() -> StateGraph:
    graph = StateGraph(Plain)
    graph.add_llm_node(
        "write",
        prompt="Write about {{topic}}",
        instructions="Be brief.",
        model="openai:gpt-4o-mini",
        temperature=0.3,
        tools=["search.sh"],
        state_updates={"draft": "{{output}}"},
    )
    graph.add_llm_node("polish", prompt="Polish {{draft}}", state_updates={"draft": "{{output}}"}, timeout=9)
    return graph.add_edge(START, "write").add_edge("write", "polish")


MODELS = """
start: write
nodes:
  write:
    type: llm
    prompt: Write about {{topic}}
    instructions: Be brief.
    model: openai:gpt-4o-mini
    temperature: 0.3
    tools: [search.sh]
    state_updates: {draft: "{{output}}"}
    next: polish
  polish: {type: llm, prompt: "Polish {{draft}}", state_updates: {draft: "{{output}}"}, timeout: 9}
"""


def people() -> StateGraph:
    graph = StateGraph(Plain)
    graph.add_input_node("ask", question="About what?", state_updates={"topic": "{{input}}"}, default="bees")
    graph.add_approval_node(
        "review",
        question="Send {{draft}}?",
        options=["yes", "no"],
        routes={"yes": END, "no": "ask"},
        on_other="ask",
        timeout=60,
        on_timeout=END,
    )
    return graph.add_edge(START, "ask").add_edge("ask", "review")


PEOPLE = """
start: ask
nodes:
  ask: {type: input, question: "About what?", state_updates: {topic: "{{input}}"}, default: bees, next: review}
  review:
    type: approval
    question: Send {{draft}}?
    options: ["yes", "no"]
    routes: {"yes": end, "no": ask}
    on_other: ask
    timeout: 60
    on_timeout: end
"""


def scripts_and_documents() -> StateGraph:
    graph = StateGraph(Plain)
    graph.add_script_node("fetch", script="fetch.sh", timeout=5, retry={"max_attempts": 2})
    graph.add_rag_node(
        "look_up", documents=["./docs"], query="{{topic}}", state_updates={"draft": "{{output.context}}"}
    )
    return graph.add_edge(START, "fetch").add_edge("fetch", "look_up").add_edge("look_up", END)


SCRIPTS_AND_DOCUMENTS = """
start: fetch
nodes:
  fetch: {type: script, script: fetch.sh, timeout: 5, retry: {max_attempts: 2}, next: look_up}
  look_up:
    type: rag
    documents: [./docs]
    query: "{{topic}}"
    state_updates: {draft: "{{output.context}}"}
    next: end
"""


def agents() -> StateGraph:
    graph = StateGraph(Plain)
    graph.add_agent_node("research", agent="researcher", prompt="{{topic}}", state_updates={"draft": "{{output}}"})
    graph.add_llm_node("write", prompt="{{draft}}")
    graph.add_edge(START, "research")
    return graph.add_conditional_edges("research", choose, {"long": "write", "short": END})


AGENTS = """
start: research
nodes:
  research:
    type: agent
    agent: researcher
    prompt: "{{topic}}"
    state_updates: {draft: "{{output}}"}
    branch: {call: "HERE:choose", to: {long: write, short: end}, many: true}
  write: {type: llm, prompt: "{{draft}}"}
"""


def mixed() -> StateGraph:
    graph = StateGraph(Plain).add_node("plan", plan).add_llm_node("write", prompt="{{topic}}", defer=True)
    graph.add_agent_node("check", agent="checker", prompt="{{draft}}")
    graph.add_edge(START, "plan").add_conditional_edges("plan", choose_also)
    return graph.add_edge(["plan", "write"], "check").add_edge("plan", "write")


MIXED = """
start: plan
nodes:
  plan:
    {type: function, call: "HERE:plan", protocol: state_graph, routers: [{call: "HERE:choose_also"}], next: write}
  write: {type: llm, prompt: "{{topic}}", defer: true}
  check: {type: agent, agent: checker, prompt: "{{draft}}", wait_for: [plan, write]}
"""


def sends() -> StateGraph:
    graph = StateGraph(Plain).add_node("plan", plan).add_node("write", write)
    return graph.add_edge(START, "plan").add_conditional_edges("plan", choose_also, ["write"])


SENDS = """
start: plan
nodes:
  plan:
    type: function
    call: HERE:plan
    protocol: state_graph
    routers: [{call: "HERE:choose_also", to: {write: write}}]
  write: {type: function, call: "HERE:write", protocol: state_graph}
"""

Build = Callable[[], StateGraph]

GRAPHS: list[tuple[Build, str, str]] = [
    (chain, PLAIN_CLASS, CHAIN),
    (sequence, PLAIN_CLASS, SEQUENCE),
    (branch, PLAIN_CLASS, BRANCH),
    (free_branch, PLAIN_CLASS, FREE_BRANCH),
    (two_routers, PLAIN_CLASS, TWO_ROUTERS),
    (parallel, PLAIN_CLASS, PARALLEL),
    (conditional_entry, PLAIN_CLASS, CONDITIONAL_ENTRY),
    (join, PLAIN_CLASS, JOIN),
    (two_joins, PLAIN_CLASS, TWO_JOINS),
    (loop, PLAIN_CLASS, LOOP),
    (retry, PLAIN_CLASS, RETRY),
    (several_retries, PLAIN_CLASS, SEVERAL_RETRIES),
    (deferred, PLAIN_CLASS, DEFERRED),
    (destinations, PLAIN_CLASS, DESTINATIONS),
    (narrow_node, PLAIN_CLASS.replace("HERE:Plain", "HERE:Plain, HERE:Part"), NARROW_NODE),
    (pydantic_state, "", PYDANTIC_STATE),
    (own_reducers, "", OWN_REDUCERS),
    (models, PLAIN_CLASS, MODELS),
    (people, PLAIN_CLASS, PEOPLE),
    (scripts_and_documents, PLAIN_CLASS, SCRIPTS_AND_DOCUMENTS),
    (agents, PLAIN_CLASS, AGENTS),
    (mixed, PLAIN_CLASS, MIXED),
    (sends, PLAIN_CLASS, SENDS),
]

HEAD = """
name: g
version: sleipnir/1
settings: {max_loop_iterations: 10000}
"""


def loaded(text: str) -> Graph:
    found = parse(text, "graph.yaml")
    assert found.graph is not None, found.problems
    problems = (*found.problems, *check(found.graph, {}, "graph.yaml"))
    assert [str(problem) for problem in problems if problem.level == "error"] == []
    return found.graph


@pytest.mark.parametrize(("build", "state", "text"), GRAPHS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_graph_written_both_ways_is_one_graph(build: Build, state: str, text: str) -> None:
    assert build().compile(name="g").model == loaded((HEAD + state + text).replace("HERE:", f"{HERE}:"))


@pytest.mark.parametrize("build", [build for build, _, _ in GRAPHS], ids=lambda build: build.__name__)
def test_a_graph_as_yaml_is_the_same_graph(build: Build) -> None:
    graph = build().compile(name="g")
    assert loaded(graph.to_yaml()) == graph.model


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_the_engine_and_the_limit_of_steps_are_parts_of_the_graph(engine: Any) -> None:
    graph = chain().compile(name="g", engine=engine, max_steps=9).model
    text = HEAD + f"engine: {engine}\nlimits: {{max_steps: 9}}" + PLAIN_CLASS + CHAIN
    assert graph == loaded(text.replace("HERE:", f"{HERE}:"))


def test_there_are_twenty_graphs_with_all_kinds_of_nodes() -> None:
    assert len(GRAPHS) >= 20
    kinds = {node.kind for build, _, _ in GRAPHS for node in build().compile().model.nodes.values()}
    assert kinds == {"function", "router", "llm", "agent", "approval", "input", "rag", "script"}
