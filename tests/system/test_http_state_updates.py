"""Over HTTP: forks with other values of the state, and the error for the results of a batch that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sleipnir import Client
from sleipnir.client.http.batches import HttpBatch
from sleipnir.errors import BatchNotFound, UsageError
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKS = """
name: asks
version: sleipnir/1
start: work
state: {n: {type: int, default: 1}}
nodes:
  work: {type: script, script: work.sh, next: ask}
  ask: {type: approval, question: "{{n}}?", options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end, output: "{{n}}"}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("forks")
    write_agent(home / "agents" / "asks", ASKS, work_sh="echo '{\"n\": 2}'")
    with Stack(redis_server, home, key_prefix="httpforks", agents_dir=home / "agents") as found:
        yield found


@pytest.fixture(scope="module")
def console(stack: Stack) -> Iterator[Console]:
    stack.start_scheduler()
    stack.start_worker()
    with console_of(stack) as running:
        yield running


def test_a_run_is_forked_with_other_values(console: Console) -> None:
    with Client(f"http://127.0.0.1:{console.port}") as client:
        run = client.submit("asks", "x")
        wait_until(run.gates, "it asks")
        fork = run.update_state({"n": 9}, "work")
        wait_until(lambda: fork.status == "paused", "it stops before the next node")
        assert fork.state()["n"] == 9 and run.state()["n"] == 2
        fork.resume()
        wait_until(fork.gates, "it asks")
        assert fork.gates()[0].question == "9?"
        with pytest.raises(UsageError, match="nobody"):
            run.update_state({"n": 9}, "nobody")


def test_the_results_of_a_batch_that_is_not_there_are_refused(console: Console) -> None:
    with Client(f"http://127.0.0.1:{console.port}") as client, pytest.raises(BatchNotFound):
        list(HttpBatch(client.server, "none").results())  # type: ignore[attr-defined]


@pytest.mark.parametrize("named", [False, True])
def test_the_next_turn_of_a_thread_begins_with_other_values(console: Console, named: bool) -> None:
    thread = f"t-{named}"
    with Client(f"http://127.0.0.1:{console.port}") as client:
        with pytest.raises(UsageError, match="no thread"):
            client.update_state("asks", thread, {"n": 9}, "work")
        run = client.submit("asks", "x", thread=thread)
        wait_until(run.gates, "it asks")
        with pytest.raises(UsageError):  # its last run is not over
            client.update_state("asks", thread, {"n": 9}, "work")
        run.answer("yes")
        assert run.wait(60).status == "completed"
        step = next(step.step for step in run.history() if step.node == "work")
        config = {"configurable": {"thread_id": thread, "checkpoint_id": f"{run.id}:{step}"}}
        edited = client.update_state("asks", config if named else thread, {"n": 9}, "work")
        wait_until(lambda: edited.status == "paused", "it stops before the next node")
        assert edited.state()["n"] == 9
        found = client.thread("asks", thread)
        assert found is not None and (found.run, found.turns) == (edited.id, 2)
        with pytest.raises(UsageError, match="names no checkpoint"):
            client.update_state("asks", {"configurable": {"thread_id": thread, "checkpoint_id": "x"}}, {"n": 9})
