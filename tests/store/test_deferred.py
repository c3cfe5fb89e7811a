"""Deferred nodes on a real Redis: kept with the run while others are left, and gone once they run."""

from __future__ import annotations

import json

from sleipnir.store.store import Store
from tests.store.test_loops import RUN, World

GRAPH = """
name: g
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [short, long]}
  short: {type: script, script: s.sh, next: last}
  long: {type: script, script: s.sh, next: longer}
  longer: {type: script, script: s.sh}
  last: {type: script, script: s.sh, defer: true}
"""


def test_a_deferred_node_is_kept_with_the_run_until_it_runs(store: Store) -> None:
    world = World(store, GRAPH)
    record = store.keys.of_run(RUN).run

    def does(node: str) -> None:
        [visit] = [visit for visit in world.visits("node") if visit.node == node]
        world.work(visit)

    does("short")
    does("long")
    assert json.loads(store._client.hget(record, "deferred")) == {"last": 2}
    assert dict(store.partitions.load([RUN])[RUN].deferred) == {"last": 2}
    assert [visit.node for visit in world.visits("node")] == ["longer"]
    does("longer")
    assert store._client.hget(record, "deferred") is None
    assert [visit.node for visit in world.visits("node")] == ["last"]
    does("last")
    assert store.runs.info(RUN).status == "completed"
