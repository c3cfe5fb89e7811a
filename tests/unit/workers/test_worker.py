"""One visit from claim to delivery, with a store that keeps what it is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sleipnir.graph.model import Branch, FunctionNode, Graph, LlmNode, MapNode, Node, StateField
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.memory_cache import MemoryCache
from sleipnir.runs.run import RunSpec
from sleipnir.runs.visits import Item
from sleipnir.settings import Settings
from sleipnir_workers.consumer.drain import Drain
from sleipnir_workers.visits.caching import VisitCache
from sleipnir_workers.visits.claim import Worker
from tests.unit.workers.visits import EXECUTORS, script

assert EXECUTORS

STEPS = """
kept = []
def count(state): return {"n": state["n"] + 1, "_next": "b"}
def keep(state):
    kept.append({"deep": []})
    return {"kept": kept[-1]}
def change(state):
    kept[-1]["deep"].append(1)
def pick(state): return "low" if state["n"] < 5 else "high"
def add(current, incoming): return (current or 0) + incoming
def double(state): return {"output": state["one"] * 2, "rest": 1}
"""


NOBODY = cast(Any, None)
"""A function tells nobody what a model says, and needs no permit."""


@dataclass
class Redis:
    """Stands for the store of a worker: what it was asked for, and what was delivered."""

    state: Mapping[str, Any]
    overlay: Mapping[str, Any] = field(default_factory=dict)
    item: Item | None = None
    wanted: list[Collection[str] | None] = field(default_factory=list)
    headers: list[ResultHeader] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    spec: RunSpec = field(default_factory=lambda: RunSpec("triage", "digest"))
    handed_back: list[str] = field(default_factory=list)

    @property
    def visits(self) -> Redis:
        return self

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        yield

    def claim(self, call: VisitCall, *, wanted: Collection[str] | None, **_: Any) -> Claim:
        self.wanted.append(wanted)
        read = {key: value for key, value in self.state.items() if wanted is None or key in wanted} | dict(self.overlay)
        texts = {key: json.dumps(value) for key, value in read.items()}
        return Claim(self.spec, 1, texts, self.item)

    def hand_back(self, call: VisitCall, *, reason: str, **_: Any) -> bool:
        self.handed_back.append(reason)
        return True

    def deliver(self, call: VisitCall, header: ResultHeader, values: Mapping[str, str], **_: Any) -> bool:
        self.headers.append(ResultHeader.from_json(json.loads(json.dumps(header.to_json()))))
        self.values.append({key: json.loads(text) for key, text in values.items()})
        return True


def run(folder: Path, redis: Redis, *nodes: Node, **fields: Any) -> dict[str, Any]:
    """Run a visit to the first of these nodes. Returns the summary for Flower."""
    (folder / "steps.py").write_text(STEPS)
    graph = Graph(name="g", start=nodes[0].id, nodes={node.id: node for node in nodes}, **fields.pop("graph", {}))
    unpacked = SimpleNamespace(graph=graph, folder=folder)
    bundles = SimpleNamespace(get=lambda *_, **__: unpacked, used=lambda _: nullcontext())
    heartbeat = SimpleNamespace(hold=lambda *_: None, release=lambda *_: None)
    worker = Worker(
        "w",
        Settings(),
        cast(Any, redis),
        cast(Any, bundles),
        cast(Any, heartbeat),
        Drain(),
        NOBODY,
        NOBODY,
        VisitCache.in_process(MemoryCache(), Settings()),
    )
    return worker.run(VisitCall(run="r1", node=nodes[0].id, seq=7, attempt=1, agent="g", bundle="d", **fields))


def function(name: str, **fields: Any) -> FunctionNode:
    return FunctionNode(id=name, call=f"steps.py:{name}", **fields)


def test_a_visit_reads_the_state_and_delivers_what_it_wrote(tmp_path: Path) -> None:
    redis = Redis({"n": 1})
    summary = run(tmp_path, redis, function("count"))
    assert (redis.wanted, redis.values, redis.headers[0].next) == ([None], [{"n": 2}], "b")
    assert summary == {"keys": ["n"], "next": "b", "ok": True}


def test_values_of_the_visits_own_overlay_come_before_those_of_the_state(tmp_path: Path) -> None:
    redis = Redis({"n": 1}, overlay={"n": 10})
    run(tmp_path, redis, function("count"))
    assert redis.values == [{"n": 11}]


@pytest.mark.conformance("ST-09")
def test_a_function_that_changes_later_what_it_returned_changes_nothing(tmp_path: Path) -> None:
    redis = Redis({})
    run(tmp_path, redis, function("keep"))
    run(tmp_path, redis, function("change"))
    assert redis.values == [{"kept": {"deep": []}}, {}]


@pytest.mark.conformance("RT-01")
@pytest.mark.parametrize(("n", "label"), [(1, "low"), (7, "high")])
def test_a_branch_visit_reads_the_whole_state_and_delivers_a_label(tmp_path: Path, n: int, label: str) -> None:
    redis = Redis({"n": n, "text": "x"})
    node = LlmNode(id="draft", prompt="{{text}}", branch=Branch(call="steps.py:pick"))
    run(tmp_path, redis, node, role="branch")
    assert (redis.wanted, redis.values, redis.headers[0].next) == ([None], [{}], label)


def test_a_reduce_visit_reads_its_overlay_alone_and_delivers_the_folded_values(tmp_path: Path) -> None:
    redis = Redis({"n": 1, "sum": 5}, overlay={"sum": {"current": 3, "incoming": [4, 5]}})
    graph = {"state": {"sum": StateField(reducer="steps.py:add")}}
    run(tmp_path, redis, function("count"), role="reduce", graph=graph)
    assert (redis.wanted, redis.values, redis.headers[0].keys) == ([()], [{"sum": 12}], ("sum",))


def test_a_visit_for_an_item_delivers_its_result_alone(tmp_path: Path) -> None:
    redis = Redis({"n": 1}, overlay={"one": 4}, item=Item(map=3, index=0, of="each"))
    each = MapNode(id="each", over="{{all}}", item="one", body=["double"], collect_into="results")
    run(tmp_path, redis, function("double"), each)
    assert redis.values == [{"output": 8}]


def test_a_claim_that_is_for_no_map_of_the_graph_is_a_failure(tmp_path: Path) -> None:
    redis = Redis({}, overlay={"one": 4}, item=Item(map=3, index=0, of="gone"))
    run(tmp_path, redis, function("double"))
    assert redis.headers[0].error == "'gone' is not a map node of this graph, so it has no items"


def test_a_visit_whose_directory_is_not_here_is_handed_back_and_the_queue_is_served_on(tmp_path: Path) -> None:
    """Finding U6 of the second review."""
    redis = Redis({}, spec=RunSpec("triage", "digest", cwd=str(tmp_path / "gone")))
    summary = run(tmp_path, redis, script(tmp_path, "a.sh", "echo {}"))
    assert (redis.handed_back, summary) == (["directory"], {"later": "handed back: directory"})
    assert redis.headers == []
