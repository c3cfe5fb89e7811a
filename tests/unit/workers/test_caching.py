"""The cache around an executor: what is kept, under which key, and that it never fails a visit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import StoreUnavailable
from sleipnir.graph.model import FunctionNode, Graph, LlmNode, NodeCache, RagNode, ScriptNode
from sleipnir.messages import CACHE_WAIT, InterruptQuestion, Send, SessionAddition, Usage, VisitResult
from sleipnir.runs.cached_results import CacheAnswer, CachePlace
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.memory_cache import MemoryCache
from sleipnir.settings import Settings
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.visits.caching import VisitCache
from tests.unit.workers.visits import visit
from tests.waiting import wait_until


class Counter:
    """An executor that counts its executions."""

    def __init__(self, result: Callable[[], VisitResult | None]) -> None:
        self.ran, self._result = 0, result

    def __call__(self) -> VisitResult | None:
        self.ran += 1
        return self._result()


def doubles() -> VisitResult:
    return VisitResult(True, {"out": {"deep": [1]}}, usage=Usage(calls=1), notes=("doubled",))


def of(
    folder: Path, state: Mapping[str, Any], cache: NodeCache | bool | None = True, node: Any = None, **fields: Any
) -> Execution:
    step = node or FunctionNode(id="step", call="f.py:step", cache=cache)
    return visit(step, folder, state=dict(state), **fields)


def user(cache: Any = None, **settings: Any) -> VisitCache:
    return VisitCache.in_process(cache or MemoryCache(), Settings(**settings))


@pytest.mark.parametrize(
    ("cache", "first", "second", "ran"),
    [
        (True, {"n": 1, "m": 2}, {"m": 2, "n": 1}, 1),
        (True, {"n": 1}, {"n": 1, "other": 0}, 2),
        (True, {"n": {"1": 2}}, {"n": {1: 2}}, 1),
        (True, {"n": 0.1}, {"n": 0.10000000000000001}, 1),
        (NodeCache(key=["n"]), {"n": 1}, {"n": 1, "other": 0}, 1),
        (NodeCache(key=["n"]), {"n": 1}, {}, 2),
        (NodeCache(key="{{n.id}}"), {"n": {"id": 7, "x": 1}}, {"n": {"id": 7, "x": 2}}, 1),
        (NodeCache(key="state.n % 2"), {"n": 3}, {"n": 5}, 1),
        (NodeCache(key="state.n % 2"), {"n": 3}, {"n": 4}, 2),
        (NodeCache(key="{'a': state.n, 'b': [state.m]}"), {"n": 3, "m": 1}, {"n": 3, "m": 1, "k": 1}, 1),
        (False, {"n": 1}, {"n": 1}, 2),
        (None, {"n": 1}, {"n": 1}, 2),
    ],
)
@pytest.mark.conformance("CA-04", "CA-09")
def test_visits_with_equal_keys_are_executed_once(
    tmp_path: Path, cache: NodeCache | bool | None, first: dict[str, Any], second: dict[str, Any], ran: int
) -> None:
    caching, run = user(), Counter(doubles)
    for state in (first, second):
        caching.result(of(tmp_path, state, cache), run)
    assert run.ran == ran


@pytest.mark.conformance("CA-06")
def test_a_hit_is_a_copy_that_has_cost_nothing_and_says_what_it_is(tmp_path: Path) -> None:
    caching, run = user(), Counter(doubles)
    made = caching.result(of(tmp_path, {"n": 1}), run)
    assert made is not None
    made.delta["out"]["deep"].append("changed")  # type: ignore[index]
    found = caching.result(of(tmp_path, {"n": 1}), run)
    assert found is not None
    assert (made.cache, found.cache, found.usage) == ("miss", "hit", None)
    assert found.delta == {"out": {"deep": [1]}}
    found.delta["out"]["deep"].append("changed")  # type: ignore[index]
    again = caching.result(of(tmp_path, {"n": 1}), run)
    assert again is not None
    assert again.delta == {"out": {"deep": [1]}}


def test_a_hit_leads_where_the_execution_led(tmp_path: Path) -> None:
    caching = user()
    made = VisitResult(True, {"a": 1}, next=("b", "c"), sends=(Send("d", {"x": [1]}),))
    caching.result(of(tmp_path, {}), lambda: made)
    found = caching.result(of(tmp_path, {}), lambda: None)
    assert found is not None
    assert (found.delta, found.next, found.sends) == (made.delta, made.next, made.sends)


QUESTION = InterruptQuestion("ask", "?")


@pytest.mark.parametrize(
    "result",
    [
        VisitResult(False, {"_error": "x"}, error="x", error_kind="exception"),
        VisitResult.asking(QUESTION),
        VisitResult(False, error="limit", error_kind="limit", later_ms=5),
        VisitResult(True, {"n": 1}, said=SessionAddition(({"role": "user"},))),
        VisitResult(True, {"_result": 1}, returns=True),
        VisitResult(True, {"n": float("nan")}),
        VisitResult(True, {"n": "x" * 3_000}),
        None,
    ],
)
@pytest.mark.conformance("CA-11")
def test_only_a_success_without_effects_is_kept(tmp_path: Path, result: VisitResult | None) -> None:
    caching, run = user(cache_entry_bytes=2_000), Counter(lambda: result)
    for _ in range(2):
        caching.result(of(tmp_path, {}), run)
    assert run.ran == 2
    assert caching.leases() == []


def test_an_execution_that_raises_lets_the_next_one_go_on(tmp_path: Path) -> None:
    caching = user()

    def crash() -> VisitResult:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        caching.result(of(tmp_path, {}), crash)
    run = Counter(doubles)
    caching.result(of(tmp_path, {}), run)
    assert run.ran == 1


def test_a_visit_that_has_got_an_answer_is_executed(tmp_path: Path) -> None:
    caching, run = user(), Counter(doubles)
    caching.result(of(tmp_path, {}), run)
    caching.result(of(tmp_path, {}, talk=StoredConversation("an answer", ())), run)
    assert run.ran == 2


@pytest.mark.conformance("CA-08")
@pytest.mark.parametrize(
    "cache", [NodeCache(key="{{gone}}"), NodeCache(key="state.gone"), NodeCache(key_func="f.py:gone")]
)
def test_without_a_key_a_visit_is_executed_and_says_why(tmp_path: Path, cache: NodeCache) -> None:
    (tmp_path / "f.py").write_text("def step(state): return {}\n")
    caching, run = user(), Counter(doubles)
    results = [caching.result(of(tmp_path, {"n": 1}, cache), run) for _ in range(2)]
    assert run.ran == 2
    assert all(each is not None and each.notes[-1].startswith("not cached: ") for each in results)


def test_a_function_makes_the_key(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def last(state): return str(state['n'])[-1].encode()\n")
    caching, run = user(), Counter(doubles)
    for number in (13, 23, 24):
        caching.result(of(tmp_path, {"n": number}, NodeCache(key_func="f.py:last")), run)
    assert run.ran == 2


@pytest.mark.conformance("CA-07")
def test_another_definition_version_variable_or_model_finds_nothing(tmp_path: Path) -> None:
    caching, run = user(), Counter(doubles)
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (FunctionNode(id="step", call="f.py:step", cache=True), {}),
        (FunctionNode(id="step", call="f.py:other", cache=True), {}),
        (FunctionNode(id="step", call="f.py:step", cache=NodeCache(version="2")), {}),
        (FunctionNode(id="step", call="f.py:step", cache=True), {"variables": {"tenant": "a"}}),
        (FunctionNode(id="step", call="f.py:step", next="b", cache=True), {}),
        (ScriptNode(id="step", script="a.sh", cache=True), {}),
        (LlmNode(id="step", prompt="x", cache=True), {}),
        (LlmNode(id="step", prompt="x", cache=True), {"graph": {"model": "a:b"}}),
        (RagNode(id="step", documents=["a"], query="x", cache=True), {}),
        (RagNode(id="step", documents=["a"], query="x", cache=True), {"knowledge": "d2"}),
    ]
    for _ in range(2):
        for node, more in kinds:
            caching.result(of(tmp_path, {}, node=node, **more), run)
    assert run.ran == len(kinds)
    quiet = FunctionNode(id="step", call="f.py:step", timeout=9, description="d", cache=NodeCache(ttl=5_000_000))
    caching.result(of(tmp_path, {}, node=quiet), run)
    assert run.ran == len(kinds), "no result depends on these"


def test_the_key_of_a_model_is_what_its_prompt_reads(tmp_path: Path) -> None:
    node = LlmNode(id="step", prompt="about {{topic}}", cache=True)
    caching, run = user(), Counter(doubles)
    for state in ({"topic": "a", "n": 1}, {"topic": "a", "n": 2}, {"topic": "b", "n": 2}):
        caching.result(of(tmp_path, state, node=node), run)
    assert run.ran == 2


def test_the_cache_of_the_graph_passes_over_nodes_whose_work_must_happen() -> None:
    once = FunctionNode(id="once", call="f.py:x", effect="once")
    tools = LlmNode(id="tools", prompt="x", tools=["fetch"])
    plain = FunctionNode(id="plain", call="f.py:x")
    never = FunctionNode(id="never", call="f.py:x", cache=False)
    nodes = {node.id: node for node in (once, tools, plain, never)}
    graph = Graph(name="g", start="plain", nodes=nodes, cache=NodeCache(ttl=1))
    assert {name: graph.cache_of(node) for name, node in nodes.items()} == {
        "once": None, "tools": None, "plain": NodeCache(ttl=1), "never": None,
    }  # fmt: skip


def test_visits_at_once_wait_for_the_one_that_is_executed(tmp_path: Path) -> None:
    caching, begun, go_on = user(), threading.Event(), threading.Event()

    def slow() -> VisitResult:
        begun.set()
        assert go_on.wait(30)
        return doubles()

    run, results = Counter(slow), list[VisitResult | None]()
    threads = [
        threading.Thread(target=lambda: results.append(caching.result(of(tmp_path, {"n": 1}), run))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert run.ran == 1
    assert sorted(each.cache or "" for each in results if each) == ["hit"] * 7 + ["miss"]


def test_on_the_fleet_a_visit_is_put_off_after_a_short_wait(tmp_path: Path) -> None:
    cache = MemoryCache()
    holder, waiting = user(cache), VisitCache(cache, lambda: "w", 2**20, wait_s=0.01)
    put_off: list[VisitResult | None] = []

    def slow() -> VisitResult:
        put_off.append(waiting.result(of(tmp_path, {"n": 1}), doubles))
        return doubles()

    holder.result(of(tmp_path, {"n": 1}), slow)
    [later] = put_off
    assert later is not None
    assert (later.ok, later.error_kind) == (False, CACHE_WAIT)
    assert later.later_ms is not None
    assert 200 < later.later_ms - cache.now_ms() < 1_000


def test_a_visit_that_is_lost_while_it_waits_ends(tmp_path: Path) -> None:
    caching, lost, results = user(), threading.Event(), list[VisitResult | None]()
    release = threading.Event()

    def slow() -> VisitResult:
        assert release.wait(30)
        return doubles()

    first = threading.Thread(target=lambda: caching.result(of(tmp_path, {}), slow))
    first.start()
    wait_until(lambda: len(caching.leases()) == 1, "one is executed")
    second = threading.Thread(target=lambda: results.append(caching.result(of(tmp_path, {}, lost=lost), doubles)))
    second.start()
    lost.set()
    second.join(30)
    assert results == [None]
    release.set()
    first.join(30)


class Broken(MemoryCache):
    """Raises in some of its methods."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = broken

    def take(self, place: CachePlace, token: str, *, fresh: bool = False) -> CacheAnswer:
        self._check("take")
        return super().take(place, token, fresh=fresh)

    def put(self, *args: Any) -> bool:
        self._check("put")
        return super().put(*args)

    def release(self, lease: Any) -> None:
        self._check("release")
        super().release(lease)

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise StoreUnavailable("redis://gone")


@pytest.mark.parametrize("broken", [("take",), ("put",), ("put", "release"), ("take", "put", "release")])
def test_a_cache_that_is_away_fails_no_visit(tmp_path: Path, broken: tuple[str, ...]) -> None:
    caching, run = user(Broken(*broken)), Counter(doubles)
    result = caching.result(of(tmp_path, {"n": 1}), run)
    assert result is not None
    assert (result.ok, run.ran) == (True, 1)


def test_a_result_in_memory_dies_with_its_time_to_live(tmp_path: Path) -> None:
    now = [1_000]
    caching, run = user(MemoryCache(lambda: now[0])), Counter(doubles)
    for at_ms in (1_000, 1_499, 1_500):
        now[0] = at_ms
        caching.result(of(tmp_path, {}, NodeCache(ttl=500)), run)
    assert run.ran == 2
