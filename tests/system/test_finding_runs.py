"""Tags, namespaces, filters and groups of failures, with a real scheduler and workers and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import UsageError
from tests.processes import Stack, wait_until, write_agent

ASKS = """
name: asks
start: ask
nodes:
  ask: {type: approval, question: 'Go on?', options: ['yes'], routes: {'yes': done}, on_other: done}
  done: {type: end}
"""
BREAKS = """
name: breaks
version: sleipnir/1
start: broken
nodes:
  broken: {type: script, script: broken.py}
"""
BROKEN_PY = """
import os, sys
sys.exit(f"no order {len(os.environ['GRAPH_STATE'])} of '{os.getpid()}'")
"""
PARENT = """
name: parent
start: below
nodes:
  below: {type: agent, agent: child, prompt: '{{initial_prompt}}', next: done}
  done: {type: end}
"""
END = "name: %s\nstart: e\nnodes: {e: {type: end, output: done}}\n"


def ids(text: str) -> list[str]:
    return [info["id"] for info in json.loads(text)]


def test_a_run_is_found_by_its_tags_from_the_command_line(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "asks", ASKS)
    run = stack.sleipnir("submit", str(agent), "--tag", "find=me", "--tag", "tier=gold = 2").stdout.strip()
    with stack.client() as client:
        wait_until(lambda: client.run(run).info().status == "waiting", "it asks")
        assert client.run(run).info().tags == {"find": "me", "tier": "gold = 2"}
    found = stack.sleipnir("ps", "--tag", "find=me", "--reason", "person", "--json").stdout
    [info] = json.loads(found)
    assert (info["id"], info["tags"], info["namespace"]) == (run, {"find": "me", "tier": "gold = 2"}, "default")
    assert stack.sleipnir("ps", "--tag", "find=me", "--count").stdout == "1\n"
    assert stack.sleipnir("ps", "--tag", "find=you", "--count").stdout == "0\n"
    assert "find=me, tier=gold = 2" in stack.sleipnir("show", run).stdout
    with stack.client() as client:
        fork = client.run(run).fork(tags={"tier": "lead"})
        assert fork.info().tags == {"find": "me", "tier": "lead"}
        assert {info.id for info in client.runs(tags={"find": "me"})} == {run, fork.id}
        for each in (run, fork.id):
            client.run(each).cancel()
            client.run(each).wait(30)
        assert {info.status for info in client.runs(tags={"find": "me"})} == {"cancelled"}


def test_a_namespace_is_a_view_of_its_own(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "short", END % "short")
    run = stack.sleipnir("submit", str(agent), "--namespace", "team-a").stdout.strip()
    with stack.client() as client:
        client.run(run).wait(30)
        assert run not in [info.id for info in client.runs(1_000)]
        assert [info.id for info in client.runs(namespace="team-a")] == [run]
        assert run in [info.id for info in client.runs(1_000, namespace="*")]
    assert ids(stack.sleipnir("ps", "--all", "--json", "--namespace", "team-a").stdout) == [run]
    assert ids(stack.sleipnir("ps", "--all", "--json", SLEIPNIR_NAMESPACE="team-a").stdout) == [run]
    refused = stack.sleipnir("ps", SLEIPNIR_NAMESPACE="a b")
    assert refused.returncode == 2
    assert "SLEIPNIR_NAMESPACE" in refused.stderr


@pytest.mark.parametrize(
    "tags", [{"": "x"}, {"a b": "x"}, {"k": ""}, {"k": "x" * 201}, {"k": "a\nb"}, {f"k{n}": "x" for n in range(17)}]
)
def test_tags_are_checked_before_anything_is_stored(stack: Stack, tmp_path: Path, tags: dict[str, str]) -> None:
    agent = write_agent(tmp_path / "short", END % "short")
    with stack.client() as client:
        before = client.run_count(namespace="*", among=10**6)
        with pytest.raises(UsageError):
            client.submit(agent, tags=tags)
        with pytest.raises(UsageError):
            client.batch(agent, [{"prompt": "x"}], tags=tags)
        assert client.run_count(namespace="*", among=10**6) == before


def test_runs_that_a_run_starts_and_rows_of_a_batch_have_its_tags(stack: Stack, tmp_path: Path) -> None:
    write_agent(tmp_path / "child", END % "child")
    agent = write_agent(tmp_path / "parent", PARENT)
    with Client(replace(stack.settings, agents_dir=tmp_path)) as client:
        run = client.submit(agent, tags={"family": "one"}, namespace="families")
        run.wait(60)
        found = client.runs(tags={"family": "one"}, namespace="families", children=True)
        assert sorted(info.agent for info in found) == ["child", "parent"]
        assert [info.agent for info in client.runs(parent=run.id)] == ["child"]
        short = write_agent(tmp_path / "short", END % "short")
        batch = client.batch(short, [{"prompt": str(n)} for n in range(5)], tags={"family": "two"})
        batch.wait(60)
        assert len(client.runs(tags={"family": "two"})) == len(client.runs(batch=batch.id)) == 5
        assert client.run_count({"completed"}, tags={"family": "two"}) == 5
        assert batch.info().tags == {"family": "two"}
        assert client.runs(tags={"family": "two"}, rows=False) == []


def test_failures_are_listed_in_groups(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "breaks", BREAKS, scripts__broken_py=BROKEN_PY, broken_py=BROKEN_PY)
    with stack.client() as client:
        runs = [client.submit(agent, "x" * n, namespace="broken") for n in (1, 20)]
        assert {run.wait(60).status for run in runs} == {"failed"}
        [group] = client.failures(namespace="broken")
        assert (group.count, group.agent, group.node) == (2, "breaks", "broken")
        assert set(group.runs) == {run.id for run in runs}
        assert client.failures(namespace="broken", agent="other") == []
        assert len(client.runs(namespace="broken", text="no order 7", node="broken")) == 2
        assert client.run_counts(namespace="broken").counts == {"failed": 2}
    table = stack.sleipnir("failures", "--namespace", "broken").stdout
    assert "breaks" in table
    assert group.fingerprint in table
    found = stack.sleipnir("ps", "--namespace", "broken", "--fingerprint", group.fingerprint, "--json").stdout
    assert set(ids(found)) == {run.id for run in runs}
    assert json.loads(stack.sleipnir("failures", "--namespace", "broken", "--json").stdout)[0]["count"] == 2
    assert "no failed runs" in stack.sleipnir("failures", "--namespace", "nobody").stderr
