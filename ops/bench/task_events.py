"""The cost of reporting each visit to Flower.

Three stacks run at once: one sends no events, one sends events without a reader, one has a Flower that reads them on
the same cores. They get the load in turns, in one order and then in the reverse order, so that a change of the
machine's speed affects all of them.
"""

from __future__ import annotations

import base64
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ops.bench.engine import NODES, Stack, cpu_s, finish, no_op_agent, stack
from ops.bench.figures import Values
from ops.bench.processes import PYTHON, ROOT, processes
from sleipnir.settings import Settings
from tests.waiting import wait_until

TURNS = 6  # even: half of them in the other order
USER = "bench:bench"
CONFIGURATION = ROOT / "ops" / "flower" / "flowerconfig.py"


def measure(runs: int) -> Values:
    """Visits per second without events, and the share that remains with events, and with events and Flower.

    The CPU of a visit's events is that of all processes but Flower, which reads them.
    """
    with ExitStack() as until_the_end:
        engines = {
            "silent": until_the_end.enter_context(stack(SLEIPNIR_TASK_EVENTS="0")),
            "telling": until_the_end.enter_context(stack()),
            "heard": until_the_end.enter_context(stack()),
        }
        until_the_end.enter_context(flower(engines["heard"]))
        agents = {name: no_op_agent(engine.home) for name, engine in engines.items()}
        for name, engine in engines.items():
            finish([engine.client.submit(agents[name]) for _ in range(20)], engine.client)
        took_s, used_s = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0.0)
        for turn in range(TURNS):
            for name in engines if turn % 2 else reversed(engines):
                engine = engines[name]
                started, before_s = time.perf_counter(), sum(cpu_s(engine).values())
                finish([engine.client.submit(agents[name]) for _ in range(runs // TURNS)], engine.client)
                took_s[name] += time.perf_counter() - started
                used_s[name] += sum(cpu_s(engine).values()) - before_s
    visits = runs // TURNS * TURNS * NODES
    return {
        "visits_per_s_no_events": visits / took_s["silent"],
        "events_share": took_s["silent"] / took_s["telling"],
        "events_us": (used_s["heard"] - used_s["silent"]) / visits * 1e6,
        "events_heard_share": took_s["silent"] / took_s["heard"],
    }


@contextmanager
def flower(engine: Stack) -> Iterator[None]:
    """A Flower with our configuration; waits until it lists workers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [
        PYTHON, "-m", "celery", "-A", "sleipnir_workers.app", "flower", f"--conf={CONFIGURATION}", f"--port={port}",
    ]  # fmt: skip
    folder = engine.home / "flower"
    folder.mkdir()
    env = Settings(redis_url=engine.redis_url, home=folder, log_level="warning").to_env() | {"FLOWER_BASIC_AUTH": USER}
    login = {"Authorization": "Basic " + base64.b64encode(USER.encode()).decode()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/workers?status=true", headers=login)

    def hears() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return any(json.load(answer).values())
        except OSError:
            return False

    with processes({"flower": [command]}, env, folder):
        wait_until(hears, "Flower lists workers")
        yield
