"""Plugins of the deployment: installed as a distribution, found by their entry point, run in every worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.testing import Call, ModelServer, Reply
from tests.processes import RedisServer, Stack, write_agent

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"

GRAPH = """
name: audited
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages, word: string}
callbacks:
  model: {before: "hooks.py:ask"}
  tool: {before: "hooks.py:call"}
nodes:
  ask: {type: llm, instructions: "Tell of Project Falcon.", tools_node: work, next: count}
  work: {type: tools, tools: [delete_customer, add], next: ask}
  count: {type: script, script: count.sh, next: done}
  done: {type: end, output: "{{last_response}} {{word}}"}
"""
HOOKS = """
def ask(state, info, request): return None
def call(state, info, call): return "of the graph"
"""
TOOLS = '''
def delete_customer(name: str):
    """Delete a customer."""
    raise RuntimeError("never called")


def add(a: int, b: int):
    """Add two numbers."""
    return a + b
'''
FULL = """
import os


class Watch:
    def __init__(self):
        self.file = open(os.environ["WATCH_FILE"], "a")

    def note(self, *what):
        self.file.write(" ".join(map(str, what)) + chr(10))
        self.file.flush()

    def before_node(self, state, info):
        self.note("before", info.node)
        if info.node == "count":
            state["word"] = "changed"

    def after_node(self, state, info, result, error):
        self.note("after", info.node)
        if info.node == "count":
            return {"word": result["word"] + " by the plugin"}

    def node_error(self, state, info, error):
        raise ValueError("only logged")

    def before_model(self, state, info, request):
        if request["messages"][-1].get("content") == "answer yourself":
            return "by the plugin"

    def after_model(self, state, info, request, response, error):
        if response and response["content"] == "fail":
            raise PermissionError("not this answer")
"""


def installed(folder: Path, name: str, code: str, target: str) -> Path:
    """A distribution in a folder of its own, as an installer leaves it."""
    site = folder / f"site-{name}"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}_plugin.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sleipnir.plugins]\n{name} = {name}_plugin{target}\n")
    return site


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"plugins-{tmp_path.name}") as stack:
        yield stack


def start(stack: Stack, model: ModelServer, sites: list[Path], names: str, **env: str) -> None:
    variables = {**model.env(), "PYTHONPATH": os.pathsep.join(map(str, sites)), "SLEIPNIR_PLUGINS": names, **env}
    stack.start_scheduler()
    stack.start_worker("all", "scripts,functions,llm", env=variables)


@pytest.mark.conformance("TL-23")
def test_the_plugin_of_the_page_runs_before_what_the_graph_declares(own: Stack, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [target] = re.findall(r'^audit = "audit(:\w+)"', PAGE.read_text(), re.MULTILINE)
    agent = write_agent(
        tmp_path / "audited", GRAPH, hooks_py=HOOKS, tools_py=TOOLS, count_sh="""echo '{"word": "counted"}'"""
    )
    calls = [Call("delete_customer", {"name": "ann"}), Call("add", {"a": 1, "b": 2})]
    with ModelServer([Reply(calls=calls), "The end"]) as model, own.client() as client:
        start(own, model, [installed(tmp_path, "audit", code, target)], "audit")
        run = client.submit(agent, "go")
        assert (run.wait(60).status, run.output) == ("completed", "The end counted")
        refused, given = [json.loads(result.text) for result in model.requests[1].tool_results]
        assert refused == {"refused": "the operator does not permit this tool"}, "the plugin beats the graph"
        assert given == "of the graph", "where the plugin returns nothing, the graph's own callback decides"
        assert model.requests[0].system == "Tell of the project."
        marks = [mark for step in run.history() for mark in step.callbacks]
    assert marks == [
        "model call changed by before audit.before_model",
        "tool call skipped by before audit.before_tool",
        "tool call skipped by before hooks.py:call",
        "model call changed by before audit.before_model",
    ]
    assert "model called" in own.log("all")


@pytest.mark.conformance("LL-21", "EX-30")
def test_a_plugin_runs_around_each_node_with_no_change_of_the_graph(own: Stack, tmp_path: Path) -> None:
    count = 'echo "{\\"word\\": \\"saw $(echo "$GRAPH_STATE" | grep -o changed | head -1)\\"}"'
    hooks = HOOKS.replace("return None", "return 'of the graph'")
    agent = write_agent(tmp_path / "audited", GRAPH, hooks_py=hooks, tools_py=TOOLS, count_sh=count)
    notes = tmp_path / "notes"
    with ModelServer([]) as model, own.client() as client:
        site = installed(tmp_path, "watch", FULL, ":Watch")
        start(own, model, [site], "watch", WATCH_FILE=str(notes))
        run = client.submit(agent, "answer yourself")
        expected = ("completed", "by the plugin saw changed by the plugin")
        assert (run.wait(60).status, run.output) == expected
        assert notes.read_text().splitlines() == ["before ask", "after ask", "before count", "after count"]
        [ask, counted] = [step.callbacks for step in run.history() if step.callbacks]
        assert ask == ("model call skipped by before watch.before_model",)
        assert counted == ("input changed: word by before watch.before_node", "replaced by after watch.after_node")
        other = client.submit(agent, "another")
        assert (other.wait(60).status, other.output) == ("completed", "of the graph saw changed by the plugin")


def test_a_plugin_that_raises_fails_the_visit(own: Stack, tmp_path: Path) -> None:
    text = GRAPH.replace('  model: {before: "hooks.py:ask"}\n', "")
    agent = write_agent(tmp_path / "audited", text, hooks_py=HOOKS, tools_py=TOOLS, count_sh="exit 1")
    with ModelServer(["fail"]) as model, own.client() as client:
        site = installed(tmp_path, "watch", FULL, ":Watch")
        start(own, model, [site], "watch", WATCH_FILE=str(tmp_path / "notes"))
        run = client.submit(agent, "go")
        info = run.wait(60)
    assert info.status == "failed"
    assert "Plugin 'watch.after_model' raised PermissionError: not this answer" in (info.error or "")
    assert "an error callback failed" in own.log("all")


@pytest.mark.parametrize(
    ("names", "code", "target", "message"),
    [
        ("gone", "x = 1", "", "SLEIPNIR_PLUGINS names 'gone', but no installed package has that entry point"),
        ("broken", "import not_there", "", "plugin 'broken' (broken_plugin) cannot be loaded: ModuleNotFoundError"),
        ("empty", "x = 1", "", "plugin 'empty' has none of the functions that are called: before_node"),
        ("odd", "before_node = 3", "", "plugin 'odd': 'before_node' is a int, which cannot be called"),
    ],
)
def test_a_worker_with_a_plugin_that_cannot_run_does_not_start(
    own: Stack, tmp_path: Path, names: str, code: str, target: str, message: str
) -> None:
    site = installed(tmp_path, "other" if names == "gone" else names, code, target)
    env = {**own.environment(), "PYTHONPATH": str(site), "SLEIPNIR_PLUGINS": names}
    worker = [sys.executable, "-m", "sleipnir", "worker", "-Q", "scripts", "-c", "1", "-P", "threads"]
    ended = subprocess.run(worker, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    if names == "gone":
        assert "Installed are: other" in ended.stderr
        probe = subprocess.run([*worker, "--health"], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (probe.returncode, message in probe.stderr) == (1, True)
