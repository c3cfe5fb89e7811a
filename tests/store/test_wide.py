"""Very wide runs on a real Redis: commits of bounded size, and the same end as a narrow run has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.messages import OVERLAY_END, OVERLAYS, ResultHeader, VisitCall, overlay_text
from sleipnir.runs.claims import Claim
from sleipnir.runs.run import RunSpec, changed
from sleipnir.runs.views import Reason
from sleipnir.runs.visits import Fan, Visit
from sleipnir.store.partitions import commits
from sleipnir.store.store import Store
from sleipnir.store.visit_records import visit_text
from sleipnir_scheduler.planner.engines.steps import WIDE
from sleipnir_scheduler.planner.nodes.maps import CHUNK
from sleipnir_scheduler.services.advance import Advance
from tests.store.test_advance import advance_of

RUN = "run000000001"
MAP = """
name: g
start: fan
settings: {max_concurrency: 100}
nodes:
  fan: {type: map, over: "{{items}}", as: item, branch: work, collect_into: results, next: done}
  work: {type: function, call: "f.py:work"}
  done: {type: end, output: done}
"""


def commits_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arguments each commit from now on has."""
    counts: list[int] = []
    sending_batch = commits.sending_batch

    def counting(client: Any, script: Any, vectors: Any) -> Any:
        counts.extend(len(vector) for vector in vectors)
        return sending_batch(client, script, vectors)

    monkeypatch.setattr(commits, "sending_batch", counting)
    return counts


def finish(advance: Advance) -> None:
    while advance.run_once() > 0:
        pass


def frontier_of(store: Store) -> dict[int, Visit]:
    return dict(store.partitions.load([RUN])[RUN].frontier)


def test_a_map_of_fifty_thousand_items_is_opened_and_collected_by_commits_of_bounded_size(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C2 of the second review."""
    total = 50_000
    store.runs.create(RUN, RunSpec("agent", "digest"), {"items": list(range(total))})
    sizes = commits_of(monkeypatch)
    advance = advance_of(store, MAP)
    finish(advance)
    most_ended(store, total, total - CHUNK)
    advance = advance_of(store, MAP)
    finish(advance)
    while queued := [visit for visit in frontier_of(store).values() if visit.state == "queued"]:
        for visit in queued:
            item = works(store, visit, output=visit.item and visit.item.index)["item"]
            assert visit.item is not None and item == visit.item.index
        finish(advance)
    assert store.partitions.load([RUN])[RUN].status == "completed"
    text = store.partitions._client.hget(store.keys.of_run(RUN).state, "results")
    assert json.loads(str(text)) == list(range(total))
    assert max(sizes) < 3 * CHUNK, "a text for each item that is put aside, and for each visit that opens"
    assert store.partitions._client.hlen(store.keys.of_run(RUN).items) == 0


@pytest.mark.parametrize("total", [1, 3, CHUNK, CHUNK + 1])
def test_a_map_of_any_size_leaves_its_results_in_order(store: Store, total: int) -> None:
    """A map that is not collected in pieces says so without the number 0, which Lua takes for true."""
    store.runs.create(RUN, RunSpec("agent", "digest"), {"items": list(range(total))})
    advance = advance_of(store, MAP)
    finish(advance)
    while queued := [visit for visit in frontier_of(store).values() if visit.state == "queued"]:
        for visit in queued:
            works(store, visit, output=visit.item and visit.item.index)
        finish(advance)
    view = store.partitions.load([RUN])[RUN]
    assert (view.status, view.step) == ("completed", total + 2)
    text = store.partitions._client.hget(store.keys.of_run(RUN).state, "results")
    assert json.loads(str(text)) == list(range(total))


def most_ended(store: Store, total: int, done: int) -> None:
    """Leave a map that has begun as it is when `done` of its items have ended."""
    client, keys = store.partitions._client, store.keys.of_run(RUN)
    visits = store.partitions.load([RUN])[RUN].frontier
    of = next(visit for visit in visits.values() if isinstance(visit.body, Fan))
    pipe = client.pipeline(transaction=False)
    for visit in visits.values():
        if visit.item:
            pipe.hdel(keys.frontier, str(visit.seq))
    pipe.hset(
        keys.frontier, str(of.seq), visit_text(changed(of, body=changed(of.body, next=done, done=done, put=done)))
    )
    for first in range(0, done, CHUNK):
        pipe.hdel(keys.items, f"{of.seq}.chunk.{first}")
    pipe.hset(keys.items, mapping={f"{of.seq}.{n}": str(n) for n in range(done)})
    pipe.xadd(store.keys.of_partition(store.keys.partition_of(RUN)).inbox, {"t": "continued", "run": RUN})
    pipe.execute()


FAN = """
name: g
version: sleipnir/1
start: plan
settings: {max_concurrency: 2}
state: {results: {type: list, reducer: append}}
nodes:
  plan: {type: function, call: "f.py:plan"}
  work: {type: function, call: "f.py:work", next: done}
  done: {type: end, output: "{{results}}"}
"""


def works(store: Store, visit: Visit, sends: list[dict[str, Any]] | None = None, **delta: Any) -> dict[str, Any]:
    """A worker claims the visit and delivers; the values that it saw."""
    call = VisitCall(RUN, visit.node, visit.seq, visit.attempt, "agent", "digest")
    claim = store.visits.claim(call, worker="w", token="t", lease_ms=60_000, wanted=[])
    assert isinstance(claim, Claim)
    values = {key: json.dumps(value) for key, value in delta.items()}
    if sends is not None:
        overlays = (overlay_text({key: json.dumps(value) for key, value in each.items()}) for each in sends)
        values[OVERLAYS] = OVERLAY_END.join(overlays)
    targets = None if sends is None else ("work",) * len(sends)
    header = ResultHeader(ok=True, keys=tuple(delta), sends=targets)
    assert store.visits.deliver(call, header, values, worker="w", token="t")
    return {key: json.loads(text) for key, text in claim.state.items()}


def test_each_of_many_commands_runs_once_with_its_own_values(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings C2 and C22 of the second review."""
    width = 4 * WIDE
    store.runs.create(RUN, RunSpec("agent", "digest"), {"results": []})
    advance = advance_of(store, FAN)
    finish(advance)
    [plan] = frontier_of(store).values()
    works(store, plan, sends=[{"n": n} for n in range(width)])
    sizes = commits_of(monkeypatch)
    finish(advance)
    told = [visit for visit in store.runs.info(RUN).visits if visit.node == "plan"]
    assert [visit.reason for visit in told] == [Reason("commands", progress=(WIDE, width))]
    assert store.runs.gates(RUN) == []
    seen: list[int] = []
    while queued := [visit for visit in frontier_of(store).values() if visit.state == "queued"]:
        for visit in queued[::-1]:
            seen.append(works(store, visit)["n"])
        finish(advance)
    assert sorted(seen) == list(range(width))
    assert store.partitions.load([RUN])[RUN].status == "completed"
    assert max(sizes) < 8 * WIDE


def test_the_visits_of_a_wide_step_leave_redis_with_one_command(own_store: Store) -> None:
    """Finding C22 of the second review: deleting 10,000 fields of two hashes kept Redis for 20 ms."""
    width = 1_100
    text = FAN.replace("start: plan", "start: plan\nengine: bsp").replace("max_concurrency: 2", "max_concurrency: 1000")
    text = text.replace('done: {type: end, output: "{{results}}"}', 'done: {type: function, call: "f.py:done"}')
    own_store.runs.create(RUN, RunSpec("agent", "digest"), {"results": []})
    advance = advance_of(own_store, text)
    finish(advance)
    [plan] = frontier_of(own_store).values()
    works(own_store, plan, sends=[{"n": n} for n in range(width)])
    finish(advance)
    while len(queued := [visit for visit in frontier_of(own_store).values() if visit.state == "queued"]) > 1:
        for visit in queued[1:]:
            works(own_store, visit, results=visit.seq)
        finish(advance)
    client, keys = own_store.partitions._client, own_store.keys.of_run(RUN)
    before = unlinked(own_store)
    works(own_store, queued[0], results=queued[0].seq)
    finish(advance)
    assert unlinked(own_store) == before + 1
    assert [visit.node for visit in frontier_of(own_store).values()] == ["done"]
    assert (client.hlen(keys.frontier), client.hlen(keys.claims)) == (1, 0)
    assert len(json.loads(str(client.hget(keys.state, "results")))) == width


def unlinked(store: Store) -> int:
    """How often UNLINK was called, also by scripts."""
    stats = store.partitions._client.info("commandstats")
    return int(stats.get("cmdstat_unlink", {"calls": 0})["calls"])
