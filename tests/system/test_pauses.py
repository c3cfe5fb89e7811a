"""`pause --timeout` on real processes (spec F30): what still runs at the deadline is stopped, and runs again later."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
version: sleipnir/1
name: pausing
engine: ENGINE
state: {value: string, seen: {type: list, reducer: append}}
start: split
nodes:
  split: {type: router, next: [slow, quick]}
  slow: {type: script, script: slow.sh, timeout: 600, MORE}
  quick: {type: script, script: quick.sh}
  last: {type: script, script: last.sh, wait_for: [slow, quick], next: done}
  done: {type: end, output: "{{value}} {{seen}}"}
"""
# The first execution hangs; each notes that it began, and the value that it sees.
SLOW = """
echo x >> FOLDER/slow
value=$(echo "$GRAPH_STATE" | python3 -c 'import json, sys; print(json.load(sys.stdin).get("value"))')
[ -e FOLDER/may_end ] || sleep 600
echo "{\\"seen\\": [\\"$value\\"]}"
"""
QUICK = """
echo x >> FOLDER/quick
while [ ! -e FOLDER/go ]; do sleep 0.05; done
echo '{"value": "new"}'
"""
CHAIN = """
version: sleipnir/1
name: chain
ENGINE
start: a
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: done}
  done: {type: end, output: over}
"""
FAN = """
version: sleipnir/1
name: fan
engine: ENGINE
state: {seen: {type: list, reducer: append}}
start: a
nodes:
  a: {type: script, script: a.sh}
  b: {type: script, script: b.sh, timeout: 600}
"""
PARENT = """
version: sleipnir/1
name: parent
start: ask
nodes:
  ask: {type: agent, agent: pausing, prompt: hi, next: done}
  done: {type: end}
"""
ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"p-{tmp_path.name}", owner_ttl_s=0.5) as stack:
        stack.settings = stack.settings.replaced(agents_dir=tmp_path)
        stack.start_scheduler()
        yield stack


def pausing(folder: Path, engine: str, more: str = "queue: scripts") -> Path:
    scripts = {"slow_sh": SLOW, "quick_sh": QUICK, "last_sh": "echo '{}'"}
    texts = {name: text.replace("FOLDER", str(folder)) for name, text in scripts.items()}
    return write_agent(folder / "pausing", GRAPH.replace("ENGINE", engine).replace("MORE", more), **texts)


def begun(run: Run, folder: Path, *names: str) -> Run:
    for name in names:
        wait_until((folder / name).exists, f"{name} has begun")
    return run


def times(folder: Path, name: str) -> int:
    return len((folder / name).read_text().split())


def stopped(run: Run) -> list[str]:
    return [step.reason or "" for step in run.history() if step.kind == "stopped"]


@pytest.mark.conformance("XI-02", "XI-04", "XI-06", "EX-36")
@ENGINES
def test_what_runs_is_stopped_at_the_deadline_and_runs_again_with_its_input(
    client: Client, stack: Stack, tmp_path: Path, engine: str
) -> None:
    """In a `dag` the other branch has written the key meanwhile: the one that runs again sees the old value."""
    run = client.submit(pausing(tmp_path, engine), state={"value": "old"})
    begun(run, tmp_path, "slow", "quick")
    (tmp_path / "go").touch()
    wait_until(lambda: [step for step in run.history() if step.node == "quick"], "the other branch has ended")
    if engine == "dag":
        assert run.state()["value"] == "new"
    asked = stack.sleipnir("pause", run.id, "--timeout", "300ms", "--reason", "costs")
    assert asked.returncode == 0, asked.stderr
    [reason] = wait_until(lambda: stopped(run), "the script was stopped")
    assert reason.startswith("visit ")
    assert "of node 'slow' was stopped on " in reason
    [hold] = run.info().holds
    assert (hold.forced, hold.reason) == (True, "costs")
    assert "was stopped" in stack.sleipnir("show", run.id).stdout
    assert "stopped" in stack.sleipnir("history", run.id).stdout
    (tmp_path / "may_end").touch()
    run.resume()
    assert run.wait(60).status == "completed", run.error
    assert run.output == 'new ["old"]'
    assert (times(tmp_path, "slow"), times(tmp_path, "quick")) == (2, 1), "what has ended does not run again"
    [slow] = [step for step in run.history() if step.node == "slow"]
    assert (slow.attempt, slow.ok) == (2, True)
    assert run.info().failed_visits.count == 0
    assert run.state_at(run.info().step) == run.state()


@pytest.mark.conformance("XI-07", "XI-09")
@ENGINES
def test_a_timeout_of_zero_stops_at_once_and_a_second_request_changes_nothing(
    client: Client, tmp_path: Path, engine: str
) -> None:
    run = begun(client.submit(pausing(tmp_path, engine)), tmp_path, "slow", "quick")
    run.pause(timeout=0)
    wait_until(lambda: len(stopped(run)) == 2, "both scripts were stopped")
    before = run.history()
    run.pause(timeout=60)
    run.pause()
    (tmp_path / "may_end").touch()
    (tmp_path / "go").touch()
    run.resume()
    assert run.wait(60).status == "completed"
    assert [step.kind for step in run.history()][: len(before) + 1] == [*(step.kind for step in before), "resumed"]
    assert (times(tmp_path, "slow"), times(tmp_path, "quick")) == (2, 2)


@pytest.mark.conformance("XI-01", "XI-05", "XI-08")
@ENGINES
def test_without_a_timeout_what_runs_ends_and_the_next_node_does_not_begin(
    client: Client, tmp_path: Path, engine: str
) -> None:
    """To resume a run that is not paused, or twice, changes nothing."""
    go, begin, end = tmp_path / "go", tmp_path / "begun", tmp_path / "end"
    a = f"touch {begin}; while [ ! -e {go} ]; do sleep 0.05; done; echo '{{}}'"
    b = f"while [ ! -e {end} ]; do sleep 0.05; done; echo '{{}}'"
    agent = write_agent(tmp_path / "chain", CHAIN.replace("ENGINE", f"engine: {engine}"), a_sh=a, b_sh=b)
    run = begun(client.submit(agent), tmp_path, "begun")
    run.resume()
    run.pause()
    wait_until(lambda: run.status == "paused", "it is paused")
    go.touch()
    wait_until(lambda: [step for step in run.history() if step.node == "a"], "what ran has ended")
    assert [visit.node for visit in run.info().visits] == ["b"]
    assert [(hold.forced, hold.due_ms) for hold in run.info().holds] == [(False, None)]
    run.resume()
    run.resume()
    end.touch()
    assert run.wait(60).status == "completed"
    assert stopped(run) == []


@pytest.mark.conformance("XI-03")
@ENGINES
def test_commands_come_back_with_their_own_values(client: Client, tmp_path: Path, engine: str) -> None:
    may_end = tmp_path / "may_end"
    a = """echo '{"_next": [{"to": "b", "update": {"n": 1}}, {"to": "b", "update": {"n": 2}}]}'"""
    b = f"""
n=$(echo "$GRAPH_STATE" | python3 -c 'import json, sys; print(json.load(sys.stdin)["n"])')
echo x >> {tmp_path}/b$n
[ $n = 1 -o -e {may_end} ] || sleep 600
echo "{{\\"seen\\": [$n]}}"
"""
    run = client.submit(write_agent(tmp_path / "fan", FAN.replace("ENGINE", engine), a_sh=a, b_sh=b))
    begun(run, tmp_path, "b2")
    wait_until(lambda: [step for step in run.history() if step.node == "b"], "the first command has ended")
    run.pause(timeout=0)
    wait_until(lambda: stopped(run), "the second one was stopped")
    may_end.touch()
    run.resume()
    assert run.wait(60).status == "completed"
    assert run.state()["seen"] == [1, 2]
    assert (times(tmp_path, "b1"), times(tmp_path, "b2")) == (1, 2)


def test_runs_below_have_the_same_deadline(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_worker()
    pausing(tmp_path, "bsp")
    with own_stack.client() as client:
        run = begun(client.submit(write_agent(tmp_path / "parent", PARENT)), tmp_path, "slow", "quick")
        [child] = [client.run(name) for name in run.info().awaits]
        run.pause(timeout=0.2)
        wait_until(lambda: len(stopped(child)) == 2, "the scripts of the child were stopped")
        assert child.status == "paused"
        (tmp_path / "may_end").touch()
        (tmp_path / "go").touch()
        run.resume()
        assert run.wait(60).status == "completed"


def test_an_effect_that_was_stopped_is_asked_about(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_worker()
    with own_stack.client() as client:
        run = begun(client.submit(pausing(tmp_path, "bsp", "effect: once")), tmp_path, "slow", "quick")
        (tmp_path / "go").touch()
        run.pause(timeout=0.1)
        gate = wait_until(run.gates, "somebody is asked")[0]
        assert (gate.kind, gate.node) == ("effect", "slow")
        assert "The run was paused" in gate.question
        run.resume()
        run.answer(json.dumps({"seen": ["by hand"]}), gate)
        assert run.wait(60).status == "completed"
        assert times(tmp_path, "slow") == 1


@pytest.mark.conformance("XI-02")
@pytest.mark.parametrize("point", ["commit.before", "commit.after", "fire_timers.before", "fire_timers.after"])
@ENGINES
def test_the_deadline_survives_the_death_of_schedulers(
    own_stack: Stack, tmp_path: Path, point: str, engine: str
) -> None:
    own_stack.start_worker()
    with own_stack.client() as client:
        run = begun(client.submit(pausing(tmp_path, engine)), tmp_path, "slow", "quick")
        own_stack.kill("scheduler")
        run.pause(timeout=0.2)
        own_stack.start_scheduler("dies", env={"SLEIPNIR_FAILPOINTS": f"{point}=kill"})
        wait_until(lambda: own_stack.processes["dies"].poll() is not None, "a scheduler dies")
        own_stack.processes.pop("dies")
        own_stack.start_scheduler("last")
        wait_until(lambda: len(stopped(run)) == 2, "the scripts were stopped")
        (tmp_path / "may_end").touch()
        (tmp_path / "go").touch()
        run.resume()
        assert run.wait(60).status == "completed"
        assert len(stopped(run)) == 2
        assert (times(tmp_path, "slow"), times(tmp_path, "quick")) == (2, 2)


def test_a_worker_that_dies_in_a_pause_with_a_deadline_costs_one_try_at_most(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.settings = own_stack.settings.replaced(lease_s=1.0, heartbeat_s=0.2)
    own_stack.kill("scheduler")
    own_stack.start_scheduler()
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = begun(client.submit(pausing(tmp_path, "bsp")), tmp_path, "slow", "quick")
        own_stack.signal("first", signal.SIGKILL)
        run.pause(timeout=0)
        wait_until(lambda: run.info().holds and run.info().holds[0].forced, "the deadline has come")
        own_stack.start_worker("second")
        (tmp_path / "may_end").touch()
        (tmp_path / "go").touch()
        run.resume()
        assert run.wait(60).status == "completed"
        assert times(tmp_path, "slow") == 2


def test_a_wrong_timeout_is_refused(client: Client, stack: Stack, tmp_path: Path) -> None:
    run = begun(client.submit(pausing(tmp_path, "bsp")), tmp_path, "slow")
    for wrong in (-1, float("nan"), True, "20s"):
        with pytest.raises(UsageError, match="the timeout of a pause is a number of seconds"):
            run.pause(timeout=wrong)  # type: ignore[arg-type]
    for words in (("pause", run.id, "--timeout", "soon"), ("pause", "--all", "--timeout", "1s")):
        refused = stack.sleipnir(*words)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert client.held() is None
    run.cancel()
