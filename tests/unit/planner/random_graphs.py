"""Random graphs for the planner: every type of node, edges of every kind, both versions, both engines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from sleipnir.graph.model import (
    LOKI,
    SLEIPNIR,
    ApprovalNode,
    Branch,
    EndNode,
    FunctionNode,
    Graph,
    InputNode,
    Join,
    Limits,
    LlmNode,
    MapNode,
    Node,
    Retry,
    RouterNode,
    ScriptNode,
    Settings,
    StateField,
)

NAMES = ["a", "b", "c", "d"]
CAP = 4
TRIES = 3
SLOTS = 3
MAP_SLOTS = 2
TURNS = 3
STATE: dict[str, Any] = {"items": ["x", "y", "z"], "log": []}


@dataclass(frozen=True)
class Drawn:
    """A graph. Hypothesis prints it when an example fails, so it is printed by what is not at its default."""

    graph: Graph

    def __repr__(self) -> str:
        graph = self.graph
        lines = [f"  {_shown(node)}" for node in graph.nodes.values()]
        rest = f"{graph.version} {graph.engine} start={graph.start} {_shown(graph.limits)} {_shown(graph.settings)}"
        stops = f"  stops before {graph.interrupt_before} and after {graph.interrupt_after}"
        return "\n".join([rest, *lines, f"  reducers {graph.reducers} state {sorted(graph.state)}", stops])


def _shown(value: Any) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    fields = [f"{k}={v!r}" for k, v in vars(value).items() if v not in (defaults.get(k), [], {}, None)]
    return f"{type(value).__name__}({', '.join(fields)})"


@st.composite
def policies(draw: st.DrawFn) -> list[Retry] | None:
    if draw(st.booleans()):
        return None
    return [Retry(max_attempts=TRIES, initial_interval=draw(st.sampled_from([0, 500])), on=["any"])]


def loop(**fields: Any) -> LlmNode:
    """An llm node with tools."""
    updates = {"k": "{{output}}"}
    return LlmNode(**fields, prompt="p", tools=["t"], max_iterations=TURNS, state_updates=updates)


@st.composite
def nodes(draw: st.DrawFn, name: str, extended: bool, talkative: bool = False) -> Node:
    target = st.sampled_from([*NAMES, "end"])
    maybe = st.none() | target
    common: dict[str, Any] = {"id": name, "next": draw(maybe | st.lists(target, min_size=2, max_size=3, unique=True))}
    kinds = ["script", "script", "llm", "loop", "approval", "input", "map"]
    if extended:
        kinds += ["router", "conditional", "call"]
    expiry = {"timeout": draw(st.none() | st.just(2)), "on_timeout": draw(maybe)}
    match draw(st.sampled_from(["loop", "loop", "map"] if talkative else kinds)):
        case "script":
            once: Any = draw(st.sampled_from([None, None, "once"]))
            return ScriptNode(**common, script="s.sh", fallback=draw(maybe), effect=once, retry=draw(policies()))
        case "llm":
            updates = {"k": "{{output}}"}
            return LlmNode(**common, prompt="p", fallback=draw(maybe), state_updates=updates, retry=draw(policies()))
        case "loop":
            return loop(**common, fallback=draw(maybe), retry=draw(policies()), timeout=draw(st.none() | st.just(2)))
        case "approval":
            routes = {"yes": draw(target), "no": draw(target)}
            question, other = draw(st.sampled_from(["ok?", "{{log}}?"])), draw(target)
            return ApprovalNode(**common, **expiry, question=question, options=["yes"], routes=routes, on_other=other)
        case "map":
            how: Any = draw(st.sampled_from(["fail", "skip", "collect"]))
            bodies = draw(st.sampled_from([["body"], ["other"], ["body", "other"]]))
            over = draw(st.sampled_from(["{{items}}", "{{items}}", "{{k}}"]))
            limits = {"max_concurrency": MAP_SLOTS, "on_item_error": how}
            return MapNode(**common, over=over, item="item", body=bodies, collect_into="found", **limits)
        case "router":
            return RouterNode(**common)
        case "conditional":
            branch = Branch(by="{{k}}", to={"end": draw(target)}, default=draw(maybe))
            return FunctionNode(**common, call="f.py:f", branch=branch)
        case "call":
            return FunctionNode(**common, call="f.py:f", branch=Branch(call="f.py:choose", many=True))
        case _:
            return InputNode(**common, **expiry, question="q?", default="d", validation="len(input) < 3")


def failure_rules() -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, None, "continue", "fail", "other"])


@st.composite
def drawn_graphs(draw: st.DrawFn, talkative: bool = False) -> Drawn:
    """A graph; a `talkative` one begins with an llm node that has tools, or with a map."""
    extended = draw(st.booleans())
    made: dict[str, Node] = {name: draw(nodes(name, extended, talkative and name in "ab")) for name in NAMES}
    made["end"] = EndNode(id="end", output="{{k}}")
    made["body"] = ScriptNode(id="body", script="s.sh", retry=draw(policies()))
    other = {"id": "other", "retry": draw(policies())}
    made["other"] = loop(**other) if talkative else ScriptNode(**other, script="s.sh")
    timeout = draw(st.none() | st.integers(1, 3))
    limits = Settings(max_loop_iterations=CAP, timeout=timeout, max_concurrency=SLOTS)
    common: dict[str, Any] = {"name": "g", "settings": limits, "on_error": draw(failure_rules())}
    common["start"] = "a" if talkative else draw(st.sampled_from([*NAMES, "end"]))
    if not extended:
        reducers = draw(st.sampled_from([{}, {"log": "append"}]))
        return Drawn(Graph(**common, nodes=made, reducers=reducers))
    least = draw(st.none() | st.none() | st.just(1))
    if least is None:
        made["join"] = ScriptNode(id="join", script="s.sh", wait_for=[Join(sources=["a", "b"])], next=draw(st.none()))
    else:
        made["quorum"] = ScriptNode(id="quorum", script="s.sh", wait_for=[Join(sources=["a", "b"], min=least)])
    state = {"log": StateField(type="list", reducer="append"), "best": StateField(reducer="r.py:best")}
    ours_too = {
        "engine": draw(st.sampled_from(["bsp", "dag"])),
        "state": draw(st.sampled_from([state, {"log": state["log"]}, {}])),
        "limits": Limits(
            max_steps=draw(st.sampled_from([None, None, 6])),
            on_max_steps=draw(st.sampled_from(["error", "stop"])),
            step_timeout=draw(st.none() | st.just(2_000)),
        ),
    }
    version = draw(st.sampled_from([SLEIPNIR, SLEIPNIR, LOKI]))
    if version == SLEIPNIR and ours_too["engine"] == "bsp":
        for name in draw(st.sampled_from([(), (), NAMES[:1], NAMES[-2:], ("end", *NAMES[1:2])])):
            made[name] = dataclasses.replace(made[name], defer=True)
    if version == SLEIPNIR:
        for key in ("interrupt_before", "interrupt_after"):
            ours_too[key] = draw(st.sampled_from([[], [], [], NAMES[:1], [*NAMES[1:], "end"]]))
    return Drawn(Graph(**common, nodes=made, version=version, **ours_too))
