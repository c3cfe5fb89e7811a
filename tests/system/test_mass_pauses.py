"""`pause --all` and `resume --all` with options that choose runs, and the pause of a batch with its active rows."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.client.mass_requests import SteeredRuns
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

WAITS = """
version: sleipnir/1
name: NAME
start: ask
nodes:
  ask: {type: input, question: "Go on?", next: last}
  last: {type: function, call: "f.py:last", next: done}
  done: {type: end, output: over}
"""
HANGS = """
version: sleipnir/1
name: hangs
start: slow
nodes:
  slow: {type: script, script: slow.sh, timeout: 600, next: done}
  done: {type: end, output: over}
"""
SLOW = """
echo x >> FOLDER/began
[ -e FOLDER/may_end ] || sleep 600
echo '{}'
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    for name in ("waits", "others"):
        write_agent(tmp_path / "agents" / name, WAITS.replace("NAME", name), f_py="def last(state): return {}\n")
    write_agent(tmp_path / "agents" / "hangs", HANGS, slow_sh=SLOW.replace("FOLDER", str(tmp_path)))
    prefix = request.node.name[:30]
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=tmp_path / "agents") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def asking(client: Client, agent: str, count: int) -> list[Run]:
    runs = [client.submit(agent, "hi") for _ in range(count)]
    wait_until(lambda: all(run.status == "waiting" for run in runs), "they ask")
    return runs


def statuses(runs: list[Run]) -> Counter[str]:
    return Counter(run.status for run in runs)


def test_all_runs_that_are_chosen_are_paused_and_resumed_and_no_others(own: Stack) -> None:
    with own.client() as client:
        mine, others = asking(client, "waits", 5), asking(client, "others", 2)
        mine[0].answer("x")
        mine[0].wait(60)
        mine[1].pause(reason="by hand")
        wait_until(lambda: mine[1].status == "paused", "one is paused")
        done = json.loads(own.sleipnir("pause", "--all", "--agent", "waits", "--reason", "incident", "--json").stdout)
        assert done == {"requested": 4, "left": 0}
        wait_until(lambda: statuses(mine) == {"completed": 1, "paused": 4}, "the others are paused")
        assert statuses(others) == {"waiting": 2}
        assert [mine[1].info().holds[0].reason, mine[2].info().holds[0].reason] == ["by hand", "incident"]
        assert "4 runs are being paused" in said(own.sleipnir("pause", "--all", "--agent", "waits")), "safe to repeat"
        assert "no such runs" in said(own.sleipnir("pause", "--all", "--agent", "nobody"))
        assert client.resume_runs(agents=["others"]) == SteeredRuns()
        assert "4 runs are resumed" in said(own.sleipnir("resume", "--all", "--since", "1h"))
        wait_until(lambda: statuses(mine) == {"completed": 1, "waiting": 4}, "they wait again")
        pages: list[SteeredRuns] = []
        assert client.pause_runs({"waiting"}, since_ms=client.now_ms(), on_progress=pages.append) == SteeredRuns()
        assert client.pause_runs({"waiting"}, on_progress=pages.append) == SteeredRuns(6)
        assert pages == [SteeredRuns(6)]


def test_without_options_all_means_the_deployment(own: Stack) -> None:
    assert json.loads(own.sleipnir("pause", "--all", "--json").stdout)["deployment"] == "paused"
    assert json.loads(own.sleipnir("resume", "--all", "--json").stdout) == {"deployment": "resumed", "was_paused": True}
    for words in (["pause"], ["pause", "--agent", "waits", "abcdef"], ["resume", "--json", "abcdef"]):
        assert own.sleipnir(*words).returncode == 2
    both = own.sleipnir("pause", "--all", "--batch", "b", "--children")
    assert both.returncode == 2 and "omit --children" in both.stderr


def test_a_batch_pauses_with_its_active_rows_and_goes_on_with_them(own: Stack, tmp_path: Path) -> None:
    with own.client() as client:
        batch = client.batch("hangs", ({"prompt": str(n)} for n in range(6)), parallel=3)
        wait_until(lambda: batch.info().active == 3 and (tmp_path / "began").exists(), "rows are active")
        runs = [client.run(batch.run_id(row)) for row in range(3)]
        wait_until(lambda: len((tmp_path / "began").read_text().split()) >= 1, "one runs")
        runs[2].pause(reason="mine")
        wait_until(lambda: runs[2].status == "paused", "a person pauses a row")
        done = json.loads(own.sleipnir("batch", "pause", batch.id, "--timeout", "1s", "--json").stdout)
        assert done == {"batch": batch.id, "active": 3, "paused_rows": 3}
        wait_until(lambda: statuses(runs) == {"paused": 3}, "the rows are paused")
        wait_until(lambda: not any(visit.worker for run in runs for visit in run.info().visits), "what ran is stopped")
        assert batch.info().state == "paused" and batch.info().active == 3
        (tmp_path / "may_end").touch()
        batch.pause()
        said(own.sleipnir("batch", "resume", batch.id))
        wait_until(lambda: batch.info().completed == 5, "all but the row of the person end")
        assert (runs[2].status, batch.info().failed) == ("paused", 0)
        runs[2].resume()
        assert batch.wait(60).completed == 6
        with pytest.raises(UsageError, match="number of seconds"):
            batch.pause(timeout=-1)
