"""Agent nodes that are remote agents, over A2A: servers made with the a2a SDK, and of Sleipnir itself."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.client.run import Run
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

TOKEN = "token-of-the-remote-agent"
F = """
from sleipnir import interrupt
def verdict(state):
    count = interrupt("How many?", key="count", response_schema={"type": "integer", "maximum": 9})
    return {"verdict": state["topic"] + " " + str(count)}
def think(state):
    with open(state["log"], "a") as file:
        file.write("thought\\n")
"""
JUDGE = """
name: judge
version: sleipnir/1
start: first
nodes:
  first: {type: function, call: "f.py:think", next: second}
  second: {type: function, call: "f.py:think", next: ask}
  ask: {type: function, call: "f.py:verdict", next: done}
  done: {type: end, output: '{"verdict": "{{verdict}}"}'}
"""
SLOW = """
name: slow
version: sleipnir/1
start: long
nodes:
  long: {type: wait, event: never, next: done}
  done: {type: end, output: never}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def parent(name: str, url: str, prompt: str = "{{initial_prompt}}", **fields: Any) -> str:
    """A graph whose second node is the remote agent at `url`."""
    ask = {"type": "agent", "agent": "remote", "prompt": prompt, "next": "done", **fields}
    ask.setdefault("map_out", {"said": "{{child.output}}", "verdict": "{{child.state.verdict}}"})
    nodes = {
        "ask": ask,
        "done": {"type": "end", "output": "{{said}} / {{verdict}}"},
        "failed": {"type": "end", "output": "{{last_error}}"},
    }
    agents = {"remote": {"a2a": url, "token": "TEST"}}
    graph = {"name": name, "version": "sleipnir/1", "start": "ask", "agents": agents, "nodes": nodes}
    return json.dumps(graph)


class RemoteAgent:
    """The server of tests/remote_agent.py."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder, self.port = stack, folder, free_port()
        folder.mkdir()

    def start(self) -> None:
        words = [str(self.port), str(self.folder), TOKEN]
        self.stack.start("remote", [sys.executable, "-m", "tests.remote_agent", *words])
        try:
            wait_until(self._answers, "the remote agent listens", 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.stack.log('remote')}") from None

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def url(self, version: str = "new") -> str:
        return f"http://127.0.0.1:{self.port}/{version}"

    def executions(self, text: str) -> list[dict[str, str]]:
        file = self.folder / "executions"
        lines = file.read_text().splitlines() if file.exists() else []
        return [each for each in map(json.loads, lines) if each["text"].endswith(text)]


@pytest.fixture(scope="module")
def own(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("remote")
    settings = {"agents_dir": folder / "agents", "remote_networks": "127.0.0.0/8", "max_output_bytes": 1_000_000}
    with Stack(redis_server, folder / "home", key_prefix="remote", **settings) as stack:
        write_agent(folder / "agents" / "judge", JUDGE, f_py=F)
        write_agent(folder / "agents" / "slow", SLOW)
        stack.start_scheduler()
        yield stack


@pytest.fixture(scope="module")
def remote(own: Stack) -> Iterator[RemoteAgent]:
    made = RemoteAgent(own, own.home.parent / "remote")
    made.start()
    own.start_worker("w", "llm,functions", env={"TEST_A2A_TOKEN": f"http://127.0.0.1:{made.port} {TOKEN}"})
    yield made


@pytest.fixture(scope="module")
def client(own: Stack, remote: RemoteAgent) -> Iterator[Client]:
    with own.client() as opened:
        yield opened


def written(own: Stack, name: str, graph: str) -> str:
    assert own.settings.agents_dir is not None
    write_agent(own.settings.agents_dir / name, graph)
    return name


def child_of(client: Client, run: Run) -> Run:
    [child] = wait_until(lambda: list(client.runs(parent=run.id)), "the child has begun")
    return client.run(child.id)


@pytest.mark.parametrize("version", ["new", "old"])
def test_the_result_of_a_remote_agent_is_mapped_into_the_run(
    own: Stack, client: Client, remote: RemoteAgent, version: str
) -> None:
    graph = parent(f"first-{version}", remote.url(version), map_in={"topic": "{{initial_prompt}}"})
    run = client.submit(written(own, f"first-{version}", graph), f"say bells-{version}")
    run.wait(60)
    assert run.output == f"heard bells-{version} / bells-{version}"
    assert len(remote.executions(f"say bells-{version}")) == 1
    child = child_of(client, run)
    state = child.state()
    assert state["given"] == [{"topic": f"say bells-{version}"}]
    assert state["artifacts"][0]["name"] == "result"


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        ("fail", "the remote agent says that its task has failed: because of bells"),
        ("reject", "the remote agent says that its task is rejected: because of bells"),
        ("auth", "the remote agent wants another authentication: because of bells"),
    ],
)
def test_a_task_that_ends_badly_fails_the_node_with_its_reason(
    own: Stack, client: Client, remote: RemoteAgent, verb: str, error: str
) -> None:
    name = written(own, "fails", parent("fails", remote.url(), on_error="failed", map_out={"said": "{{child.output}}"}))
    run = client.submit(name, f"{verb} bells").wait(60)
    assert run.status == "completed"
    assert error in str(client.run(run.id).output)
    assert child_of(client, client.run(run.id)).info().status == "failed"


def test_a_message_in_the_place_of_a_task_is_the_result(own: Stack, client: Client, remote: RemoteAgent) -> None:
    graph = parent("message", remote.url(), map_out={"said": "{{child.output}}", "verdict": "none"})
    run = client.submit(written(own, "message", graph), "message bells")
    run.wait(60)
    assert run.output == "just bells / none"


@pytest.mark.parametrize("version", ["new", "old"])
def test_a_question_of_the_remote_agent_is_one_of_the_run(
    own: Stack, client: Client, remote: RemoteAgent, version: str
) -> None:
    graph = parent(f"asks-{version}", remote.url(version), map_out={"said": "{{child.output}}", "verdict": "none"})
    run = client.submit(written(own, f"asks-{version}", graph), f"ask bell-{version}")
    child = child_of(client, run)
    [gate] = wait_until(child.gates, "the question is there")
    assert f"Which bell-{version}?" in gate.question
    child.answer(f"big-{version}", gate)
    run.wait(60)
    assert run.output == f"chosen big-{version} / none"
    assert len(remote.executions(f"big-{version}")) == 1


def test_a_run_that_is_cancelled_cancels_the_task(own: Stack, client: Client, remote: RemoteAgent) -> None:
    run = client.submit(written(own, "slowly", parent("slowly", remote.url())), "slow cancel")
    child = child_of(client, run)
    [begun] = wait_until(lambda: remote.executions("slow cancel"), "the task has begun")
    wait_until(lambda: child.info().status == "waiting", "the run waits for the task")
    run.cancel()
    wait_until(lambda: child.info().is_final, "the child is over")
    assert (run.info().status, child.info().status) == ("cancelled", "cancelled")
    assert begun["task"] in {each["task"] for each in remote.executions("cancelled")}


def test_an_agent_node_whose_time_is_over_cancels_the_task(own: Stack, client: Client, remote: RemoteAgent) -> None:
    run = client.submit(written(own, "late", parent("late", remote.url(), timeout=3)), "slow timeout")
    info = run.wait(60)
    assert info.status == "failed" and "timed out after 3s" in str(info.error)
    [begun] = remote.executions("slow timeout")
    wait_until(
        lambda: begun["task"] in {each["task"] for each in remote.executions("cancelled")}, "the task is cancelled"
    )


def test_a_wait_for_a_remote_agent_holds_no_worker_and_outlasts_the_workers(
    own: Stack, client: Client, remote: RemoteAgent
) -> None:
    """Also the remote agent may be away for a while."""
    run = client.submit(written(own, "slower", parent("slower", remote.url())), "slow bells")
    child = child_of(client, run)
    wait_until(lambda: remote.executions("slow bells"), "the task has begun")
    wait_until(lambda: child.info().status == "waiting", "the run waits for the task")
    own.kill("w")
    own.start_worker("w", "llm,functions", env={"TEST_A2A_TOKEN": f"http://127.0.0.1:{remote.port} {TOKEN}"})
    (remote.folder / "go").touch()
    run.wait(90)
    (remote.folder / "go").unlink()
    assert run.output == "heard bells / bells"
    assert len(remote.executions("slow bells")) == 1


def test_a_remote_agent_that_is_away_is_tried_again(own: Stack, client: Client, remote: RemoteAgent) -> None:
    own.kill("remote")
    try:
        run = client.submit(written(own, "away", parent("away", remote.url())), "say patience")
        child = child_of(client, run)
        wait_until(lambda: "does not answer" in own.log("w"), "the worker has met nobody")
        wait_until(lambda: child.info().status == "waiting", "the run waits")
    finally:
        remote.start()
    run.wait(90)
    assert run.output == "heard patience / patience"
    assert len(remote.executions("say patience")) == 1


def test_an_address_that_is_private_is_refused(own: Stack, client: Client, remote: RemoteAgent) -> None:
    graph = parent("private", "http://10.1.2.3/agent")
    info = client.submit(written(own, "private", graph), "x").wait(60)
    assert info.status == "failed"
    assert "10.1.2.3 is not a public address: SLEIPNIR_REMOTE_NETWORKS" in str(info.error)


def test_a_token_goes_to_its_own_server_only(own: Stack, client: Client, remote: RemoteAgent) -> None:
    seen: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        graph = parent("thief", f"http://127.0.0.1:{other.server_port}")
        info = client.submit(written(own, "thief", graph), "x").wait(60)
        other.shutdown()
    assert info.status == "failed" and "status 404" in str(info.error)
    assert seen == [None]


@pytest.fixture(scope="module")
def console(own: Stack) -> Iterator[Console]:
    with console_of(own) as running:
        yield running


def without_token(graph: str) -> str:
    data = json.loads(graph)
    del data["agents"]["remote"]["token"]
    return json.dumps(data)


@pytest.mark.conformance("EX-48", "EX-49", "A2-02", "A2-04")
def test_a_graph_of_another_deployment_asks_and_goes_on_from_its_checkpoint(
    own: Stack, client: Client, remote: RemoteAgent, console: Console, tmp_path: Path
) -> None:
    """The work before the question is not repeated, and the final state of the remote graph is mapped into the run."""
    log = tmp_path / "thoughts"
    fields: dict[str, Any] = {"map_in": {"topic": "{{initial_prompt}}", "log": str(log)}}
    url = f"http://127.0.0.1:{console.port}/a2a/judge"
    graph = without_token(parent("court", url, map_out={"verdict": "{{child.state.verdict}}", "said": "yes"}, **fields))
    run = client.submit(written(own, "court", graph), "bells")
    child = child_of(client, run)
    [gate] = wait_until(child.gates, "the question is there")
    assert "How many?" in gate.question
    assert log.read_text() == "thought\nthought\n"
    child.answer("99", gate)
    [again] = wait_until(
        lambda: [each for each in child.gates() if each.opened_ms != gate.opened_ms], "what does not fit is asked again"
    )
    child.answer("7", again)
    assert (info := run.wait(60)).status == "completed", info.error
    assert run.output == "yes / bells 7"
    assert log.read_text() == "thought\nthought\n"


def test_a_cancel_reaches_the_run_of_another_deployment(
    own: Stack, client: Client, remote: RemoteAgent, console: Console
) -> None:
    url = f"http://127.0.0.1:{console.port}/a2a/slow"
    run = client.submit(written(own, "stops", without_token(parent("stops", url))), "bells")
    [far] = wait_until(lambda: list(client.runs(agents=["slow"])), "the remote run has begun")
    child = child_of(client, run)
    wait_until(lambda: child.info().status == "waiting", "the run waits for the task")
    run.cancel()
    wait_until(lambda: client.run(far.id).info().is_final, "the remote run is over")
    assert client.run(far.id).info().status == "cancelled"


@pytest.mark.parametrize(
    "point", ["remote_send.before", "remote_send.after", "remote_answer.before", "deliver.before@2"]
)
def test_a_worker_that_is_killed_begins_no_second_task_of_a_server_that_knows_messages(
    own: Stack, client: Client, remote: RemoteAgent, console: Console, tmp_path: Path, point: str
) -> None:
    """The servers of Sleipnir know the messages that they have had."""
    name, log = "killed-" + point.partition("@")[0].replace(".", "-"), tmp_path / "thoughts"
    action, _, number = point.partition("@")
    own.kill("w")
    own.start_worker(
        "dying", "llm", concurrency=1, env={"SLEIPNIR_FAILPOINTS": f"{action}=kill" + (f"@{number}" if number else "")}
    )
    url = f"http://127.0.0.1:{console.port}/a2a/judge"
    fields: dict[str, Any] = {
        "map_in": {"topic": point, "log": str(log)},
        "map_out": {"verdict": "{{child.state.verdict}}", "said": "yes"},
    }
    own.start_worker("functions", "functions")
    try:
        run = client.submit(written(own, name, without_token(parent(name, url, **fields))), point)
        if action == "remote_answer.before":
            child = child_of(client, run)
            [gate] = wait_until(child.gates, "the question is there")
            child.answer("3", gate)
        wait_until(lambda: own.processes["dying"].poll() is not None, "the worker has died")
        own.start_worker("next", "llm")
        if action != "remote_answer.before":
            child = child_of(client, run)
            [gate] = wait_until(child.gates, "the question is there")
            child.answer("3", gate)
        info = run.wait(90)
        assert (info.error, run.output) == (None, f"yes / {point} 3")
        assert log.read_text() == "thought\nthought\n"
    finally:
        for each in ("dying", "next", "functions"):
            if each in own.processes:
                own.kill(each)
        own.start_worker("w", "llm,functions", env={"TEST_A2A_TOKEN": f"http://127.0.0.1:{remote.port} {TOKEN}"})


ROUTER = """
name: support
version: sleipnir/1
start: route
agents:
  far: {a2a: "URL", token: TEST}
nodes:
  route: {type: router, branch: {by: "{{kind}}", to: {technical: t, billing: b}, default: g}}
  t:
    {type: agent, agent: far, prompt: "say {{initial_prompt}}", next: end, state_updates: {said: "far {{output}}"}}
  b:
    {type: agent, agent: local, prompt: "{{initial_prompt}}", next: end, state_updates: {said: "billing {{output}}"}}
  g:
    {type: agent, agent: local, prompt: "{{initial_prompt}}", next: end, state_updates: {said: "general {{output}}"}}
  end: {type: end, output: "[{{said}}]"}
"""
LOCAL = """
name: local
version: sleipnir/1
start: done
nodes: {done: {type: end, output: "near {{initial_prompt}}"}}
"""


@pytest.mark.conformance("EX-50")
def test_a_router_leads_to_remote_and_to_local_agents(own: Stack, client: Client, remote: RemoteAgent) -> None:
    written(own, "local", LOCAL)
    name = written(own, "support", ROUTER.replace("URL", remote.url()))
    expected = {
        "technical": "[far heard crash]", "billing": "[billing near crash]", "other": "[general near crash]",
    }  # fmt: skip
    for kind, output in expected.items():
        run = client.submit(name, "crash", state={"kind": kind})
        run.wait(60)
        assert run.output == output
    assert len(remote.executions("say crash")) == 1


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers each message with what the path names."""

    def do_GET(self) -> None:
        url = (
            f"http://127.0.0.1:{self.server.server_address[1]}{self.path.removesuffix('/.well-known/agent-card.json')}"
        )
        listed = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
        self._send({"name": "hostile", "supportedInterfaces": [] if "nothing" in self.path else listed})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        task = {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}
        match self.path:
            case "/huge":
                self._send({"jsonrpc": "2.0", "id": 1, "result": {"task": task, "filler": "x" * 2_000_000}})
            case "/deep":
                self._raw(b"[" * 100_000)
            case "/surrogate":
                parts = [{"text": "\ud800"}]
                self._send({"jsonrpc": "2.0", "result": {"task": {**task, "artifacts": [{"parts": parts}]}}})
            case "/shape":
                self._send({"jsonrpc": "2.0", "result": {"task": {"id": 5, "status": []}}})
            case "/redirect":
                self.send_response(302)
                self.send_header("Location", "http://10.0.0.1/")
                self.end_headers()
            case "/error":
                self._send({"jsonrpc": "2.0", "error": {"code": -32602, "message": "no such part\u001b[31m"}})

    def _send(self, data: Any) -> None:
        self._raw(json.dumps(data).encode())

    def _raw(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nothing", "has no endpoint for JSON-RPC in version 1.0 or 0.3 of A2A"),
        ("huge", "the answer has more than 1,000,000 bytes"),
        ("deep", "status 200, and no answer of A2A"),
        ("surrogate", "something that cannot be stored"),
        ("shape", "something that is no task"),
        ("redirect", "status 302, and no answer of A2A"),
        ("error", "the remote agent refuses SendMessage: no such part"),
    ],
)
def test_what_is_no_answer_of_the_protocol_fails_the_run(
    own: Stack, client: Client, remote: RemoteAgent, path: str, error: str
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as hostile:
        threading.Thread(target=hostile.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hostile.server_port}/{path}"
        info = client.submit(written(own, f"bad-{path}", without_token(parent(f"bad-{path}", url))), "x").wait(60)
        hostile.shutdown()
    assert info.status == "failed" and error in str(info.error)
