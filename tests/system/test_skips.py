"""`skip` on real processes: a person finishes a visit, whatever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
version: sleipnir/1
name: chain
ENGINE
state: {n: int, log: {type: list, reducer: append}}
start: split
nodes:
  split: {type: router, next: [work, other]}
  work: {type: script, script: work.sh, timeout: 600}
  other: {type: script, script: other.sh}
  last: {type: script, script: last.sh, wait_for: [work, other], next: done}
  done: {type: end, output: "{{n}} {{log}}"}
"""
FAILS = "echo run >> $RAN; exit 1"
HANGS = "echo run >> $RAN; sleep 600"
PARENT = """
version: sleipnir/1
name: parent
start: ask
nodes:
  ask: {type: agent, agent: child, prompt: hi, state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
CHILD = """
version: sleipnir/1
name: child
start: wait
nodes:
  wait: {type: wait, for: 1h, next: done}
  done: {type: end, output: waited}
"""


def chain(place: Path, work: str, engine: str = "") -> Path:
    return write_agent(
        place / "chain",
        GRAPH.replace("ENGINE", engine),
        work_sh=work.replace("$RAN", str(place / "ran")),
        other_sh="""echo '{"log": ["other"]}'""",
        last_sh="""echo '{"log": ["last"]}'""",
    )


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        redis_server, tmp_path / "home", key_prefix=f"s-{tmp_path.name}", owner_ttl_s=0.5, agents_dir=tmp_path
    ) as stack:
        stack.start_scheduler()
        yield stack


def runs_of(place: Path) -> int:
    return len((place / "ran").read_text().split())


@pytest.mark.parametrize("engine", ["engine: bsp", "engine: dag"])
def test_a_failed_run_goes_on_with_the_value_and_tells_who_gave_it(
    client: Client, stack: Stack, tmp_path: Path, engine: str
) -> None:
    run = client.submit(chain(tmp_path, FAILS, engine))
    assert run.wait(60).status == "failed"
    wrong = stack.sleipnir("skip", run.id, "work", "--with", '{"n": "many"}')
    assert wrong.returncode == 2, wrong
    assert "state key 'n' must be int" in wrong.stderr
    assert run.status == "failed", "nothing has changed"
    words = ("skip", run.id, "work", "--with", '{"n": 7, "log": ["by hand"]}', "--reason", "the script is broken")
    skipped = stack.sleipnir(*words)
    assert skipped.returncode == 0, skipped.stderr
    assert run.wait(60).status == "completed"
    assert (run.output, runs_of(tmp_path)) == ('7 ["other","by hand","last"]', 1)
    again = stack.sleipnir(*words, "--json")
    assert (again.returncode, json.loads(again.stdout)["run"]) == (0, run.id), "the same skip counts once"
    with pytest.raises(UsageError, match="was already skipped by"):
        run.skip("work", {"n": 8})
    [step] = [step for step in run.history() if step.skipped]
    assert (step.node, step.reason, step.ok) == ("work", "the script is broken", True)
    assert "(cli)" in step.by
    assert "skipped" in stack.sleipnir("history", run.id).stdout
    shown = stack.sleipnir("show", run.id).stdout
    assert "the script is broken" in shown
    assert run.state_at(run.info().step) == run.state()


def test_running_work_is_stopped_and_its_result_refused(client: Client, tmp_path: Path) -> None:
    run = client.submit(chain(tmp_path, HANGS))
    wait_until(lambda: (tmp_path / "ran").exists(), "the script runs")
    seq = next(visit.seq for visit in run.info().visits if visit.node == "work")
    assert run.skip(seq, {"n": 1}, by="ann", reason="it hangs") == seq
    assert run.wait(60).status == "completed"
    assert run.output == '1 ["other","last"]'
    [step] = [step for step in run.history() if step.skipped]
    assert (step.by, step.reason) == ("ann", "it hangs")


def test_the_child_of_a_skipped_visit_is_cancelled(own_stack: Stack, tmp_path: Path) -> None:
    write_agent(tmp_path / "child", CHILD)
    with own_stack.client() as client:
        run = client.submit(write_agent(tmp_path / "parent", PARENT))

        def child() -> Run | None:
            runs = run.info().awaits
            return client.run(runs[0]) if runs and client.store.runs.find(runs)[0] is not None else None

        below = wait_until(child, "the child is there")
        assert below is not None
        wait_until(lambda: below.info().visits, "the child waits")
        run.skip("ask", "known")
        assert run.wait(60).status == "completed"
        assert run.output == "known"
        assert below.wait(60).status == "cancelled"


def test_a_wrong_request_is_refused_before_anything_happens(client: Client, stack: Stack, tmp_path: Path) -> None:
    run = client.submit(chain(tmp_path, HANGS))
    wait_until(lambda: (tmp_path / "ran").exists(), "the script runs")
    for words, why in (
        (("nothing",), "has no visit 'nothing'"),
        (("work", "--with", "yes"), "it is not JSON"),
        (("work", "--with", '"yes"'), "needs an object of state keys"),
        (("work", "--to", "nowhere"), "no node 'nowhere'"),
    ):
        refused = stack.sleipnir("skip", run.id, *words)
        assert refused.returncode == 2, refused
        assert why in refused.stderr
        assert "Traceback" not in refused.stderr
    run.skip("work", {"n": 1}, to="done")
    assert run.wait(60).status == "completed"
    with pytest.raises(UsageError, match="has no visit 'other' that waits or has failed"):
        run.skip("other", {})


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "discard.before"])
def test_a_skip_survives_the_death_of_schedulers(own_stack: Stack, tmp_path: Path, point: str) -> None:
    own_stack.start_worker()
    with own_stack.client() as client:
        run = client.submit(chain(tmp_path, FAILS))
        assert run.wait(60).status == "failed"
        own_stack.kill("scheduler")
        run.skip("work", {"n": 3})
        if not point.startswith("discard"):
            own_stack.start_scheduler("dies", env={"SLEIPNIR_FAILPOINTS": f"{point}=kill"})
            wait_until(lambda: own_stack.processes["dies"].poll() is not None, "a scheduler dies with the skip")
            own_stack.processes.pop("dies")
        own_stack.start_scheduler("last")
        assert run.wait(60).status == "completed"
        assert (run.output, runs_of(tmp_path)) == ('3 ["other","last"]', 1)
        assert sum(1 for step in run.history() if step.skipped) == 1
