"""What scheduler and workers log, by level, with the real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.runs.run import RunSpec, RunView, Timing
from sleipnir_scheduler.narration import performance_summary
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: logged
start: a
SETTINGS
initial_state: {planted: "s3cret-value"}
nodes:
  a: {type: function, call: "f.py:f", next: b}
  b: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: x}
"""
F_PY = "def f(state):\n    return {'x': 1}\n"


def run_logged(redis: RedisServer, folder: Path, level: str, settings: str = "") -> tuple[str, str]:
    """Scheduler's and worker's log of one run at a log level."""
    agent = write_agent(folder / "logged", GRAPH.replace("SETTINGS", settings), f_py=F_PY)
    with Stack(redis, folder / "home", log_level=level, key_prefix=f"log-{level}-{bool(settings)}") as stack:
        stack.start_scheduler()
        stack.start_worker()
        with stack.client() as client:
            assert client.submit(agent).wait(60).status == "completed"
        if level != "warning":
            wait_until(lambda: "performance summary" in stack.log("scheduler"), "the end is logged")
        return stack.log("scheduler"), stack.log("worker")


def records(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_every_record_about_a_visit_names_run_node_visit_and_attempt(redis_server: RedisServer, tmp_path: Path) -> None:
    code = "import logging\ndef f(state):\n    logging.getLogger('mine').warning('from a node')\n    return {}\n"
    agent = write_agent(tmp_path / "logged", GRAPH.replace("SETTINGS", ""), f_py=code)
    with Stack(redis_server, tmp_path / "home", key_prefix="log-records", log_format="json") as stack:
        stack.start_scheduler()
        stack.start_worker()
        with stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
        wait_until(lambda: "performance summary" in stack.log("scheduler"), "the end is logged")
        about = {"run": run.id, "node": "a", "visit": 1, "attempt": 1}
        worker = records(stack.log("worker"))
        [said] = [each for each in worker if each["event"] == "from a node" and each["node"] == "a"]
        assert said.items() >= {**about, "level": "warning", "logger": "mine"}.items(), "whoever logs it"
        [state] = [each for each in worker if each["event"].startswith("[graph:logged] [a] state: ")]
        assert state.items() >= about.items()
        [entered] = [each for each in records(stack.log("scheduler")) if "entering 'b'" in each["event"]]
        assert entered.items() >= {"run": run.id, "node": "b", "visit": 2, "attempt": 1}.items()
        [closed] = [each for each in records(stack.log("scheduler")) if each["event"] == "[graph:logged] a -> b"]
        assert closed.items() >= about.items()
        mine = stack.log("worker").partition("ready.")[2]
        assert all(line.startswith("{") for line in mine.splitlines()[1:]), "also what Celery says is JSON"


@pytest.mark.conformance("B02", "B03", "S07")
def test_debug_shows_entries_routes_and_state_keys_but_no_values(redis_server: RedisServer, tmp_path: Path) -> None:
    scheduler, worker = run_logged(redis_server, tmp_path, "debug")
    assert "[graph:logged] start at 'a'" in scheduler
    assert "[graph:logged] entering 'b' (visit 1)" in scheduler
    assert "[graph:logged] a -> b" in scheduler
    assert "[graph:logged] end: completed" in scheduler
    assert "[graph:logged] performance summary (slowest first):" in scheduler
    assert "[graph:logged] [a] state: " in worker
    assert "keys=['initial_prompt', 'planted']" in worker
    assert "s3cret-value" not in scheduler + worker


@pytest.mark.conformance("B03")
def test_only_trace_shows_the_full_state(redis_server: RedisServer, tmp_path: Path) -> None:
    scheduler, worker = run_logged(redis_server, tmp_path, "trace")
    assert "full state: " in worker
    assert "s3cret-value" in worker
    assert "s3cret-value" not in scheduler


@pytest.mark.conformance("S07")
def test_snapshots_can_be_switched_off_by_the_graph(redis_server: RedisServer, tmp_path: Path) -> None:
    _, worker = run_logged(redis_server, tmp_path, "trace", "settings: {log_state_snapshots: false}")
    assert "state: " not in worker


@pytest.mark.conformance("B04")
def test_the_log_level_comes_from_the_environment(redis_server: RedisServer, tmp_path: Path) -> None:
    scheduler, worker = run_logged(redis_server, tmp_path, "warning")
    assert "[graph:logged]" not in scheduler + worker


@pytest.mark.conformance("B02")
def test_the_performance_summary_lists_the_slowest_node_first() -> None:
    timings = {"fast": Timing(2, 10, 6), "slow": Timing(1, 8200, 8200)}
    run = RunView(id="r", spec=RunSpec("a", "d"), timings=timings)
    assert performance_summary(run) == [
        "slow: 1 visit(s), total 8200ms, avg 8200ms, max 8200ms",
        "fast: 2 visit(s), total 10ms, avg 5ms, max 6ms",
    ]
