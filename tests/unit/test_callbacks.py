"""`callbacks` around nodes, in process: their order, what they change, and what is journaled of that."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any, TypedDict

import pytest

from sleipnir import END, START, CachePolicy, Command, InMemoryCache, NodeInfo, RetryPolicy, StateGraph
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.settings import Settings
from sleipnir_inprocess.agent_run import AgentRun

HOOKS = """
seen = []
def ran(name):
    seen.append(name)
    with open("PLACE", "a") as file:
        file.write(f"{name}\\n")
def g_before(state, info): ran("g_before")
def n_before(state, info): ran("n_before")
def g_after(state, info, result, error): ran(f"g_after {result} {error}")
def n_after(state, info, result, error): ran(f"n_after {result} {error}")
def g_error(state, info, error): ran(f"g_error {error} {info.failures}")
def n_error(state, info, error): ran(f"n_error {error} {info.failures}")
def broken(state, info, error): raise ValueError("of the callback")
def stop(state, info):
    ran("stop")
    return {"out": "stopped"}
def lead(state, info): return {"out": "led", "_next": "other"}
def refuse(state, info): raise PermissionError("not allowed")
def mend(state, info, result, error): return {"out": "mended"} if error else None
def replace(state, info, result, error): return {**result, "out": result["out"] + "!"}
def spoil(state, info, result, error): raise ValueError("spoilt")
def tell(state, info): ran(info)
async def later(state, info): return {}
def view(state, info):
    ran(f"view {state.get('fails')}")
    state["fails"], state["own"] = 1, {"deep": [1]}
    state.pop("gone", None)
def g_stop(state, info): return {"out": "of the graph"}
def g_replace(state, info, result, error): return {"out": "of the graph"}
def see(state):
    ran(f"saw {state.get('fails')} {state.get('own')} {'gone' in state}")
    return {"out": "seen"}
def work(state):
    ran("work")
    if state.get("fails", 0) > sum(each == "work" for each in seen) - 1:
        raise ValueError("no luck")
    return {"out": "worked"}
"""
GRAPH = """
    name: hooked
    version: sleipnir/1
    start: work
    TOP
    nodes:
      work: {type: function, call: "hooks.py:work", NODE next: done}
      other: {type: end, output: "other {{out}}"}
      done: {type: end, output: "{{out}}"}
"""


class Hooked:
    """A run of the graph, to its end. `seen` is what its functions noted."""

    def __init__(self, folder: Path, node: str = "", top: str = "", call: str = "work", **state: Any) -> None:
        agent = folder / "hooked"
        agent.mkdir()
        text = (
            dedent(GRAPH)
            .replace("NODE", f"{node}, " if node else "")
            .replace("TOP", top)
            .replace("hooks.py:work", f"hooks.py:{call}")
        )
        (agent / "graph.yaml").write_text(text)
        (agent / "notes.txt").touch()
        hooks = HOOKS.replace("PLACE", str(folder / "seen"))
        (agent / "hooks.py").write_text(hooks)
        self.run = AgentRun(agent, state=state, settings=Settings(agents_dir=folder))
        for _ in self.run.steps():
            pass
        file = folder / "seen"
        self.seen = file.read_text().splitlines() if file.exists() else []

    @property
    def ended(self) -> tuple[str, str | None]:
        info = self.run.info()
        return info.status, self.run.output if info.status == "completed" else info.error

    @property
    def journaled(self) -> list[str]:
        return [mark for step, _ in self.run.record.values.journal for mark in step.callbacks]


BOTH = "callbacks: {before: 'hooks.py:g_before', after: ['hooks.py:g_after'], error: 'hooks.py:g_error'}"
OWN = "callbacks: {before: 'hooks.py:n_before', after: ['hooks.py:n_after'], error: 'hooks.py:n_error'}"


@pytest.mark.conformance("CB-07")
def test_the_order_is_graph_then_node_before_and_node_then_graph_after(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, OWN, BOTH)
    assert hooked.ended == ("completed", "worked")
    shown = "{'out': 'worked'} None"
    assert hooked.seen == ["g_before", "n_before", "work", f"n_after {shown}", f"g_after {shown}"]
    assert hooked.journaled == []


@pytest.mark.conformance("CB-06")
def test_before_runs_once_and_error_at_each_attempt_and_after_at_the_last_one(tmp_path: Path) -> None:
    retry = "retry: {max_attempts: 3, initial_interval: 1ms, jitter: false}"
    hooked = Hooked(tmp_path, f"{OWN}, {retry}", BOTH, fails=2)
    assert hooked.ended == ("completed", "worked")
    text = "Function 'hooks.py:work' raised ValueError: no luck"
    seen = [each.split(" (hooks.py")[0].split(" at hooks")[0] for each in hooked.seen]
    assert [each.split(" ")[0] for each in seen] == [
        "g_before", "n_before", *["work", "g_error", "n_error"] * 2, "work", "n_after", "g_after",
    ]  # fmt: skip
    assert text.split(" raised")[0] in hooked.seen[3]
    assert [each[-1] for each in hooked.seen if "_error" in each] == ["0", "0", "1", "1"]


@pytest.mark.conformance("CB-01", "CB-12")
def test_what_before_returns_is_the_result_and_nothing_else_runs(tmp_path: Path) -> None:
    node = "callbacks: {before: ['hooks.py:stop', 'hooks.py:n_before'], after: 'hooks.py:n_after'}, cache: true"
    hooked = Hooked(tmp_path, node)
    assert (hooked.ended, hooked.seen) == (("completed", "stopped"), ["stop"])
    assert hooked.journaled == ["skipped by before hooks.py:stop"]


@pytest.mark.conformance("EX-29")
def test_each_of_three_nodes_has_callbacks_of_its_own() -> None:
    ran: list[str] = []

    class Steps(TypedDict, total=False):
        done: int

    def step(state: Steps) -> dict[str, int]:
        ran.append("node")
        if state.get("done") == 2:
            raise ValueError("no third step")
        return {"done": state.get("done", 0) + 1}

    def named(name: str) -> dict[str, Any]:
        def mended(state: Steps, info: NodeInfo, result: Any, error: str | None) -> dict[str, int] | None:
            ran.append(f"after {info.node} {name}")
            return {"done": 3} if error else None

        return {
            "before": lambda state, info: ran.append(f"before {info.node} {name}"),
            "after": mended,
            "on_error": lambda state, info, error: ran.append(f"error {info.node} {name}"),
        }

    builder = StateGraph(Steps)
    for number in (1, 2, 3):
        builder.add_node(f"step{number}", step, **named(f"of {number}"))
    graph = builder.add_edge(START, "step1").add_edge("step1", "step2").add_edge("step2", "step3").compile()
    assert graph.invoke({}) == {"done": 3}
    assert ran == [
        *("before step1 of 1", "node", "after step1 of 1"),
        *("before step2 of 2", "node", "after step2 of 2"),
        *("before step3 of 3", "node", "error step3 of 3", "after step3 of 3"),
    ]


@pytest.mark.conformance("CB-09")
def test_callbacks_of_the_graph_and_of_the_node_both_run_and_what_the_node_returns_wins(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    top = "callbacks: {before: ['hooks.py:g_stop', 'hooks.py:g_before']}"
    hooked = Hooked(tmp_path / "a", "callbacks: {before: 'hooks.py:stop'}", top)
    assert (hooked.ended, hooked.seen) == (("completed", "stopped"), ["stop"])
    assert hooked.journaled == ["skipped by before hooks.py:g_stop", "skipped by before hooks.py:stop"]
    top = "callbacks: {after: ['hooks.py:g_replace', 'hooks.py:g_after']}"
    hooked = Hooked(tmp_path / "b", "callbacks: {after: 'hooks.py:replace'}", top)
    assert hooked.ended == ("completed", "worked!")
    assert hooked.seen == ["work", "g_after {'out': 'worked!'} None"]
    assert hooked.journaled == ["replaced by after hooks.py:replace"]


def test_before_changes_what_the_node_sees_and_not_what_is_stored(tmp_path: Path) -> None:
    node = "callbacks: {before: ['hooks.py:view', 'hooks.py:n_before']}"
    hooked = Hooked(tmp_path, node, fails=0, gone=1, call="see")
    assert hooked.seen == ["view 0", "n_before", "saw 1 {'deep': [1]} False"]
    state = hooked.run.state()
    assert (state["fails"], state["gone"], "own" in state) == (0, 1, False)
    assert hooked.journaled == ["input changed: fails, own, gone by before hooks.py:view"]


def test_each_attempt_sees_what_before_has_changed(tmp_path: Path) -> None:
    retry = "retry: {max_attempts: 3, initial_interval: 1ms, jitter: false}"
    hooked = Hooked(tmp_path, f"callbacks: {{before: 'hooks.py:view'}}, {retry}", fails=0)
    assert hooked.ended == ("completed", "worked")
    assert hooked.seen == ["view 0", "work", "view 0", "work"], "without the change the first attempt succeeds"


def test_a_change_that_the_state_does_not_allow_fails_the_visit(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {before: 'hooks.py:view'}", "state: {fails: string, out: string}", fails="x")
    status, error = hooked.ended
    assert status == "failed"
    assert "Callback 'hooks.py:view': state key 'fails'" in (error or "")


def test_what_before_returns_may_lead_elsewhere(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {before: 'hooks.py:lead'}, ends: {other: other}")
    assert hooked.ended == ("completed", "other led")


@pytest.mark.conformance("CB-02")
def test_a_before_that_raises_fails_the_visit_and_is_not_retried(tmp_path: Path) -> None:
    node = "callbacks: {before: 'hooks.py:refuse', error: 'hooks.py:n_error', after: 'hooks.py:mend'}, retry: {}"
    hooked = Hooked(tmp_path, node)
    status, error = hooked.ended
    assert status == "failed"
    assert "not allowed" in (error or "")
    assert [each.split(" ")[0] for each in hooked.seen] == ["n_error"], "the node is not executed"
    assert hooked.journaled == ["failed by before hooks.py:refuse"]


@pytest.mark.conformance("CB-03")
def test_after_replaces_the_result_before_the_way_on_is_decided(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {after: ['hooks.py:replace', 'hooks.py:n_after']}")
    assert hooked.ended == ("completed", "worked!")
    assert hooked.seen[-1] == "n_after {'out': 'worked!'} None"
    assert hooked.journaled == ["replaced by after hooks.py:replace"]


@pytest.mark.conformance("CB-04")
def test_after_recovers_a_final_failure_and_later_ones_see_no_error(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {after: ['hooks.py:mend', 'hooks.py:n_after']}", fails=9)
    assert hooked.ended == ("completed", "mended")
    assert hooked.seen[-1] == "n_after {'out': 'mended'} None"
    assert hooked.journaled == ["recovered by after hooks.py:mend"]
    assert not hooked.run.info().failed_visits.count


@pytest.mark.conformance("CB-05")
def test_an_after_that_raises_fails_the_visit(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {after: ['hooks.py:spoil']}, retry: {max_attempts: 3}")
    status, error = hooked.ended
    assert (status, hooked.seen) == ("failed", ["work"])
    assert "spoilt" in (error or "")
    assert hooked.journaled == ["failed by after hooks.py:spoil"]


def test_an_error_callback_that_raises_changes_nothing(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {error: ['hooks.py:broken', 'hooks.py:n_error']}", fails=9)
    status, error = hooked.ended
    assert status == "failed"
    assert "no luck" in (error or "")
    assert hooked.seen[-1].startswith("n_error")


@pytest.mark.conformance("CB-10")
def test_a_callback_is_told_of_its_node(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "callbacks: {before: 'hooks.py:tell'}")
    info = NodeInfo("work", "function", "hooked", hooked.run.id, 1, 1, 1)
    assert hooked.seen[0] == str(info)


@pytest.mark.conformance("CA-10")
def test_what_after_made_is_cached_and_what_before_gave_is_not(tmp_path: Path) -> None:
    ran: list[str] = []

    class State(TypedDict, total=False):
        n: int
        out: str

    def work(state: State) -> dict[str, str]:
        ran.append("work")
        return {"out": "w"}

    def stop(state: State, info: NodeInfo) -> dict[str, str] | None:
        return {"out": "stopped"} if state["n"] == 0 else None

    def mark(state: State, info: NodeInfo, result: Any, error: str | None) -> dict[str, str]:
        return {"out": result["out"] + "+"}

    builder = StateGraph(State).add_node("work", work, cache_policy=CachePolicy(), before=stop, after=mark)
    graph = builder.add_edge(START, "work").compile(cache=InMemoryCache())
    outs = [graph.invoke({"n": n})["out"] for n in (0, 0, 1, 1)]
    assert (outs, ran) == (["stopped", "stopped", "w+", "w++"], ["work"])


def test_before_of_a_graph_in_python_changes_what_its_node_sees() -> None:
    seen: list[Any] = []

    class Texts(TypedDict, total=False):
        words: list[str]
        out: str

    def view(state: Texts, info: NodeInfo) -> None:
        state["words"].append("more")

    def note(state: Texts) -> dict[str, str]:
        seen.append(state["words"])
        return {"out": "noted"}

    graph = StateGraph(Texts).add_node("note", note, before=view).add_edge(START, "note").compile()
    assert graph.invoke({"words": ["one"]}) == {"words": ["one"], "out": "noted"}
    assert seen == [["one", "more"]]


class Words(TypedDict, total=False):
    word: str
    way: str


@pytest.mark.conformance("CB-08")
def test_callbacks_of_a_graph_in_python(tmp_path: Path) -> None:
    seen: list[str] = []

    def fails(state: Words) -> None:
        raise KeyError("gone")

    def mend(state: Words, info: NodeInfo, result: Any, error: str | None) -> Command[Any] | None:
        return Command(update={"word": "mended"}, goto="end") if error else None

    def note(state: Words, info: NodeInfo, error: str) -> None:
        seen.append(f"{info.node} {info.failures}")

    builder = StateGraph(Words)
    builder.add_node(
        "begin",
        fails,
        destinations=("end",),
        after=[None, mend],
        retry_policy=RetryPolicy(initial_interval=0.001, retry_on=KeyError),
    )
    builder.add_node("end", lambda state: {"way": state["word"]})
    graph = builder.add_edge(START, "begin").add_edge("end", END).compile(on_error=note)
    assert graph.invoke({}) == {"word": "mended", "way": "mended"}
    assert seen == ["begin 0", "begin 1", "begin 2"]


def test_an_error_of_a_callback_is_raised_by_invoke() -> None:
    def refuse(state: Words, info: NodeInfo) -> None:
        raise PermissionError("not allowed")

    graph = StateGraph(Words).add_node("a", lambda state: {}).add_edge(START, "a").compile(before=refuse)
    with pytest.raises(PermissionError, match="not allowed"):
        graph.invoke({})


def test_a_graph_as_a_node_has_no_callbacks() -> None:
    ran: list[str] = []
    below = StateGraph(Words).add_node("x", lambda state: {"word": "x"}).add_edge(START, "x").compile()
    builder = StateGraph(Words).add_node("below", below).add_edge(START, "below")
    assert builder.compile(before=lambda state, info: ran.append(info.node)).invoke({}) == {"word": "x"}
    assert ran == []
    with pytest.raises(GraphBuildError, match="Node `below` is a graph, which has no callbacks"):
        own = StateGraph(Words).add_node("below", below, before=lambda state, info: None)
        own.add_edge(START, "below").compile()
