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
