"""Batches on real processes: every row has exactly one result, whoever dies, and people steer them meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.chaos import verdict
from sleipnir.batches.records import RowResult
from sleipnir.batches.rows import BadRow, read
from sleipnir.client.batch import Batch
from sleipnir.client.client import Client
from tests.processes import RedisServer, Stack, wait_until, write_agent

TWO_KINDS = """
name: two-kinds
version: sleipnir/1
start: check
state: {n: {type: int}}
nodes:
  check: {type: script, script: check.sh, next: double}
  double: {type: function, call: "steps.py:double"}
  done: {type: end, output: "{{initial_prompt}}: {{twice}}"}
"""
CHECK = r"""
n=${GRAPH_STATE##*\"n\":}; n=${n# }; n=${n%%[!0-9]*}
echo $n >> FOLDER/ran
echo '{}'
"""
DOUBLE = """
from pathlib import Path

def double(state):
    if state["n"] % 100 == 99 and not Path("FOLDER/mended").exists():
        raise ValueError("the row is broken")
    return {"twice": state["n"] * 2, "_next": "done"}
"""
ASKS = """
name: asks
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: done}
  done: {type: end}
"""
AT_ONCE = """
name: at-once
start: done
nodes:
  done: {type: end, output: "{{initial_prompt}}"}
"""


@pytest.fixture
def fleet(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    prefix = f"batches-{request.node.name[:20]}"
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, batch_window=12) as stack:
        stack.start_scheduler("scheduler-1")
        yield stack


def by_key(batch: Batch) -> dict[str, RowResult]:
    results = list(batch.results())
    assert len({result.key for result in results}) == len(results)
    return {result.key: result for result in results}


def test_every_row_has_exactly_one_result_though_a_worker_and_the_scheduler_die(fleet: Stack, tmp_path: Path) -> None:
    check, double = (text.replace("FOLDER", str(tmp_path)) for text in (CHECK, DOUBLE))
    agent = write_agent(tmp_path / "two-kinds", TWO_KINDS, check_sh=check, steps_py=double)
    rows = tmp_path / "rows.csv"
    rows.write_text("prompt,n\n" + "".join(f"row {n},{n}\n" for n in range(300)) + "row x,x\n")
    fleet.start_worker("worker-1")
    with fleet.client() as client:
        bad: list[BadRow] = []
        batch = client.batch(agent, read(rows, "n"), key="n", name="all", id="all", on_bad=bad.append)
        assert (batch.submitted and batch.submitted.added, [row.place for row in bad]) == (300, [f"{rows}:302"])
        wait_until(lambda: batch.info().completed >= 10, f"rows end\n{fleet.log('scheduler-1')[-5000:]}")
        batch.pause()
        wait_until(lambda: not batch.info().active, "what was under way ends")
        at_rest = batch.info()
        assert (at_rest.state, at_rest.waiting + at_rest.ended) == ("paused", 300)
        batch.set_parallel(3)
        batch.resume()
        wait_until(lambda: batch.info().completed >= at_rest.completed + 10, "it goes on")
        fleet.kill("worker-1")
        fleet.kill("scheduler-1")
        assert batch.info().active <= 3
        batch.set_parallel(None)
        fleet.start_scheduler("scheduler-2")
        fleet.start_worker("worker-2")
        again = client.batch(agent, read(rows, "n"), id="all")
        assert (again.submitted and again.submitted.added, again.submitted and again.submitted.known) == (0, 300)
        info = batch.wait(120)
        assert (info.state, info.completed, info.failed) == ("done", 297, 3)
        [group] = batch.errors()
        assert (group.node, set(group.keys)) == ("double", {"99", "199", "299"})
        assert "the row is broken" in group.message
        (tmp_path / "mended").touch()
        assert batch.retry_failed() == 3
        assert batch.wait(60).completed == 300
        results = by_key(batch)
        assert {key: result.output for key, result in results.items()} == {
            str(n): f"row {n}: {2 * n}" for n in range(300)
        }
        assert {result.row for result in batch.results("done", follow=True)} == set(range(300))
        for n in ("0", "150", "299"):
            run = client.run(results[n].run)
            assert list(verdict.of_journal(client, run, run.history())) == []
        ran = Counter((tmp_path / "ran").read_text().split())
        assert set(ran) == {str(n) for n in range(300)}
        assert sum(ran.values()) <= 300 + 2  # those that the dead worker had run again
        assert list(verdict.leaks(client, client.store._client)) == []


def test_a_cancelled_batch_leaves_nothing_under_way(fleet: Stack, tmp_path: Path) -> None:
    with fleet.client() as client:
        batch = client.batch(write_agent(tmp_path / "asks", ASKS), ({"prompt": str(n)} for n in range(40)), parallel=30)
        wait_until(lambda: len(client.gates()) == 30, "thirty rows ask, which takes no slot of the window")
        batch.cancel()
        info = batch.wait(60)
        assert (info.state, info.cancelled) == ("cancelled", 40)
        assert client.gates() == []
        assert list(verdict.leaks(client, client.store._client)) == []


def test_batches_progress_in_proportion_to_their_priorities(fleet: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "at-once", AT_ONCE)

    def submit(client: Client, priority: int) -> Batch:
        return client.batch(agent, ({"prompt": str(n)} for n in range(150)), priority=priority)

    with fleet.client() as client:
        client.pause_all("test")
        wait_until(lambda: client.held(), "nothing starts")
        first, second = submit(client, 3), submit(client, 1)
        client.resume_all()
        for batch in (first, second):
            batch.wait(60)
        ends, others = (
            [client.store.runs.info(batch.run_id(row)).ended_ms or 0 for row in range(150)] for batch in (first, second)
        )
        before = sum(at_ms <= max(ends) for at_ms in others)
        assert 35 <= before <= 70, f"{before} rows of the second batch ended while 150 of the first did"
