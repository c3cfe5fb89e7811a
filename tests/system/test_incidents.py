"""The incident switch on real processes: everything of a namespace or of the deployment is paused, and goes on by
agent, by rate, and whole; schedulers die meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from tests.processes import RedisServer, Stack, wait_until, write_agent

STEPS = """
version: sleipnir/1
name: NAME
start: first
nodes:
  first: {type: script, script: first.sh, next: second}
  second: {type: script, script: second.sh, next: done}
  done: {type: end, output: over}
"""
FIRST = """
echo x >> FOLDER/NAME
while [ -e FOLDER/wait ]; do sleep 0.05; done
echo '{}'
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    for name in ("triage", "refund"):
        first = FIRST.replace("FOLDER", str(tmp_path)).replace("NAME", name)
        write_agent(tmp_path / "agents" / name, STEPS.replace("NAME", name), first_sh=first, second_sh="echo '{}'")
    more = {"agents_dir": tmp_path / "agents", "owner_ttl_s": 0.5, "partitions": 4}
    with Stack(redis_server, tmp_path / "home", key_prefix=request.node.name[:30], **more) as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


@pytest.fixture
def client(own: Stack) -> Iterator[Client]:
    with own.client() as opened:
        yield opened


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def are_over(runs: list[Run]) -> bool:
    return all(run.info().is_final for run in runs)


def waits(run: Run) -> bool:
    """It is planned, and its first visit is held."""
    return [visit.reason.code for visit in run.info().visits] == ["paused"]


def test_what_runs_finishes_and_nothing_else_of_the_namespace_begins(
    own: Stack, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    running = client.submit("triage", namespace="shop")
    wait_until((tmp_path / "triage").exists, "its first visit runs")
    text = said(own.sleipnir("incident", "pause", "--namespace", "shop", "--reason", "wrong prices"))
    assert "namespace 'shop' is paused" in text and "nothing of it is resumed" in text
    later, other = client.submit("triage", namespace="shop"), client.submit("refund")
    (tmp_path / "wait").unlink()
    assert other.wait(60).status == "completed"
    wait_until(lambda: running.info().step == 1 and waits(running) and waits(later), "the first visit is committed")
    for run in (running, later):
        shown = said(own.sleipnir("show", run.id))
        assert "with the namespace" in shown and "wrong prices" in shown
        assert "paused by" in said(own.sleipnir("ps", "--namespace", "shop"))
    [held] = json.loads(said(own.sleipnir("incident", "show", "--json")))
    assert (held["scope"], held["hold"]["reason"], held["resumption"]) == ("shop", "wrong prices", None)
    assert [each.scope for each in client.health().holds] == ["shop"]
    own.kill("scheduler")
    own.start_scheduler("second")
    wait_until(lambda: client.health().schedulers, "another one is there")
    assert [run.info().is_final for run in (running, later)] == [False, False]
    own.kill("second")
    said(own.sleipnir("incident", "resume", "--all", "--namespace", "shop"))
    own.start_scheduler("third")
    wait_until(lambda: are_over([running, later]), "they go on")
    wait_until(lambda: not client.holds(), "the hold has ended")
    assert "nothing is paused" in said(own.sleipnir("incident", "show"))


def test_agents_then_a_rate_then_everything_while_schedulers_die(own: Stack, client: Client, tmp_path: Path) -> None:
    client.pause_all(reason="wrong prices")
    triage = [client.submit("triage") for _ in range(3)]
    refund = [client.submit("refund") for _ in range(12)]
    batch = client.batch("refund", [{"prompt": str(number)} for number in range(2)])
    wait_until(lambda: all(map(waits, [*triage, *refund])), "all are planned, and held")
    own.kill("scheduler")
    said(own.sleipnir("incident", "resume", "--deployment", "--agent", "triage"))
    own.start_scheduler("second")
    wait_until(lambda: are_over(triage), "the agent goes on")
    assert not (tmp_path / "refund").exists()
    assert batch.info().ended == 0, "rows that were admitted before the scheduler saw the pause wait as runs"
    began = time.monotonic()
    said(own.sleipnir("incident", "resume", "--deployment", "--rate", "4"))
    wait_until(lambda: sum(run.info().is_final for run in refund) >= 4, "some go on")
    own.kill("second")
    own.start_scheduler("third")
    wait_until(lambda: are_over(refund), "all go on")
    # Fourteen runs at four a second; a scheduler that begins may let those of one second go on at once.
    assert time.monotonic() - began >= (12 - 2 * 4) / 4
    wait_until(lambda: batch.info().state == "done", "the rows of the batch are runs of that rate")
    [held] = client.holds()
    assert held.resumed_runs >= 12
    late = client.submit("triage")
    assert late.wait(60).status == "completed"
    said(own.sleipnir("incident", "resume", "--deployment", "--all"))
    assert client.holds() == []
    assert client.submit("refund").wait(60).status == "completed"
    changes = [(entry.what, entry.on) for entry in client.access.audit() if "deployment" in entry.what]
    assert changes == [
        ("deployment paused", "deployment"), ("deployment resumed in part", "deployment"),
        ("deployment resumed in part", "deployment"), ("deployment resumed", "deployment"),
    ]  # fmt: skip


def test_bad_requests_say_what_would_be_right(own: Stack) -> None:
    for words, text in (
        (("pause",), "Missing option '--reason'"),
        (("pause", "--reason", " "), "--reason is empty"),
        (("pause", "--reason", "x", "--deployment", "--namespace", "shop"), "leave --namespace out"),
        (("resume",), "say what goes on"),
        (("resume", "--all", "--rate", "1"), "leave --agent and --rate out"),
        (("resume", "--rate", "0"), "up to 1,000"),
        (("resume", "--rate", "1"), "namespace 'default' is not paused"),
        (("resume", "--rate", "1", "--deployment"), "the deployment is not paused"),
    ):
        refused = own.sleipnir("incident", *words)
        assert refused.returncode != 0 and text in refused.stderr and "Traceback" not in refused.stderr, refused.stderr
