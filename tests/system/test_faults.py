"""Kill things while they run: what was accepted ends, what was committed stays, what was late is refused."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import ConfigError, StoreUnavailable, StoreUnsuitable
from sleipnir.local.home import Home
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from sleipnir.store.store import Store
from tests import starter
from tests.processes import RedisServer, Stack, wait_until, write_agent

SCRIPTS = """
name: chain
start: a
nodes:
  a: {type: script, script: step.sh, next: b}
  b: {type: script, script: step.sh, next: c}
  c: {type: script, script: step.sh, next: done}
  done: {type: end, output: "{{trace}}"}
"""
STEP = """
sleep 0.3
python3 -c 'import json, os
state = json.loads(os.environ["GRAPH_STATE"])
print(json.dumps({"trace": state.get("trace", "") + os.environ["GRAPH_NODE_ID"]}))'
"""

SLOW = """
name: slow
start: a
nodes:
  a: {type: script, script: a.sh, next: done, timeout: 600}
  done: {type: end, output: "by attempt {{attempt}}"}
"""
# The first attempt says where it is and hangs; the next one ends at once.
HANG_ONCE = """
if [ ! -e "$MARK" ]; then echo $$ > "$MARK"; sleep 30; echo '{"attempt": "1"}'; else echo '{"attempt": "2"}'; fi
"""


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def own_stack(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(own_redis, tmp_path / "home") as stack:
        yield stack


def hang_once(folder: Path) -> tuple[Path, Path]:
    """An agent whose first attempt hangs, and the file that appears when it does."""
    mark = folder / "mark"
    return write_agent(folder / "slow", SLOW, a_sh=HANG_ONCE.replace("$MARK", str(mark))), mark


def test_a_visit_whose_worker_is_killed_is_run_by_another_worker(own_stack: Stack, tmp_path: Path) -> None:
    agent, mark = hang_once(tmp_path)
    own_stack.start_scheduler()
    own_stack.start_worker("first")
    with own_stack.client() as client:
        run = client.submit(agent)
        pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "the script runs"))
        own_stack.start_worker("second")
        own_stack.kill("first")
        info = run.wait(60)
        assert (info.status, run.output) == ("completed", "by attempt 2")
        step = run.history()[1]
        assert (step.attempt, step.worker.split("@")[0]) == (2, "second")
        assert [event.type for event in run.events(follow=False)].count("worker_lost") == 1
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the dead worker's script died with it")


@pytest.mark.conformance("DU-03")
def test_a_frozen_worker_s_result_is_refused_and_shown(own_stack: Stack, tmp_path: Path) -> None:
    """SIGSTOP, another worker takes over, SIGCONT: the first worker's late result changes nothing."""
    text = SLOW.replace("type: script, script: a.sh", "type: function, call: 'f.py:f'").replace(
        "by attempt {{attempt}}", "{{who}}"
    )
    mark, go = tmp_path / "mark", tmp_path / "go"
    code = (
        "import os, pathlib, threading\n"
        f"mark, go = pathlib.Path({str(mark)!r}), pathlib.Path({str(go)!r})\n"
        "def f(state):\n"
        "    first = not mark.exists()\n"
        "    mark.touch()\n"
        "    while first and not go.exists():\n"
        "        threading.Event().wait(0.01)\n"
        "    return {'who': 'frozen' if first else 'other'}\n"
    )
    agent = write_agent(tmp_path / "late", text, f_py=code)
    # A heartbeat that is slower than this test: the thawed worker must not learn of its loss before it delivers.
    own_stack.settings = own_stack.settings.replaced(heartbeat_s=60.0)
    own_stack.start_scheduler()
    own_stack.start_worker("frozen", pool="solo")
    with own_stack.client() as client:
        run = client.submit(agent)
        wait_until(mark.exists, "the function runs")
        own_stack.signal("frozen", signal.SIGSTOP)
        own_stack.start_worker("other", pool="solo")
        wait_until(lambda: run.info().is_final, "the other worker took over")
        assert run.output == "other"
        journal = run.history()
        go.touch()
        own_stack.signal("frozen", signal.SIGCONT)
        late = wait_until(
            lambda: [event for event in run.events(follow=False) if event.type == "late_result"],
            "the late result is refused",
        )
        assert late[0].data["attempt"] == 1
        assert late[0].data["worker"].startswith("frozen@")
        assert run.history() == journal
        assert run.output == "other"


POISON = """
name: poison
version: sleipnir/1
start: a
nodes:
  a: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{initial_prompt}}"}
"""
KILLS_ITS_WORKER = """
import os, signal

def f(state):
    with open("FILE", "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.conformance("DU-09")
def test_a_node_that_kills_its_workers_fails_its_run_with_the_reason_and_no_other(
    own_stack: Stack, tmp_path: Path
) -> None:
    own_stack.settings = own_stack.settings.replaced(max_redeliveries=2)
    code = KILLS_ITS_WORKER.replace("FILE", str(tmp_path / "began"))
    poison = write_agent(tmp_path / "poison", POISON, f_py=code)
    own_stack.start_scheduler()
    with own_stack.client() as client:
        run = client.submit(poison)
        for number in range(3):
            own_stack.start_worker(f"victim-{number}", ready=False)
            own_stack.processes[f"victim-{number}"].wait(60)
        own_stack.start_worker("survivor")
        healthy = client.submit(write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP))
        assert run.wait(60).status == "failed"
        assert "WorkerLost: 3 workers died" in (run.error or "")
        assert healthy.wait(60).status == "completed"
        assert [event.type for event in run.events(follow=False)].count("worker_lost") == 3
        assert (tmp_path / "began").read_text() == "xxx", "and nobody tries it again"
        step = run.history()[-1]
        assert (step.node, step.ok, step.attempt) == ("a", False, 3)


@pytest.mark.conformance("S13")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_survives_kill_nine_of_scheduler_workers_and_redis_at_once(tmp_path: Path, seed: int) -> None:
    """`sleipnir up` is killed with everything it started, at a random moment, and started again."""
    agent = write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP)
    home = Home(tmp_path / "h")
    settings = Settings(home=home.root, lease_s=2.0, heartbeat_s=0.5, redispatch_after_s=2.0, owner_ttl_s=2.0)
    first = _up(settings)
    wait_until(lambda: (state := home.running()) and state.workers, "the stack is up")
    connected = settings.replaced(redis_url=home.redis_url)
    with Client(connected) as client:
        run_id = client.submit(agent).id
        threading.Event().wait(random.Random(seed).uniform(0.2, 2.0))
    killed = _kill_tree(first)
    assert killed >= 4, "supervisor, redis, scheduler, workers"
    second = _up(settings)
    try:
        wait_until(lambda: (state := home.running()) and state.workers, "the stack is up again")
        with Client(connected) as client:
            run = client.run(run_id)
            assert run.wait(60).status == "completed"
            assert run.output == "abc"
            assert [step.node for step in run.history()] == [None, "a", "b", "c", "done"]
            assert client.store.runs.fold(run_id) == run.state()
    finally:
        second.terminate()
        second.wait(60)


def _up(settings: Settings) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "up.log").open("ab") as log:
        command = [sys.executable, "-m", "sleipnir", "up"]
        return subprocess.Popen(command, env=env | settings.to_env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL a process and all its descendants, the parents first. Returns how many."""
    pids = [process.pid]
    for pid in pids:
        with contextlib.suppress(OSError):  # a script may end while we look
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it died with its parent, which we killed before it
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all of them are gone")
    return len(pids)


def test_a_run_submitted_while_nothing_runs_continues_when_scheduler_and_worker_come(
    own_stack: Stack, tmp_path: Path
) -> None:
    with own_stack.client() as client:
        run = client.submit(write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP))
        assert run.status == "submitted"
        own_stack.start_scheduler()
        wait_until(lambda: run.info().visits, "the first visit is queued")
        assert run.info().visits[0].state == "queued"
        own_stack.start_worker()
        assert run.wait(60).status == "completed"


def test_another_scheduler_takes_over_when_one_is_killed(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler("one")
    own_stack.start_worker()
    with own_stack.client() as client:
        wait_until(lambda: client.health().schedulers, "the first scheduler is there")
        own_stack.start_scheduler("two")
        run = client.submit(write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP))
        wait_until(lambda: len(run.history()) > 1, "the run has moved")
        own_stack.kill("one")
        assert run.wait(60).status == "completed"
        assert run.output == "abc"
        assert [step.node for step in run.history()] == [None, "a", "b", "c", "done"]


@pytest.mark.conformance("DU-02")
def test_lost_and_doubled_celery_messages_change_nothing(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler()
    with own_stack.client() as client:
        run = client.submit(write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP))
        redis = client.store._client
        queue = client.store.keys.broker_prefix + "scripts"
        wait_until(lambda: redis.llen(queue), "the first visit is published")
        redis.delete(queue)
        wait_until(lambda: redis.llen(queue), "the lost message is published again")
        message = redis.lindex(queue, 0)
        redis.lpush(queue, message, message, message)
        own_stack.start_worker(concurrency=4)
        assert run.wait(60).status == "completed"
        assert run.output == "abc"
        assert [step.node for step in run.history()] == [None, "a", "b", "c", "done"]


def test_redis_down_at_submit_is_reported_with_a_suggestion(own_redis: RedisServer, tmp_path: Path) -> None:
    settings = Settings(**own_redis.addresses, home=tmp_path)
    own_redis.kill()
    with pytest.raises(StoreUnavailable, match=r"does not answer.*Is it running"):
        Client(settings)


@pytest.mark.conformance("DU-05")
def test_redis_restarted_in_the_middle_is_found_again(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler()
    own_stack.start_worker()
    with own_stack.client() as client:
        run = client.submit(write_agent(tmp_path / "chain", SCRIPTS, step_sh=STEP))
        wait_until(lambda: len(run.history()) > 1, "the run has moved")
        own_stack.redis.kill()
        own_stack.redis.start()
        assert run.wait(60).status == "completed"
        assert run.output == "abc"
        assert [step.node for step in run.history()] == [None, "a", "b", "c", "done"]


class OldRedis(threading.Thread):
    """A server that speaks enough of Redis' protocol to say that it is version 5."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"

    def run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        info = b"# Server\r\nredis_version:5.0.14\r\n"
        with connection, connection.makefile("rb") as lines:
            while header := lines.readline():
                words = [lines.readline() and lines.readline().strip() for _ in range(int(header[1:]))]
                match words[0].upper():
                    case b"INFO":
                        connection.sendall(b"$%d\r\n%s\r\n" % (len(info), info))
                    case b"HELLO":
                        connection.sendall(b"-ERR unknown command `HELLO`\r\n")
                    case _:
                        connection.sendall(b"+OK\r\n")


def test_redis_five_is_refused_with_a_way_out(tmp_path: Path) -> None:
    server = OldRedis()
    server.start()
    with pytest.raises(StoreUnsuitable, match=r"version 5\.0\.14; Sleipnir needs 6\.2"):
        Store.open(Settings(redis_url=server.url, home=tmp_path))


def test_another_number_of_partitions_is_refused(own_redis: RedisServer, tmp_path: Path) -> None:
    Store.open(Settings(**own_redis.addresses, home=tmp_path, partitions=4)).close()
    with pytest.raises(ConfigError, match="created with 4 partitions"):
        Store.open(Settings(**own_redis.addresses, home=tmp_path, partitions=8))


def test_a_redis_that_evicts_keys_is_refused_with_the_command_that_changes_it(
    own_redis: RedisServer, own_stack: Stack
) -> None:
    """Finding C19 of the second review: accepted work was lost without a word."""
    client = connect(own_redis.url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreUnsuitable, match="CONFIG SET maxmemory-policy noeviction"):
        Client(own_stack.settings)
    for words in (["-m", "sleipnir_scheduler"], ["-m", "sleipnir", "ps"]):
        ended = starter.run([sys.executable, *words], own_stack.environment())
        assert ended.returncode == 1
        assert "maxmemory-policy 'allkeys-lru'" in ended.stderr
    said = own_stack.sleipnir("doctor")
    assert "fail  maxmemory: allkeys-lru" in said.stdout
    assert "CONFIG SET maxmemory-policy noeviction" in said.stdout
    Client(own_stack.settings.replaced(allow_eviction=True)).close()
    client.config_set("maxmemory-policy", "noeviction")
    Client(own_stack.settings).close()
    client.close()


def test_a_redis_without_an_append_only_file_is_warned_of(own_redis: RedisServer, own_stack: Stack) -> None:
    """Finding C19 of the second review."""
    client = connect(own_redis.url)
    client.config_set("appendonly", "no")
    own_stack.start_scheduler()
    wait_until(lambda: "has no append-only file" in own_stack.log("scheduler"), "the scheduler warns")
    client.close()
