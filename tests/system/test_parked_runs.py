"""Records of another release and damaged effects, with real schedulers and the command line."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: hello
start: done
nodes:
  done: {type: end, output: hello}
"""
NEWER = "from sleipnir import decoding; decoding.READS = 5; from sleipnir_scheduler.main import main; main()"


def test_a_run_of_a_newer_client_is_parked_and_continues_with_a_newer_scheduler(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Finding C1: a field that one release adds, and a version that it adds, with an older scheduler."""
    agent = write_agent(tmp_path / "hello", GRAPH)
    with (
        Stack(redis_server, tmp_path / "home", key_prefix="parked", owner_ttl_s=1.0) as stack,
        stack.client() as client,
    ):
        strange, *others = [client.submit(agent) for _ in range(21)]
        for run, version in ((strange, 5), (others[0], 1)):
            key = client.store.keys.of_run(run.id).spec
            spec = json.loads(client.store._client.get(key))
            client.store._client.set(key, json.dumps(spec | {"colour": "red", "v": version}))
        stack.start_scheduler(env={"SLEIPNIR_METRICS_PORT": "0"})
        assert {run.wait(60).status for run in others} == {"completed"}
        info = wait_until(lambda: strange.info() if strange.info().parked else None, "it is parked")
        assert info is not None
        assert info.parked is not None
        why = f"spec of {strange.id} cannot be read: written by a newer release: version 5, this release reads up to 4"
        assert info.parked.reason == why
        [line] = [line for line in stack.sleipnir("ps").stdout.splitlines() if strange.id in line]
        assert " parked " in line
        assert why[:60] in line
        assert why in stack.sleipnir("show", strange.id).stdout
        assert "1 runs are parked" in stack.sleipnir("doctor").stdout
        [data] = json.loads(stack.sleipnir("ps", "--json").stdout)
        assert (data["id"], data["parked"]["reason"]) == (strange.id, why)
        port = json.loads(
            next(line for line in stack.log("scheduler").splitlines() if "metrics are served" in line)
        )["port"]  # fmt: skip
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            assert "sleipnir_runs_parked 1.0" in reply.read().decode()
        assert stack.log("scheduler").count("run is parked") == 1
        assert stack.sleipnir("cancel", others[0].id).returncode != 0
        stack.kill("scheduler")
        stack.start("newer", [sys.executable, "-c", NEWER])
        assert strange.wait(60).status == "completed", stack.log("newer")
        wait_until(lambda: not client.health().parked, "the mark is removed")


def test_a_dead_letter_is_listed_delivered_again_and_removed(redis_server: RedisServer, tmp_path: Path) -> None:
    """Finding C23: a way to look and to redeliver."""
    with Stack(redis_server, tmp_path / "home", key_prefix="dead") as stack, stack.client() as client:
        effects = client.store.keys.of_partition(0).effects
        client.store._client.xadd(effects, {"run": "run000000001", "e": '{"do": ["\x1b[31m"]}'})
        stack.start_scheduler()
        wait_until(client.store.dead_letters.count, "it is a dead letter")
        listed = stack.sleipnir("dead-letters", "ls")
        assert "run000000001" in listed.stdout
        assert "damaged" in listed.stdout
        assert "\x1b" not in listed.stdout
        [letter] = json.loads(stack.sleipnir("dead-letters", "ls", "--json").stdout)
        assert "1 effects cannot be delivered" in stack.sleipnir("doctor").stdout
        assert stack.sleipnir("dead-letters", "redeliver", letter["id"]).returncode == 0
        again = wait_until(lambda: list(client.store.dead_letters.all()), "it is a dead letter again")
        assert again[0].id != letter["id"]
        assert stack.sleipnir("dead-letters", "redeliver", letter["id"]).returncode == 1
        assert stack.sleipnir("dead-letters", "rm").returncode == 2
        assert stack.sleipnir("dead-letters", "rm", "p00").returncode == 2
        done = stack.sleipnir("dead-letters", "rm", "--all", "--json")
        assert json.loads(done.stdout) == {"done": [again[0].id], "missing": []}
        assert stack.sleipnir("dead-letters", "ls").stdout == ""
