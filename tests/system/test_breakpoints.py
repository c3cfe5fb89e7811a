"""Breakpoints on a real scheduler, real workers and a real Redis, with kills while runs stand at them."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from sleipnir.failpoints import VARIABLE
from tests.processes import RedisServer, Stack, wait_until, write_agent

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

FORKED = """
name: forked
version: sleipnir/1
engine: ENGINE
start: root
state: {log: {type: list, reducer: append}}
interrupt_after: [c]
nodes:
  root: {type: function, call: "f.py:root", next: [b, c]}
  b: {type: function, call: "f.py:b", interrupt: before, next: last}
  c: {type: function, call: "f.py:c", interrupt: before, next: last}
  last: {type: function, call: "f.py:last", wait_for: [b, c]}
"""
FUNCTIONS = "".join(
    f"""
def {node}(state):
    with open({{ran!r}}, "a") as file:
        file.write("{node} ")
    return {{{{"log": ["{node}"]}}}}
"""
    for node in ("root", "b", "c", "last")
)


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    prefix = request.node.name.replace("[", "-").replace("]", "")
    settings = {"owner_ttl_s": 0.5, "lease_s": 6.0, "agents_dir": tmp_path / "agents"}
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, **settings) as stack:
        yield stack


def forked(folder: Path, engine: str = "bsp") -> Path:
    functions = FUNCTIONS.format(ran=str(folder / "ran"))
    return write_agent(folder / "agents" / "forked", FORKED.replace("ENGINE", engine), f_py=functions)


def ran(folder: Path) -> Counter[str]:
    return Counter((folder / "ran").read_text().split())


def wait_for_stop(run: Run, phase: str, *nodes: str) -> None:
    def stands() -> bool:
        info = run.info()
        points = [(point.phase, point.nodes) for point in info.breakpoints]
        return info.status == "paused" and points == [(phase, nodes)] and not is_working(run)

    wait_until(stands, f"the run stops {phase} {nodes}: {run.info()}")


def is_working(run: Run) -> bool:
    return any(visit.state in ("started", "delivered") for visit in run.info().visits)


@both
@pytest.mark.conformance("SI-01", "SI-04")
def test_a_run_at_a_breakpoint_survives_kills_of_everything_and_passes_once(
    own: Stack, tmp_path: Path, engine: str
) -> None:
    own.start_scheduler("first")
    own.start_worker("worker")
    with own.client() as client:
        run = client.submit(forked(tmp_path, engine))
        wait_for_stop(run, "before", "b", "c")
        own.kill("first")
        own.kill("worker")
        own.start_scheduler("second")
        own.start_worker("other")
        assert (run.status, ran(tmp_path)) == ("paused", {"root": 1})
        own.kill("second")
        run.resume()
        own.start_scheduler("victim", env={VARIABLE: "commit.after=kill@1"})
        victim = own.processes.pop("victim")
        wait_until(lambda: victim.poll() is not None, f"it dies with the resumption\n{own.log('victim')}")
        assert victim.returncode == -signal.SIGKILL
        own.start_scheduler("third")
        wait_for_stop(run, "after", "c")
        assert ran(tmp_path) == {"root": 1, "b": 1, "c": 1}
        own.kill("third")
        run.resume()
        own.start_scheduler("fourth")
        assert run.wait(60).status == "completed", run.error
        assert ran(tmp_path) == {"root": 1, "b": 1, "c": 1, "last": 1}
        assert [step.kind for step in run.history() if step.seq is None] == ["submitted", *["paused", "resumed"] * 2]


@both
@pytest.mark.parametrize("side", ["before", "after"])
def test_the_scheduler_is_killed_when_the_run_comes_to_its_breakpoint(
    own: Stack, tmp_path: Path, side: str, engine: str
) -> None:
    own.start_worker()
    own.start_scheduler("victim", env={VARIABLE: f"commit.{side}=kill@2"})
    with own.client() as client:
        run = client.submit(forked(tmp_path, engine), interrupt_after=["last"])
        victim = own.processes.pop("victim")
        wait_until(lambda: victim.poll() is not None, f"the scheduler dies\n{own.log('victim')}")
        own.start_scheduler("second")
        wait_for_stop(run, "before", "b", "c")
        assert ran(tmp_path) == {"root": 1}
        run.resume()
        wait_for_stop(run, "after", "last")
        run.resume()
        assert run.wait(60).status == "completed", run.error
        assert run.state()["log"] == ["root", "b", "c", "last"]


def test_breakpoints_of_one_submission_are_shown_and_passed_on_the_command_line(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler()
    own.start_worker()
    agent = forked(tmp_path)
    refused = own.sleipnir("submit", str(agent), "--break-before", "lst")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Interrupt node `lst` not found" in refused.stderr
    stopped = own.sleipnir("run", str(agent), "--break-before", "last", "--break-after", "last")
    assert stopped.returncode == 3, stopped.stderr
    assert "▸ stopped before 'last'; next: 'last'" in stopped.stderr
    with own.client() as client:
        [info] = client.runs()
        assert f"sleipnir resume {info.id}" in stopped.stderr.replace(f"--home {own.home} ", "")
        shown = own.sleipnir("show", info.id)
        assert "by a breakpoint before 'last' since" in shown.stdout
        assert "next: 'last'; `sleipnir resume` goes on" in shown.stdout
        [hold] = json.loads(own.sleipnir("show", info.id, "--json").stdout)["holds"]
        assert (hold["owner"], hold["breakpoint"]["nodes"], hold["breakpoint"]["planned"]) == (
            "breakpoint",
            ["last"],
            ["last"],
        )
        assert "paused by a breakpoint before 'last'" in own.sleipnir("ps").stdout
        assert own.sleipnir("wait", info.id, "--timeout", "0.1").returncode == 3
        assert own.sleipnir("resume", info.id).returncode == 0
        run = client.run(info.id)
        wait_for_stop(run, "after", "last")
        assert own.sleipnir("resume", info.id).returncode == 0
        assert run.wait(60).status == "completed"
        history = own.sleipnir("history", info.id).stdout
        assert "before 'last'; next: 'last'" in history
        assert "after 'last'; nothing comes next" in history
        with pytest.raises(UsageError, match="already completed"):
            run.resume()
        assert len(client.runs()) == 1


def test_a_breakpoint_of_a_child_run_is_shown_and_passed_at_the_top(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler()
    own.start_worker()
    forked(tmp_path)
    above = """
name: above
version: sleipnir/1
start: ask
nodes:
  ask: {type: agent, agent: forked, prompt: go}
"""
    agent = write_agent(tmp_path / "agents" / "above", above)
    with own.client() as client:
        run = client.submit(agent)
        wait_until(lambda: [each for each in run.active() if each.breakpoints], "the child stops")
        child = run.active()[1]
        assert (run.status, child.breakpoints[0].nodes) == ("waiting", ("b", "c"))
        followed = own.sleipnir("run", str(agent))
        assert followed.returncode == 3, followed.stderr
        assert "▸   ask: stopped before 'b', 'c'; next: 'b', 'c'" in followed.stderr
        run.resume()
        wait_until(
            lambda: [each for each in run.active()[1:] if [at.phase for at in each.breakpoints] == ["after"]],
            "it goes on",
        )
        assert own.sleipnir("resume", child.id).returncode == 0
        assert run.wait(60).status == "completed", run.error


PROGRAM = """
from typing import TypedDict

from sleipnir import START, Client, StateGraph


class Letter(TypedDict, total=False):
    text: str
    sent: bool


def write(state: Letter) -> Letter:
    return {"text": "dear all"}


def send(state: Letter) -> Letter:
    return {"sent": True}


letters = StateGraph(Letter).add_sequence([write, send]).add_edge(START, "write").compile(interrupt_before=["send"])

if __name__ == "__main__":
    client = Client()
    for options in ({}, {"interrupt_before": ["write"], "interrupt_after": ["write"]}):
        print(letters.submit({}, client=client, **options).id)
"""


def test_a_graph_in_python_stops_on_the_fleet_as_in_process(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler()
    own.start_worker()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own.start("program", [sys.executable, str(program)])
    with own.client() as client:
        wait_until(lambda: len(client.runs()) == 2, f"it submits two runs\n{own.log('program')}")
        plain, other = sorted(client.runs(), key=lambda info: info.created_ms)
        run = client.run(plain.id)
        wait_for_stop(run, "before", "send")
        assert run.state() == {"text": "dear all"}
        run.resume()
        assert run.result(60) == {"text": "dear all", "sent": True}
        run = client.run(other.id)
        for phase in ("before", "after"):
            wait_for_stop(run, phase, "write")
            run.resume()
        assert run.result(60) == {"text": "dear all", "sent": True}


def test_rows_of_a_batch_stop_one_by_one(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler()
    own.start_worker()
    with own.client() as client:
        batch = client.batch(forked(tmp_path), [{"prompt": "a"}, {"prompt": "b"}], interrupt_before=["last"])
        runs = [Run(client.store, batch.run_id(row), client.settings) for row in (0, 1)]
        wait_until(lambda: len(client.runs(batch=batch.id)) == 2, "both rows are runs")
        pass_all(client, runs)
        assert batch.wait(60).completed == 2


def pass_all(client: Client, runs: list[Run]) -> None:
    for run in runs:
        for phase, nodes in (("after", ("c",)), ("before", ("last",))):
            wait_for_stop(run, phase, *nodes)
            run.resume()
