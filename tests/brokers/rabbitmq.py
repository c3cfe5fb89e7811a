"""RabbitMQ as Celery's broker, Redis as the store: `make test-brokers`, which needs Debian's rabbitmq-server.

A node of its own, on free ports of this machine, with its files in a folder of the test's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from sleipnir.local import launch
from sleipnir.messages import VisitCall
from sleipnir.store.amqp_queues import AmqpQueues
from sleipnir_scheduler.dispatch import AmqpDispatcher, KombuDispatcher
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.secured import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The one below the wrapper on PATH, which would become the user `rabbitmq`."""
START_S = 180.0

GRAPH = """
name: mixed
version: sleipnir/1
start: script
nodes:
  script: {type: script, script: scripts/s.sh, next: [each, gpu]}
  each: {type: map, for_each: "{{numbers}}", as: n, node: double, collect: doubled}
  double: {type: function, call: "f.py:double"}
  gpu: {type: function, call: "f.py:gpu", queue: gpu}
  sure: {type: approval, question: "Sure?", options: ["yes"], routes: {"yes": done}, on_other: done,
         wait_for: [each, gpu]}
  done: {type: end, output: "{{doubled}} {{seen}}"}
"""
FUNCTIONS = """
def double(state):
    return {"output": 2 * state["n"]}

def gpu(state):
    return {"seen": "by gpu"}
"""


class RabbitMQ:
    """`url` is the broker's. It can be killed and started again with what it keeps on disk."""

    def __init__(self, folder: Path) -> None:
        port, self._folder = free_port(), folder
        epmd_port = free_port()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n")
        (folder / "plugins").write_text("[].\n")
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"slp{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        self._epmd = subprocess.Popen(launch.command(["epmd", "-port", str(epmd_port)]), env=self._env)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        self.start()

    def start(self) -> None:
        """And wait until it takes connections."""
        with (self._folder / "rabbitmq.log").open("ab") as log:
            self._process = subprocess.Popen(
                launch.command([str(SERVER)]), env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, "RabbitMQ answers", START_S, every_s=0.2)

    def _answers(self) -> bool:
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=5)
            return True
        except (OSError, OperationalError):
            return False

    def kill(self) -> None:
        """The virtual machine and what it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        self._epmd.kill()
        self._epmd.wait()

    def messages(self, queue: str) -> int:
        with Connection(self.url) as connection:
            return int(connection.channel().queue_declare(queue, passive=True).message_count)


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if not SERVER.exists() or shutil.which("epmd") is None:
        pytest.fail("rabbitmq-server is not installed here: apt-get install rabbitmq-server", pytrace=False)
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield broker
    broker.stop()


def test_a_message_for_an_undeclared_queue_waits_there(rabbit: RabbitMQ) -> None:
    call = VisitCall("run000000001", "a", 1, 1, "agent", "digest")
    dispatcher = AmqpDispatcher(rabbit.url)
    dispatcher.publish([(call, "early"), (call, "early")])
    assert rabbit.messages("early") == 2
    threads = [threading.Thread(target=dispatcher.publish, args=([(call, "crowd")] * 200,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until(lambda: rabbit.messages("crowd") == 800, "what several services of a scheduler publish is all there")
    dispatcher._connection.release()


def test_a_batch_has_the_messages_that_kombu_writes(rabbit: RabbitMQ) -> None:
    calls = [VisitCall("run000000001", "a", seq, 1, "agent", "digest", batch="b" * (seq % 2)) for seq in (1, 2, 3)]
    written = {}
    for kind in (AmqpDispatcher, KombuDispatcher):
        queues = [f"{kind.__name__}-{number % 2}" for number in range(3)]
        dispatcher = kind(rabbit.url)
        assert dispatcher.publish(zip(calls, queues, strict=True)) == (3, 0)
        assert {name: backlog.length for name, backlog in dispatcher.look({*queues, "nowhere"}).items()} == {
            queues[0]: 2, queues[1]: 1, "nowhere": 0
        }  # fmt: skip
        with Connection(rabbit.url) as connection:
            channel = connection.channel()
            taken = [channel.basic_get(queue, no_ack=True) for queue in sorted(queues)]
        written[kind] = [(message.body, message.headers, message.properties) for message in taken]
        dispatcher._connection.release()
    assert written[AmqpDispatcher] == written[KombuDispatcher]


def refused(dispatcher: AmqpDispatcher, call: VisitCall) -> bool:
    try:
        dispatcher.publish([(call, "away")])
    except (OSError, OperationalError):
        return True
    return False


def test_a_dispatcher_and_who_asks_for_lengths_reconnect_to_a_broker_that_was_away(rabbit: RabbitMQ) -> None:
    call = VisitCall("run000000001", "a", 1, 1, "agent", "digest")
    dispatcher, queues = AmqpDispatcher(rabbit.url), AmqpQueues(rabbit.url)
    assert dispatcher.publish([]) == (0, 0)
    dispatcher.publish([(call, "away")] * 100)
    wait_until(lambda: queues.lengths(["away", "nowhere"]) == {"away": 100, "nowhere": 0}, "the messages are there")
    rabbit.kill()
    wait_until(lambda: queues.lengths(["away"]) == {}, "it is noticed by who asks")
    wait_until(lambda: refused(dispatcher, call), "it is noticed by who publishes")
    rabbit.start()
    before = queues.lengths(["away"])["away"]
    assert dispatcher.publish([(call, "away")] * 5) == (5, 0)
    wait_until(lambda: queues.lengths(["away"])["away"] == before + 5, "the new messages are there")
    queues.close()
    dispatcher._connection.release()


def test_messages_that_the_broker_has_lost_are_published_again(
    rabbit: RabbitMQ, redis_server: RedisServer, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "mixed", GRAPH, scripts__s_sh="""echo '{"numbers": [1]}'\n""", f_py=FUNCTIONS)
    settings = {"broker_url": rabbit.url, "key_prefix": tmp_path.name, "redispatch_after_s": 1}
    with Stack(redis_server, tmp_path / "home", **settings) as stack, stack.client() as client:
        stack.start_scheduler()
        runs = [client.submit(agent, str(number)) for number in range(5)]
        wait_until(lambda: client.health().queues.get("scripts") == 5, "the scripts are published")
        with Connection(rabbit.url) as connection:
            assert connection.channel().queue_purge("scripts") == 5
        stack.start_worker("many")
        stack.start_worker("gpu", "gpu", pool="prefork", concurrency=1)
        for run in runs:
            wait_until(run.gates, f"{run} asks", 60)
            run.cancel()


def test_runs_complete_and_continue_after_the_broker_was_killed(
    rabbit: RabbitMQ, redis_server: RedisServer, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "mixed", GRAPH, scripts__s_sh="""echo '{"numbers": [1, 2, 3]}'\n""", f_py=FUNCTIONS)
    settings = {"broker_url": rabbit.url, "key_prefix": tmp_path.name}
    with Stack(redis_server, tmp_path / "home", **settings) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker("many")
        stack.start_worker("gpu", "gpu", pool="prefork", concurrency=1)
        runs = [client.submit(agent, str(number)) for number in range(10)]
        for run in runs:
            wait_until(run.gates, f"{run} asks\n{stack.log('many')[-2000:]}", 60)
        assert client.health().queues.items() >= {"scripts": 0, "functions": 0, "gpu": 0}.items()
        assert client.health().oldest_ms == {}, "only a Redis tells ages"
        batch = client.batch(agent, ({"prompt": str(number)} for number in range(20)))
        wait_until(lambda: batch.info().active == 20, "all rows are admitted, by the lengths of queues", 60)
        batch.cancel()
        health = [stack.sleipnir("worker", "--health", "-n", name) for name in ("many", "gpu")]
        assert [done.returncode for done in health] == [0, 0], [done.stderr for done in health]
        assert stack.sleipnir("doctor").returncode == 0
        rabbit.kill()
        for run in runs:
            run.answer("yes")
            assert run.wait(60).status == "completed", run.error
            assert run.output == "[2,4,6] by gpu"
        late = client.submit(agent, "while it is away")
        rabbit.start()
        wait_until(late.gates, "a run that was submitted meanwhile asks", 120)
        late.answer("yes")
        assert late.wait(60).status == "completed"
        stack.signal("gpu", signal.SIGTERM)
        assert stack.processes["gpu"].wait(40) == 0
