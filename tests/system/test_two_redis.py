"""Celery's lists and events on a Redis of their own: they may be lost, the store goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.store.connect import connect
from tests.asking import ASK, COUNT
from tests.processes import RedisServer, Stack, wait_until, write_agent


@pytest.mark.conformance("DU-04")
def test_a_broker_that_lost_everything_costs_no_run(redis_server: RedisServer, tmp_path: Path) -> None:
    broker = RedisServer("--appendonly", "no")
    ask, prefix = write_agent(tmp_path / "ask", ASK, f_py=COUNT), tmp_path.name
    settings = {"broker_url": broker.url, "key_prefix": prefix}
    try:
        with Stack(redis_server, tmp_path / "home", **settings) as stack, stack.client() as client:
            stack.start_scheduler()
            stack.start_worker(ready=False)
            stack.wait_for_worker("worker", 90)
            asked, held = client.submit(ask), client.submit(ask)
            wait_until(lambda: asked.gates() and held.gates(), "both ask", 60)
            assert set(client.health().queues) >= {"functions", "scripts"}
            health = stack.sleipnir("worker", "--health")
            assert health.returncode == 0, health.stderr
            store: Any = connect(redis_server.url)
            assert list(store.scan_iter(f"{prefix}:broker:*")) == []
            of_broker: Any = connect(broker.url)
            assert all(key.startswith(f"{prefix}:broker:") for key in of_broker.scan_iter())
            broker.kill()
            asked.answer("yes")  # is committed, and cannot be published
            broker.start()
            held.answer("no")
            for run, said in ((asked, "yes"), (held, "no")):
                assert run.wait(60).status == "completed", run.error
                assert run.output == f"{said} 2"
            assert stack.sleipnir("doctor").returncode == 0
    finally:
        broker.stop()
