"""A Redis with TLS, our own authority and a user of least rights (ops/deploy/redis): everything works, nothing is
refused that we need, and what we do not need is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis

from sleipnir.client.client import Client
from sleipnir.errors import StoreUnavailable
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.secured import SecuredRedis

GRAPH = """
name: everything
version: sleipnir/1
model: openai:gpt-test
start: prepare
nodes:
  prepare: {type: script, script: scripts/prepare.py, next: [items, ask]}
  items: {type: map, for_each: "{{words}}", as: word, node: shout, collect: loud}
  shout: {type: function, call: "f.py:shout", retry: {max_attempts: 2, initial_interval: 10ms}}
  ask: {type: llm, prompt: go, tools: [echo, user__confirm], state_updates: {said: "{{output}}"}}
  sure: {type: approval, question: "Sure?", options: ["yes", "no"], routes: {"yes": call, "no": done}, on_other: done,
         wait_for: [items, ask]}
  call: {type: agent, agent: friend, prompt: "hello", state_updates: {child: "{{output}}"}, next: done}
  done: {type: end, output: "{{loud}} {{said}} {{child}}"}
"""
PREPARE = "import json\nprint(json.dumps({'words': ['a', 'b']}))\n"
FUNCTIONS = "def shout(state):\n    return {'output': state['word'].upper()}\n"
TOOLS = '''
def echo(text: str):
    """Say it again."""
    return text
'''
LIMITS = "models:\n  'openai:*': {requests_per_minute: 1000, tokens_per_minute: 1000000, max_parallel: 4}\n"
DANGEROUS = (
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"), ("ACL", "SETUSER", "x"), ("SHUTDOWN",), ("DEBUG", "SLEEP", "0"), ("MONITOR",), ("SAVE",),
    ("BGREWRITEAOF",), ("REPLICAOF", "NO", "ONE"), ("CLIENT", "KILL", "TYPE", "normal"), ("CLIENT", "LIST"),
    ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"), ("SLOWLOG", "GET"), ("MODULE", "LIST"), ("SWAPDB", "0", "1"),
    ("SORT", "slp:meta"), ("MIGRATE", "h", "1", "slp:meta", "0", "1"), ("RESTORE", "slp:x", "0", "x"),
    ("GET", "other"), ("SET", "other", "1"), ("DEL", "slpx"), ("PUBLISH", "other", "x"),
    ("EVAL", "return redis.call('GET', 'other')", "0"),
)  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    server = SecuredRedis(tmp_path_factory.mktemp("secured"))
    yield server
    server.stop()


def reply(request: Request) -> Reply | str:
    if "echo" not in request.tools:
        return f"friend heard {request.prompt}"
    turns: list[Reply | str] = [
        Reply(calls=[Call("echo", {"text": "t"}), Call("user__confirm", {"question": "May I?"})]), "all done"
    ]  # fmt: skip
    return turns[request.turn - 1]


@pytest.fixture(scope="module")
def stack(
    secured: SecuredRedis, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tls")
    agents = folder / "agents"
    write_agent(agents / "everything", GRAPH, scripts__prepare_py=PREPARE, f_py=FUNCTIONS, tools_py=TOOLS)
    (agents / "friend").mkdir()
    (agents / "friend" / "config.yaml").write_text("name: friend\nmodel: openai:gpt-test\ninstructions: Be kind.\n")
    (folder / "limits.yaml").write_text(LIMITS)
    settings = {"redis_url": secured.tls_url, "agents_dir": agents, "limits": folder / "limits.yaml"}
    with ModelServer(reply) as model, Stack(redis_server, folder / "home", **settings) as running:
        running.start_scheduler()
        running.start_worker(queues="scripts,functions,llm", concurrency=4, env=model.env(), ready=False)
        running.wait_for_worker("worker", 90)  # it imports litellm
        yield running


def test_all_that_we_do_is_allowed_over_tls(stack: Stack, secured: SecuredRedis) -> None:
    with stack.client() as client:
        run = client.submit("everything", "go")
        wait_until(lambda: [gate for gate in run.gates() if gate.question == "May I?"], "the model asks", 60)
        run.answer("yes")
        wait_until(lambda: [gate for gate in run.gates() if gate.question == "Sure?"], "the graph asks", 60)
        stopped = client.submit("everything", "stop")
        stopped.pause("a test")
        client.pause_all("a test")
        assert client.held() is not None
        client.resume_all()
        stopped.resume()
        stopped.cancel()
        run.answer("yes")
        assert run.wait(60).status == "completed", run.error
        assert run.output == '["A","B"] all done friend heard hello'
        assert [event.type for event in run.stream()][-1] == "run_ended"
        assert stopped.wait(60).status == "cancelled"
        for said in ("one", "two"):
            assert client.submit("friend", said, session="desk").wait(60).status == "completed"
        assert len(client.said("friend", "desk")) == 4
        assert client.remove_session("friend", "desk")
        failed = client.submit("friend", "three", session="desk")
        failed.wait(60)
        client.runs(children=True)
        run.history()
        run.tree()
        run.late_results()
    for words in (["doctor"], ["ps"], ["show", run.id], ["worker", "--health"], ["sessions", "ls", "friend"]):
        assert stack.sleipnir(*words).returncode == 0, words
    celery = ["-m", "celery", "-A", "sleipnir_workers.app", "inspect", "ping"]
    stack.start("inspect", [sys.executable, *celery])
    assert stack.processes["inspect"].wait(60) == 0, stack.log("inspect")
    assert secured.refused() == []
    logs = "".join(stack.log(name) for name in ("scheduler", "worker"))
    assert "planted" not in logs
    assert "sleipnir:***@localhost" in logs


def test_a_server_whose_authority_is_not_ours_is_refused(secured: SecuredRedis, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        Client(Settings(redis_url=secured.untrusted_url, home=tmp_path))


def test_what_we_do_not_need_is_refused(secured: SecuredRedis) -> None:
    client: Any = connect(secured.url, retries=0)
    for command in DANGEROUS:
        with pytest.raises(redis.exceptions.ResponseError, match=r"permission|can.t access|not allowed"):
            client.execute_command(*command)
    secured.forget_refused()


def test_each_command_of_each_script_is_allowed(secured: SecuredRedis) -> None:
    """Also of those that no test of this file calls: their commands are of the two groups that the user has, but
    for two that it has by name."""
    client: Any = connect(secured.admin_url)
    with resources.as_file(resources.files("sleipnir.store") / "lua") as folder:
        texts = [file.read_text() for file in folder.rglob("*.lua")]
    called = {name for text in texts for name in re.findall(r"redis\.p?call\(\s*['\"](\w+)['\"]", text)} - {
        "TIME",
        "INFO",
    }
    assert len(called) >= 30
    for name in sorted(called):
        groups = set(client.execute_command("COMMAND", "INFO", name)[name.lower()]["acl_categories"])
        assert groups & {"@read", "@write"}, name
        assert not groups & {"@admin", "@dangerous"}, name
