"""Retries of nodes on both engines (spec/graph-package.md F37): how often a node's code is called, what a run shows of
it, and what a killed worker or scheduler changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.both_engines import ENGINES, Engine, Fleet, Outcome, engine_of
from tests.processes import RedisServer, write_agent
from tests.waiting import wait_until

GRAPH = """
name: shaky
version: sleipnir/1
start: work
TOP
nodes:
  work: {type: function, call: "f.py:work", NODE next: sink}
  sink: {type: function, call: "f.py:sink", next: done}
  done: {type: end, output: "{{tries}}"}
"""
WORK = """
import threading
from pathlib import Path
from sleipnir import interrupt

PLACE = Path("FOLDER")

class Temporary(Exception):
    pass

def note(name):
    with (PLACE / "did").open("a") as file:
        file.write(name + "\\n")
    return (PLACE / "did").read_text().split().count(name)

def work(state):
    tries = note("work")
    if (PLACE / f"hang-{tries}").exists():
        (PLACE / f"hangs-{tries}").touch()
        while True:
            threading.Event().wait(0.01)
    if tries <= FAILS:
        raise ERROR
    return {"tries": tries}

def asks(state):
    note("work")
    return {"tries": interrupt({"sure": True}, key="sure")}

def sink(state):
    note("sink")

def handle(state, info, error):
    note("handling")
    note("handled")
"""


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"owner_ttl_s": 0.5, "lease_s": 2.0, "heartbeat_s": 0.3}
    with Fleet(redis_server, tmp_path_factory.mktemp("fleet"), **settings) as fleet:
        yield fleet


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from engine_of(request)


def shaky(folder: Path, retry: str | None, *, fails: int, error: str = 'ValueError("no")', top: str = "") -> Path:
    """An agent whose node `work` fails as often, and notes its calls in the file `did`."""
    node = "" if retry is None else f"retry: {retry},"
    work = WORK.replace("FOLDER", str(folder)).replace("FAILS", str(fails)).replace("ERROR", error)
    text = GRAPH.replace("NODE", node).replace("TOP", top)
    return write_agent(folder / "shaky", text, f_py=work)


def calls(folder: Path) -> tuple[int, int]:
    """How often `work` and `sink` were called."""
    did = (folder / "did").read_text().split()
    return did.count("work"), did.count("sink")


def retrying(outcome: Outcome) -> list[tuple[int, int]]:
    """Of each failure that was retried: the number of the try, and of how many."""
    return [(data["attempt"], data["max_attempts"]) for data in outcome.data("visit_retrying")]


def delays(outcome: Outcome) -> list[int]:
    return [data["delay_ms"] for data in outcome.data("visit_retrying")]


@pytest.mark.conformance("RY-01", "RY-05")
def test_a_node_that_fails_twice_is_tried_three_times_and_what_follows_runs_once(
    engine: Engine, tmp_path: Path
) -> None:
    agent = shaky(tmp_path, "{max_attempts: 3, initial_interval: 20ms, jitter: false}", fails=2)
    outcome = engine.run(agent)
    assert (outcome.status, outcome.output, calls(tmp_path)) == ("completed", "3", (3, 1)), outcome.error
    assert retrying(outcome) == [(1, 3), (2, 3)]
    assert delays(outcome) == [20, 40]
    [step] = [step for step in outcome.trace.steps if step.node == "work"]
    assert step.status == "completed", "failed tries write nothing and are no visits of their own"
    assert "_error" not in outcome.state


@pytest.mark.conformance("RY-02")
def test_without_a_policy_the_first_failure_is_final(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.run(shaky(tmp_path, None, fails=1))
    assert (outcome.status, calls(tmp_path), retrying(outcome)) == ("failed", (1, 0), [])
    assert "ValueError: no" in (outcome.error or "")


@pytest.mark.conformance("RY-03")
@pytest.mark.parametrize(("own", "tries"), [(None, 2), ("[]", 1), ("{max_attempts: 3, initial_interval: 1ms}", 3)])
def test_the_policy_of_the_graph_is_for_nodes_without_one(
    engine: Engine, tmp_path: Path, own: str | None, tries: int
) -> None:
    agent = shaky(tmp_path, own, fails=9, top="retry: {max_attempts: 2, initial_interval: 1ms}")
    outcome = engine.run(agent)
    assert (outcome.status, calls(tmp_path)) == ("failed", (tries, 0))


@pytest.mark.conformance("RY-04")
def test_a_question_is_no_failure_and_costs_no_try(engine: Engine, tmp_path: Path) -> None:
    agent = shaky(tmp_path, "{max_attempts: 3, initial_interval: 1ms}", fails=0)
    text = (agent / "graph.yaml").read_text()
    (agent / "graph.yaml").write_text(text.replace("f.py:work", "f.py:asks"))
    outcome = engine.run(agent)
    assert (outcome.status, calls(tmp_path), retrying(outcome)) == ("waiting", (1, 0), [])
    [question] = outcome.asked
    assert question.key == "sure"


@pytest.mark.conformance("RY-06")
def test_no_pause_is_longer_than_what_is_left_of_the_super_step(engine: Engine, tmp_path: Path) -> None:
    """Upstream cuts the pause, and its last try meets the end of the step. Ours is final at once, so that a handler of
    the failure still has its time."""
    retry = "{max_attempts: 3, initial_interval: 60s, max_interval: 60s, jitter: false}, on_error: sink"
    outcome = engine.run(shaky(tmp_path, retry, fails=9, top="limits: {step_timeout: 20s}"))
    assert (outcome.status, calls(tmp_path), delays(outcome)) == ("completed", (1, 1), []), outcome.error
    assert outcome.notes("work")[-1] == "the super-step's deadline comes before attempt 2"


@pytest.mark.conformance("RY-07")
def test_no_try_begins_after_the_time_for_all_of_them(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.run(shaky(tmp_path, "{max_attempts: 5, max_elapsed: 1ms}", fails=9))
    assert (outcome.status, calls(tmp_path)) == ("failed", (1, 0))
    assert outcome.notes("work")[-1] == "retry budget of 0.001s exhausted after 1 attempts"


@pytest.mark.conformance("RY-08")
@pytest.mark.parametrize(
    ("error", "tries"),
    [
        ('TimeoutError("late")', 2),
        ('ConnectionResetError("gone")', 2),
        ('ValueError("plain")', 1),
        ('OSError("plain")', 1),
    ],
)
def test_transient_failures_are_lost_connections_and_passed_deadlines(
    engine: Engine, tmp_path: Path, error: str, tries: int
) -> None:
    agent = shaky(tmp_path, "{max_attempts: 2, initial_interval: 1ms, on: [transient]}", fails=9, error=error)
    outcome = engine.run(agent)
    assert (outcome.status, calls(tmp_path)) == ("failed", (tries, 0))


@pytest.mark.conformance("RY-08")
def test_the_passed_timeout_of_a_node_is_transient(engine: Engine, tmp_path: Path) -> None:
    agent = shaky(tmp_path, "{max_attempts: 2, initial_interval: 1ms, on: [transient]}, timeout: 1", fails=0)
    (tmp_path / "hang-1").touch()
    outcome = engine.run(agent)
    assert (outcome.status, outcome.output, calls(tmp_path)) == ("completed", "2", (2, 1)), outcome.error
    assert "timed out after 1s" in outcome.data("visit_retrying")[0]["error"]


@pytest.mark.conformance("RY-09")
def test_a_policy_about_nothing_retries_nothing(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.run(shaky(tmp_path, "{max_attempts: 5, on: []}", fails=9))
    assert (outcome.status, calls(tmp_path)) == ("failed", (1, 0))


@pytest.mark.conformance("RY-10")
@pytest.mark.parametrize(("error", "tries"), [('Temporary("x")', 3), ('KeyError("x")', 1), ('LookupError("x")', 2)])
def test_of_several_policies_the_first_that_matches_decides(
    engine: Engine, tmp_path: Path, error: str, tries: int
) -> None:
    retry = (
        "[{on: [Temporary], max_attempts: 3, initial_interval: 1ms}, {on: ['builtins:KeyError'], max_attempts: 1}, "
        "{max_attempts: 2, initial_interval: 1ms}]"
    )
    outcome = engine.run(shaky(tmp_path, retry, fails=9, error=error))
    assert (outcome.status, calls(tmp_path)) == ("failed", (tries, 0))


@pytest.mark.conformance("RY-11")
def test_jitter_adds_up_to_as_much_again_and_nothing_exceeds_the_longest_pause(engine: Engine, tmp_path: Path) -> None:
    steady = "{max_attempts: 4, initial_interval: 10ms, backoff: 0, max_interval: 1s}"
    outcome = engine.run(shaky(tmp_path / "steady", steady, fails=3))
    assert all(10 <= delay < 20 for delay in delays(outcome)), "a factor of 0 counts as 1"
    growing = "{max_attempts: 4, initial_interval: 10ms, backoff: 10, max_interval: 60ms}"
    outcome = engine.run(shaky(tmp_path / "growing", growing, fails=3))
    first, *others = delays(outcome)
    assert 10 <= first < 20 and others == [60, 60]


@pytest.mark.conformance("RY-12")
def test_a_policy_that_says_only_how_often_begins_with_half_a_second_and_doubles_it(
    engine: Engine, tmp_path: Path
) -> None:
    outcome = engine.run(shaky(tmp_path, "{max_attempts: 3}", fails=2))
    assert (outcome.status, calls(tmp_path)) == ("completed", (3, 1))
    first, second = delays(outcome)
    assert 500 <= first < 1_000 <= second < 2_000


@pytest.mark.conformance("RY-13")
def test_a_failure_is_handled_before_the_next_try_begins(engine: Engine, tmp_path: Path) -> None:
    """On the fleet nothing waits for readers of a run's events, which are durable and in order; what must have seen a
    failure before the next try is its `error` callback."""
    retry = "{max_attempts: 3, initial_interval: 0}, callbacks: {error: 'f.py:handle'}"
    outcome = engine.run(shaky(tmp_path, retry, fails=2))
    did = (tmp_path / "did").read_text().split()
    assert did == ["work", "handling", "handled", "work", "handling", "handled", "work", "sink"], outcome.error
    types = [event.type for event in outcome.events if event.type in ("visit_retrying", "visit_closed")]
    assert types == ["visit_retrying", "visit_retrying", "visit_closed", "visit_closed", "visit_closed"]


@pytest.mark.conformance("RY-14")
def test_a_killed_worker_costs_no_try_and_a_killed_scheduler_no_pause(fleet: Fleet, tmp_path: Path) -> None:
    """Try 1 fails; the worker of try 2 dies, and it is executed again; the scheduler dies in the pause before try 3."""
    pause = "{max_attempts: 3, initial_interval: 3s, backoff: 1, jitter: false}"
    agent = shaky(tmp_path, pause, fails=9)
    (tmp_path / "hang-2").touch()
    run = fleet.client.submit(agent)
    wait_until((tmp_path / "hangs-2").exists, "the second try runs")
    fleet.stack.kill("work")
    fleet.stack.start_worker("work", concurrency=4)

    def pauses() -> list[dict[str, object]]:
        return [event.data for event in run.events(follow=False) if event.type == "visit_retrying"]

    wait_until(lambda: len(pauses()) == 2, "the pause before the third try")
    fleet.stack.kill("scheduler")
    fleet.stack.start_scheduler()
    info = run.wait(60)
    assert (info.status, calls(tmp_path)) == ("failed", (4, 0)), "three tries, of which one was executed twice"
    events = list(run.events(follow=False))
    assert [event.type for event in events].count("worker_lost") == 1
    assert [(data["attempt"], data["max_attempts"], data["delay_ms"]) for data in pauses()] == [
        (1, 3, 3000),
        (2, 3, 3000),
    ]
    failed = next(event for event in events if event.type == "visit_retrying" and event.data["attempt"] == 2)
    started = [event for event in events if event.type == "visit_started"][-1]
    assert started.at_ms - failed.at_ms >= 3_000, "the pause has survived the scheduler"
    [closed] = [event for event in events if event.type == "visit_closed"]
    assert closed.data["notes"][-1] == "execution failed after 3 attempts"
