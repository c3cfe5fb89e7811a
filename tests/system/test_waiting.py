"""Runs that wait for something else than their work: a retry, a person, a pause, a deadline. Real processes."""

from __future__ import annotations

import getpass
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

FLAKY = """
name: flaky
start: a
nodes:
  a: {type: script, script: a.sh, next: done, retry: {max_attempts: 5, initial_interval: 50ms, on: [transient]}}
  done: {type: end, output: "{{tries}}"}
"""
# Exit code 75 (EX_TEMPFAIL) says: try again. The third attempt succeeds.
FAILS_TWICE = """
echo x >> "$COUNT"; tries=$(wc -l < "$COUNT")
if [ "$tries" -lt 3 ]; then exit 75; fi
echo "{\\"tries\\": $tries}"
"""

ONCE = """
name: once
start: pay
nodes:
  pay: {type: script, script: pay.sh, effect: once, next: done, timeout: 600}
  done: {type: end, output: "{{paid}}"}
"""
PAYS_AND_HANGS = """
echo $GRAPH_VISIT >> "$PAID"
if [ $(wc -l < "$PAID") = 1 ]; then sleep 60; fi
echo '{"paid": "by the second attempt"}'
"""

QUICK = """
name: quick
start: a
nodes:
  a: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{x}}"}
"""


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"w-{tmp_path.name}") as stack:
        stack.start_scheduler()
        yield stack


def quick(folder: Path) -> Path:
    return write_agent(folder / "quick", QUICK, f_py="def f(state): return {'x': 'ran'}")


def test_a_script_that_exits_with_75_is_retried(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "flaky", FLAKY, a_sh=FAILS_TWICE.replace("$COUNT", str(tmp_path / "count")))
    with stack.client() as client:
        run = client.submit(agent)
        info = run.wait(60)
        assert (info.status, run.output) == ("completed", "3")
        assert [step.attempt for step in run.history()] == [1, 3, 1]
        retrying = [event.data for event in run.events(follow=False) if event.type == "visit_retrying"]
        assert [data["attempt"] for data in retrying] == [1, 2]
        assert set(run.state()) == {"initial_prompt", "tries"}


def paying(client: Client, folder: Path) -> Run:
    """A run whose script has paid, noted that in the file `paid`, and hangs."""
    paid = folder / "paid"
    agent = write_agent(folder / "once", ONCE, pay_sh=PAYS_AND_HANGS.replace("$PAID", str(paid)))
    run = client.submit(agent)
    wait_until(lambda: paid.exists() and paid.read_text(), "the payment was made")
    return run


def test_an_effect_whose_worker_is_killed_is_asked_about_and_never_repeated_blindly(
    own_stack: Stack, tmp_path: Path
) -> None:
    paid = tmp_path / "paid"
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = paying(client, tmp_path)
        own_stack.kill("first")
        own_stack.start_worker("second")
        gate = wait_until(run.gates, "somebody is asked")[0]
        assert (gate.kind, gate.node, gate.options) == ("effect", "pay", ("run again", "fail"))
        assert "first@" in gate.question
        with pytest.raises(UsageError, match="JSON object"):
            run.answer("well")
        run.answer(json.dumps({"paid": "by the first attempt"}))
        info = run.wait(60)
        assert (info.status, run.output) == ("completed", "by the first attempt")
        assert len(paid.read_text().splitlines()) == 1


def test_an_effect_is_run_again_on_demand(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = paying(client, tmp_path)
        own_stack.kill("first")
        own_stack.start_worker("second")
        wait_until(run.gates, "somebody is asked")
        run.answer("run again")
        run.wait(60)
        assert run.output == "by the second attempt"
        _, answered, step = run.history()[:3]
        assert (answered.kind, answered.answer, step.attempt) == ("answered", "run again", 2)


def test_a_person_is_asked_about_an_effect_of_a_stopping_worker(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.settings = own_stack.settings.replaced(drain_s=0.1)
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = paying(client, tmp_path)
        own_stack.signal("first", signal.SIGTERM)
        gate = wait_until(run.gates, "somebody is asked")[0]
        assert "first@" in gate.question
        assert "stopped while it ran" in gate.question
        run.answer("fail")
        assert run.wait(60).status == "completed"
        assert "decided not to run it again" in run.state()["last_error"]


def test_a_paused_run_starts_nothing_and_continues_where_it_was(own_stack: Stack, tmp_path: Path) -> None:
    agent = quick(tmp_path)
    with own_stack.client() as client:
        run = client.submit(agent)
        wait_until(lambda: run.info().visits, "the visit is queued")
        run.pause("ann@desk", "too expensive")
        wait_until(lambda: run.status == "paused", "the run is paused")
        own_stack.start_worker()
        wait_until(lambda: "claim refused" in own_stack.log("worker"), "a worker was refused the visit")
        assert (run.status, [step.kind for step in run.history()]) == ("paused", ["submitted", "paused"])
        run.resume()
        assert run.wait(60).status == "completed"
        types = [event.type for event in run.events(follow=False)]
        assert types.index("run_paused") < types.index("run_resumed") < types.index("visit_started")


def test_a_paused_deployment_starts_no_submitted_run(own_stack: Stack, tmp_path: Path) -> None:
    agent = quick(tmp_path)
    own_stack.start_worker()
    with own_stack.client() as client:
        client.pause_all("ann@desk", "incident")
        held = client.held()
        assert held is not None
        assert (held.by, held.reason) == ("ann@desk", "incident")
        runs = [client.submit(agent) for _ in range(5)]
        wait_until(lambda: all(run.info().visits for run in runs), "the scheduler still plans")
        runs[0].cancel()
        assert runs[0].wait(60).status == "cancelled"
        assert {run.status for run in runs[1:]} == {"running"}
        assert {len(run.history()) for run in runs[1:]} == {1}
        assert client.resume_all()
        assert not client.resume_all()
        assert {run.wait(60).status for run in runs[1:]} == {"completed"}


def test_a_scheduler_can_be_started_paused(redis_server: RedisServer, tmp_path: Path) -> None:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"w-{tmp_path.name}") as stack, stack.client() as client:
        command = [sys.executable, "-m", "sleipnir_scheduler", "--paused"]
        stack.start("scheduler", command)
        wait_until(client.held, "the deployment is paused")
        stack.start_worker()
        run = client.submit(quick(tmp_path))
        wait_until(lambda: run.info().visits, "the visit is queued")
        assert len(run.history()) == 1
        client.resume_all()
        assert run.wait(60).status == "completed"


def test_pausing_from_the_command_line(own_stack: Stack, tmp_path: Path) -> None:
    sleipnir = own_stack.sleipnir
    with own_stack.client() as client:
        run = client.submit(quick(tmp_path))
        assert "is being paused" in sleipnir("pause", run.id, "--reason", "lunch").stderr
        wait_until(lambda: run.status == "paused", "the run is paused")
        assert run.id in sleipnir("ps").stdout
        assert "is resumed" in sleipnir("resume", run.id).stderr
        wait_until(lambda: run.status == "running", "the run goes on")
        assert "the deployment is paused" in sleipnir("pause", "--all").stderr
        assert client.held() is not None
        assert "the deployment is resumed" in sleipnir("resume", "--all").stderr
        assert "was not paused; " in (again := sleipnir("resume", "--all").stderr)
        assert f"{getpass.getuser()}@{socket.gethostname()} (cli) resumed it last, " in again
        for words in (("pause",), ("resume", "--all", run.id)):
            refused = sleipnir(*words)
            assert (refused.returncode, "--all" in refused.stderr) == (2, True)


ASKS = """
name: asks
start: ask
nodes:
  ask: {type: input, question: "who?", state_updates: {who: "{{input}}"}, next: again}
  again: {type: approval, question: "sure?", options: [yes], routes: {yes: e}, on_other: e}
  e: {type: end, output: "{{who}}"}
"""


def test_the_command_line_shows_who_paused_answered_and_cancelled_a_run(stack: Stack, tmp_path: Path) -> None:
    """Finding S10 of the second review, as its commands have it."""
    me = f"{getpass.getuser()}@{socket.gethostname()} (cli)"
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "asks", ASKS))
        wait_until(run.gates, "it asks")
        assert stack.sleipnir("pause", run.id, "--reason", "lunch").returncode == 0
        wait_until(lambda: run.status == "paused", "it is held")
        shown = json.loads(stack.sleipnir("show", run.id, "--json").stdout)
        assert [(hold["by"], hold["reason"]) for hold in shown["holds"]] == [(me, "lunch")]
        assert stack.sleipnir("resume", run.id).returncode == 0
        wait_until(lambda: run.status == "waiting", "it goes on")
        assert stack.sleipnir("answer", run.id, "Ann").returncode == 0
        wait_until(lambda: [gate.node for gate in run.gates()] == ["again"], "the next question")
        assert stack.sleipnir("cancel", run.id).returncode == 0
        assert run.wait(60).status == "cancelled"
    shown = json.loads(stack.sleipnir("show", run.id, "--json").stdout)
    assert {change["what"]: change["by"] for change in shown["changes"]} == {
        "paused": me, "resumed": me, "answered": me, "cancelled": me
    }  # fmt: skip
    history = json.loads(stack.sleipnir("history", run.id, "--json").stdout)
    wishes = [(step["kind"], step["reason"], step["answer"]) for step in history if step["by"] == me]
    assert wishes == [
        ("paused", "lunch", None),
        ("resumed", None, None),
        ("input", None, "Ann"),
        ("cancelled", None, None),
    ]


def test_an_unanswered_question_follows_its_timeout_edge(stack: Stack, tmp_path: Path) -> None:
    text = """
name: impatient
start: ask
nodes:
  ask: {type: approval, question: ok?, options: [yes], routes: {yes: good}, on_other: good, timeout: 1, on_timeout: bad}
  good: {type: end, output: good}
  bad: {type: end, output: nobody was there}
"""
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "impatient", text))
        assert run.wait(60).status == "completed"
        assert run.output == "nobody was there"
        assert run.id not in {gate.run for gate in client.gates()}


TIMED = """
name: timed
start: a
settings: {timeout: SECONDS, interrupt_on_timeout: INTERRUPT}
nodes:
  a: {type: script, script: a.sh, next: done, timeout: 600}
  done: {type: end, output: done}
"""


def hanging(folder: Path, mark: Path, interrupt: str, seconds: int, *, timeout_s: int = 1) -> Path:
    script = f"echo $$ > {mark}; sleep {seconds}; echo '{{}}'"
    graph = TIMED.replace("INTERRUPT", interrupt).replace("SECONDS", str(timeout_s))
    return write_agent(folder / "timed", graph, a_sh=script)


def ended_by_timeout(run: Run, *, timeout_s: int = 1) -> bool:
    info = run.wait(60)
    return info.status == "failed" and f"timed out after {timeout_s}s at 'a'" in str(info.error)


def test_the_run_s_timeout_interrupts_a_node_if_the_graph_sets_it(stack: Stack, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with stack.client() as client:
        run = client.submit(hanging(tmp_path, mark, "true", 60, timeout_s=10))  # time enough to begin
        pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "the script runs"))
        assert ended_by_timeout(run, timeout_s=10)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the script is dead")


def test_without_it_a_node_that_is_running_ends_first(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(hanging(tmp_path, tmp_path / "mark", "false", 6, timeout_s=5))  # time enough to begin
        info = run.wait(60)
        assert (info.status, [step.node for step in run.history()]) == ("failed", [None, "a"])
        assert "timed out after 5s at 'done'" in str(info.error)


def test_a_visit_that_no_worker_takes_does_not_outlive_the_run_s_timeout(own_stack: Stack, tmp_path: Path) -> None:
    with own_stack.client() as client:
        assert ended_by_timeout(client.submit(hanging(tmp_path, tmp_path / "mark", "false", 60)))


def test_a_lost_worker_is_not_replaced_after_the_run_s_timeout(own_stack: Stack, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = client.submit(hanging(tmp_path, mark, "false", 60, timeout_s=10))  # time enough to begin
        wait_until(mark.exists, "the script runs")
        over_s = mark.stat().st_mtime + 10
        wait_until(lambda: time.time() > over_s, "the run's time is over, and the script still runs")
        own_stack.kill("first")
        assert ended_by_timeout(run, timeout_s=10)


def test_two_schedulers_frozen_and_thawed_in_turn_advance_nothing_twice(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    names = ("one", "two")
    with Stack(redis_server, tmp_path / "home", key_prefix=f"w-{tmp_path.name}") as stack, stack.client() as client:
        for name in names:
            stack.start_scheduler(name)
        stack.start_worker()
        runs = [client.submit(chain(tmp_path)) for _ in range(40)]
        for turn in range(4):
            frozen = names[turn % 2]
            stack.signal(frozen, signal.SIGSTOP)
            wait_until(lambda: owners(client) == 1, "the other one has taken all partitions")
            stack.signal(frozen, signal.SIGCONT)
        for run in runs:
            assert run.wait(60).status == "completed"
            assert [step.seq for step in run.history()] == [None, *range(1, 12)]
            assert run.output == "x" * 10


def owners(client: Client) -> int:
    return len(set(client.store.partitions.owners().values()))


def chain(folder: Path) -> Path:
    """Ten functions, each of which adds a letter."""
    nodes = [f"  n{i}: {{type: function, call: 'f.py:f', next: n{i + 1}}}" for i in range(10)]
    text = "name: chain\nstart: n0\nnodes:\n" + "\n".join(nodes) + '\n  n10: {type: end, output: "{{x}}"}\n'
    return write_agent(folder / "chain", text, f_py="def f(state): return {'x': state.get('x', '') + 'x'}")
