"""Runs outlive their keys: exported and archived by real processes, through crashes, and swept beside live runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.failpoints import VARIABLE
from sleipnir.upkeep.archive import archived_lines, archived_runs
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_failpoints import dies

ASK = """
name: ask
start: a
nodes:
  a: {type: script, script: a.sh, next: ask}
  ask: {type: approval, question: go on?, options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end, output: "{{x}}"}
"""
A_SH = """echo '{"x": "done"}'\n"""
QUICK = "name: quick\nstart: a\nnodes:\n  a: {type: end, output: quick}\n"


def soon(client: Client, run: Run) -> None:
    """Let the archiver believe that the run expires in a minute."""
    keys = client.store.keys
    part = keys.of_partition(keys.partition_of(run.id))
    client.store._client.zadd(part.expiring, {run.id: client.store.now_ms() + 60_000}, xx=True)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_scheduler_dies_while_it_archives_and_another_continues(
    redis_server: RedisServer, tmp_path: Path, side: str
) -> None:
    archive = tmp_path / "archive"
    quick = write_agent(tmp_path / "quick", QUICK)
    fast = {"partitions": 1, "owner_ttl_s": 0.5, "archive": archive}
    with Stack(redis_server, tmp_path / "home", key_prefix=f"hk-{side}", **fast) as stack, stack.client() as client:
        stack.start_scheduler("victim", env={VARIABLE: f"archived.{side}=kill"})
        run = client.submit(quick)
        run.wait(60)
        lines = list(run.export())
        soon(client, run)
        dies(stack, "victim")
        stack.start_scheduler("second")
        part = client.store.keys.of_partition(0)
        wait_until(lambda: not client.store._client.zcard(part.expiring), f"it is noted\n{stack.log('second')}")
        assert client.store._client.zrange(part.archived, 0, -1) == [run.id]
        assert [(each.run, each.status) for each in archived_runs(archive)] == [(run.id, "completed")]
        assert list(archived_lines(archive, run.id)) == lines
        assert len(list(archive.iterdir())) == (2 if side == "before" else 1)


def test_the_command_line_exports_reads_the_archive_and_collects_garbage_during_a_run(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    archive, agents = tmp_path / "archive", tmp_path / "agents"
    write_agent(agents / "quick", QUICK)
    write_agent(agents / "ask", ASK, a_sh=A_SH)
    settings = {"archive": archive, "agents_dir": agents, "key_prefix": "hk"}
    with Stack(redis_server, tmp_path / "home", **settings) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        waiting, over = client.submit("ask"), client.submit("quick")
        over.wait(60)
        wait_until(waiting.gates, "it asks")

        file = tmp_path / "run.jsonl"
        assert stack.sleipnir("export", over.id, "-o", str(file)).returncode == 0
        shown = stack.sleipnir("export", over.id)
        assert shown.stdout == file.read_text()
        assert [json.loads(line)["type"] for line in shown.stdout.splitlines()] == ["run", "step", "step", "outcome"]
        nowhere = stack.sleipnir("export", over.id, "-o", str(tmp_path / "nowhere" / "run.jsonl"))
        assert (nowhere.returncode, "cannot write" in nowhere.stderr) == (2, True)
        assert stack.sleipnir("export", "nosuchrun000").returncode == 2

        soon(client, over)
        wait_until(lambda: list(archived_runs(archive)) if archive.is_dir() else None, "it is archived")
        listed = json.loads(stack.sleipnir("archive", "ls", "--json").stdout)
        assert [(each["run"], each["agent"]) for each in listed] == [(over.id, "quick")]
        assert stack.sleipnir("archive", "show", over.id).stdout == shown.stdout
        assert stack.sleipnir("archive", "show", waiting.id).returncode == 2

        keys = client.store.keys.of_run(over.id)
        client.store._client.persist(keys.state)
        client.store._client.delete(keys.run, keys.spec)
        found = json.loads(stack.sleipnir("gc", "--dry-run", "--json").stdout)
        assert {(each["kind"], each["name"], each["removed"]) for each in found} >= {("keys", over.id, False)}
        assert stack.sleipnir("gc").returncode == 0
        assert not client.store._client.exists(keys.state)
        waiting.answer("yes")
        assert (waiting.wait(60).status, waiting.output) == ("completed", "done")
