"""Broker messages that are no call of a visit, on real workers: dropped, counted, and no process ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.messages import VisitCall
from sleipnir.runs.claims import ClaimRefused
from sleipnir.runs.views import WorkerInfo
from sleipnir.store.keys import lines_of
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.unreadable import cases

GRAPH = """
name: hello
start: a
nodes:
  a: {type: script, script: a.sh, next: done}
  done: {type: end, output: "{{said}}"}
"""
A_SH = 'echo \'{"said": "hello"}\'\n'
OTHER = A_SH.replace("hello", "forged")


def worker_of(client: Client) -> WorkerInfo:
    return next(worker for worker in client.health().workers if worker.name.startswith("worker@"))


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_messages_that_cannot_be_read_are_dropped_and_counted_and_end_no_process(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    """Finding S7: one that is no JSON ended a worker process each, one without id was requeued for ever."""
    agent = write_agent(tmp_path / "hello", GRAPH, a_sh=A_SH)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"junk-{pool}") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker(pool=pool)
        before = worker_of(client).pid
        broker = client.store._broker
        first, last = (client.store.keys.broker_prefix + line for line in lines_of("scripts"))
        messages = cases("message")
        for case in messages:
            broker.lpush(first, case.of("run000000001"))
            broker.lpush(last, case.of("run000000001"))
        wait_until(lambda: not broker.exists(first, last), f"all are taken\n{stack.log('worker')}")
        run = client.submit(agent)
        run.wait(60)
        assert run.output == "hello", stack.log("worker")
        wait_until(lambda: worker_of(client).dropped >= 2 * len(messages), f"all are counted\n{stack.log('worker')}")
        assert worker_of(client).dropped == 2 * len(messages), stack.log("worker")
        assert worker_of(client).pid == before
        assert broker.llen(first) + broker.llen(last) == 0, "none comes again"
        assert "Traceback" not in stack.log("worker")


def message(stack: Stack, client: Client, run: str, **fields: Any) -> dict[str, Any]:
    """Edit the message that the broker's queue holds for a run; what its call said. Other runs' messages are lost."""
    first, _ = (client.store.keys.broker_prefix + line for line in lines_of("scripts"))

    def of_run() -> dict[str, Any] | None:
        text = client.store._broker.rpop(first)
        envelope: dict[str, Any] | None = json.loads(text) if text and f"{run}:a:1:1" in text else None
        return envelope

    envelope = wait_until(of_run, f"a message is there\n{stack.log('scheduler')}")
    assert envelope is not None
    [call], options, canvas = json.loads(envelope["body"])
    client.store._broker.lpush(first, json.dumps(envelope | {"body": json.dumps([[call | fields], options, canvas])}))
    return dict(call)


@pytest.mark.parametrize("field", ["bundle", "agent", "node", "role", "path", "v"])
def test_an_edited_message_executes_nothing_else_and_its_visit_continues(
    redis_server: RedisServer, tmp_path: Path, field: str
) -> None:
    """Finding S4: another bundle or node ran in a run's name, a digest loaded code from any path, `v: 99` was taken."""
    agent = write_agent(tmp_path / "hello", GRAPH, a_sh=A_SH)
    other = write_agent(tmp_path / "other", GRAPH, a_sh=OTHER)
    evil = write_agent(tmp_path / "evil", GRAPH, a_sh=OTHER)
    slow = {"redispatch_after_s": 600.0}  # the outbox publishes nothing again before it is told to
    with (
        Stack(redis_server, tmp_path / "home", key_prefix=f"edited-{field}", **slow) as stack,
        stack.client() as client,
    ):
        forged = client.submit(other)
        forged.cancel()
        run = client.submit(agent)
        values: dict[str, Any] = {
            "bundle": client.store.runs.spec(forged.id).bundle,
            "agent": "other",
            "node": "done",
            "role": "branch",
            "path": f"/../../../../../../../../../../../../{evil}",
            "v": 99,
        }
        stack.start_scheduler()
        call = message(stack, client, run.id, **{"bundle" if field == "path" else field: values[field]})
        stack.start_worker()
        wait_until(lambda: "was dropped" in stack.log("worker"), f"it is dropped\n{stack.log('worker')}")
        if field != "v":  # the worker itself asks for the next message of a visit that a newer one may take
            client.store.visits.publish_soon(run.id, call["seq"], call["attempt"], within_ms=0)
        run.wait(60)
        assert run.output == "hello", stack.log("worker")
        [attempt] = {step.attempt for step in run.history() if step.node == "a"}
        assert attempt == 1


def test_a_claim_whose_message_names_something_else_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    """Finding S4."""
    agent = write_agent(tmp_path / "hello", GRAPH, a_sh=A_SH)
    with Stack(redis_server, tmp_path / "home", key_prefix="forged") as stack, stack.client() as client:
        run = client.submit(agent)
        stack.start_scheduler()
        told = message(stack, client, run.id)
        for changed in ({"bundle": "0" * 64}, {"agent": "x"}, {"node": "done"}, {"role": "turn"}):
            call = VisitCall.from_json(told | changed)
            taken = client.store.visits.claim(call, worker="w", token="t", lease_ms=1_000, wanted=())
            assert taken == ClaimRefused("forged")
        spec = client.store.keys.of_run(run.id).spec
        written = json.loads(client.store._client.get(spec))
        for changed, expected in (({"v": 5}, ClaimRefused("unreadable")), ({"v": 1, "colour": "red"}, None)):
            client.store._client.set(spec, json.dumps(dict(reversed((written | changed).items()))))
            call = VisitCall.from_json(told)
            taken = client.store.visits.claim(call, worker="w", token="t", lease_ms=1_000, wanted=())
            assert taken == expected or (expected is None and not isinstance(taken, ClaimRefused))
