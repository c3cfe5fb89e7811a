"""Chats on real processes: what was said is known to the next message, whoever dies in between, and once."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

HEARS_WITHIN_S = 90

FRIEND = """
name: Friend
model: openai:gpt-test
instructions: Be kind.
conversation_starters: ["How is {{town}}?"]
variables:
  - {name: town, description: where you live, default: Oslo}
"""
TOOLS = '''
def look(what: str):
    """Look at something."""
    return f"{what} is there"
'''
ECHO = """
name: echo
start: e
nodes:
  e: {type: end, output: "{{initial_prompt}}!"}
"""
ASK = """
name: ask
start: sure
nodes:
  sure: {type: input, question: "Sure?", next: e, state_updates: {said: "{{input}}"}}
  e: {type: end, output: "{{said}}"}
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    (agents / "friend").mkdir(parents=True)
    (agents / "friend" / "config.yaml").write_text(FRIEND)
    (agents / "friend" / "tools.py").write_text(TOOLS)
    write_agent(agents / "echo", ECHO)
    write_agent(agents / "ask", ASK)
    with Stack(redis_server, tmp_path / "home", key_prefix=tmp_path.name, agents_dir=agents) as stack:
        stack.start_scheduler()
        yield stack


class Typing:
    """A `sleipnir chat` whose standard input is mine."""

    def __init__(self, stack: Stack, *words: str) -> None:
        self.stack = stack
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "sleipnir", "chat", *words],
            env={**stack.environment(), "NO_COLOR": "1"}, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def hear(self) -> str:
        """The next line of an answer. Fails where none comes."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        late = threading.Timer(HEARS_WITHIN_S, self.process.send_signal, [signal.SIGABRT])  # it shows its threads
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        assert line, f"no answer within {HEARS_WITHIN_S} s: {self.process.stderr.read()}\n{self._logs()}"
        return line.removesuffix("\n")

    def _logs(self) -> str:
        return "\n".join(f"{name}: {self.stack.log(name)[-3_000:]}" for name in self.stack.processes)

    def leave(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, out, errors

    def __enter__(self) -> Typing:
        return self

    def __exit__(self, *how: object) -> None:
        with self.process:  # which closes its streams, and waits
            self.process.kill()


def chat(stack: Stack, *words: str, lines: str) -> tuple[int, str, str]:
    """A chat whose messages are piped in."""
    with Typing(stack, *words) as typing:
        out, errors = typing.process.communicate(lines, timeout=120)
        return typing.process.returncode, out, errors


@pytest.mark.conformance("N01", "N02")
def test_a_graph_starts_again_with_each_message_and_has_no_session(own: Stack) -> None:
    code, out, errors = chat(
        own, "echo", lines="one\n\n.session\n.session s\n... two\n.nope\n.variable x y\n.exit\nthree\n"
    )
    assert (code, out) == (2, "one!\n... two!\n"), errors
    assert [line for line in errors.splitlines() if line.startswith("error: ")] == [
        "error: Graph-based agent 'echo' does not support sessions. The graph manages its own state.",
        "error: Graph-based agent 'echo' does not support sessions. The graph manages its own state; "
        "re-run without a session.",
        "error: there is no command '.nope'; .help lists them",
        "error: agent 'echo' has no variable 'x'; it declares: none",
    ]
    code, out, errors = chat(own, "ask", lines="one\ntwo\n")
    assert (code, out) == (3, ""), "nobody answers its question, so the chat ends there"
    assert errors.count("waits for an answer to 'sure'") == 1


def reply(request: Request) -> Reply:
    """Says which of the user's messages it sees; to `two` it first makes a call."""
    asked = [str(message["content"]) for message in request.messages if message["role"] == "user"]
    if asked[-1] == "two" and not request.tool_results:
        return Reply("looking", calls=[Call("look", {"what": "tea"}, id=f"c{len(asked)}")])
    return Reply(f"heard {' '.join(asked)}", hang=asked[-1] == "two")


def test_three_messages_over_two_processes_with_a_killed_worker_are_stored_once(own: Stack) -> None:
    own.start_worker("tools", "scripts", ready=False)
    with ModelServer(reply) as model:
        own.start_worker("models", "llm", env=model.env())
        with Typing(own, "friend", "--session", "desk") as first:
            first.say("one")
            assert first.hear() == "heard one"
            first.say("two")
            model.wait_for_requests(3, 60)  # the answer after the call hangs
            busy = own.sleipnir("run", "friend", "me too", "--session", "desk")
            assert (busy.returncode, busy.stdout) == (2, "")
            assert "session 'desk' of agent 'friend' is busy with run" in busy.stderr
            own.kill("models")
            model.release()
            own.start_worker("models", "llm", env=model.env())
            assert first.hear() == "looking"
            assert first.hear() == "heard one two"
            code, _, errors = first.leave()
        assert code == 0, errors
        code, out, errors = chat(own, "friend", "--session", "desk", lines="three\n")
        assert (code, out) == (0, "heard one two three\n"), errors
    found = json.loads(own.sleipnir("sessions", "show", "friend", "desk", "--json").stdout)
    assert [(message["role"], message["content"]) for message in found["said"]] == [
        ("user", "one"), ("assistant", "heard one"),
        ("user", "two"), ("assistant", "looking"), ("tool", '{"output":"tea is there"}'),
        ("assistant", "heard one two"),
        ("user", "three"), ("assistant", "heard one two three"),
    ]  # fmt: skip
    assert (found["session"]["messages"], found["session"]["run"]) == (8, None)
    assert [each["name"] for each in json.loads(own.sleipnir("sessions", "ls", "friend", "--json").stdout)] == ["desk"]
    assert own.sleipnir("sessions", "rm", "friend", "desk").returncode == 0
    assert own.sleipnir("sessions", "show", "friend", "desk").returncode == 2
    assert own.sleipnir("sessions", "ls", "friend", "--json").stdout == "[]\n"


def test_a_failed_run_adds_its_messages_after_a_retry_and_begins_with_the_session(own: Stack) -> None:
    def at_first_refused(request: Request) -> Reply:
        is_second = request.prompt == "second"
        return Reply(status=400) if is_second and len(model.requests) == 2 else reply(request)

    with ModelServer(at_first_refused) as model, own.client() as client:
        own.start_worker("models", "llm", env=model.env())
        client.submit("friend", "first", session="desk").wait(60)
        run = client.submit("friend", "second", session="desk")
        assert run.wait(60).status == "failed"
        assert len(client.said("friend", "desk")) == 2
        run.retry()
        assert run.wait(60).status == "completed"
        said = [message["content"] for message in client.said("friend", "desk")]
        assert run.info().session == "desk"
    assert said == ["first", "heard first", "second", "heard first second"]


class Terminal:
    """A chat on a terminal. Nothing is typed before the prompt: what comes while readline takes over is lost."""

    def __init__(self, stack: Stack, agent: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sleipnir", "chat", agent],
            env={**stack.environment(), "NO_COLOR": "1", "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        self._seen, self._prompt = "", f"{agent}> "

    def type(self, text: str) -> None:
        self.until(self._prompt)
        os.write(self._ours, text.encode())

    def until(self, wanted: str) -> str:
        """What was shown, up to this text."""
        while wanted not in self._seen:
            self._seen += os.read(self._ours, 4096).decode().replace("\r\n", "\n")
        shown, _, self._seen = self._seen.partition(wanted)
        return shown

    def leave(self) -> int:
        self.type("\x04")
        return self.process.wait(60)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *how: object) -> None:
        os.close(self._ours)
        self.process.kill()
        self.process.wait()


def slow(request: Request) -> Reply:
    asked = [str(message["content"]) for message in request.messages if message["role"] == "user"]
    return Reply(f"heard {' '.join(asked)}", hang=asked[-1] == "slow")


def test_ctrl_c_stops_the_answer_and_not_the_chat(own: Stack) -> None:
    with ModelServer(slow) as model:
        own.start_worker("models", "llm", env=model.env())
        with Terminal(own, "friend") as chat:
            chat.until("  .starter 1  How is Oslo?")
            chat.type(".variable town Bergen\n")
            chat.type(".starter 1\n")
            chat.until("heard How is Bergen?")
            chat.type("slow\n")
            model.wait_for_requests(2, 60)
            chat.process.send_signal(signal.SIGINT)
            chat.until("was cancelled")
            chat.type(".session\n")
            chat.until(": 2 messages\n")  # what was stopped is not remembered
            chat.type("fast\n")
            chat.until("heard How is Bergen? fast")
            assert chat.leave() == 0
    kept = (own.home / "chat_history").read_text()
    assert "fast" in kept.split("\n")
    assert wait_until(lambda: _no_session(own), "the temporary session is gone")


def _no_session(stack: Stack) -> bool:
    with stack.client() as client:
        redis = client.store.runs._client
        kept = list(redis.scan_iter(f"{stack.settings.key_prefix}:*:session:*"))
        # What is left for a minute says which removal it was, so that a repetition of it changes nothing.
        return all(redis.type(key) == "hash" and redis.hkeys(key) == ["changed"] for key in kept)
