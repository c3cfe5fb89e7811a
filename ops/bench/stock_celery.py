"""The first peer: Celery as it comes, no-op tasks and chains. `python stock_celery.py TASKS STEPS LENGTH`.

Prints its figures as JSON. Default settings but for the ignored results of the bare tasks; both times begin with the
first publish.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from celery import Celery, chain
from cpu_time import tree_s
from kombu import Connection

URL = os.environ["BENCH_BROKER"]
app = Celery("stock", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True


@app.task(name="noop", ignore_result=True)
def noop() -> None:
    """Nothing."""


@app.task(name="step")
def step(value: int = 0) -> int:
    return value + 1


def bare_tasks(count: int) -> int:
    """From the first publish to the last execution. Returns how many tasks there were."""
    client = Connection(URL).default_channel.client
    for _ in range(count - 1):
        noop.delay()
    last = step.delay()  # consumed in order: when it is done, all before it were taken
    last.get(timeout=300)
    assert client.llen("celery") == 0
    return count


def chain_steps(count: int, length: int) -> int:
    """Many chains at once. Returns how many steps there were."""
    results = [chain(step.s(0), *[step.s() for _ in range(length - 1)]).apply_async() for _ in range(count // length)]
    for result in results:
        assert result.get(timeout=300) == length
    return len(results) * length


def measured(name: str, load: Callable[[], int]) -> dict[str, float]:
    """Steps per second, and the CPU of all processes for one."""
    everybody = [os.getpid(), *map(int, os.environ["BENCH_PIDS"].split())]
    started, cpu_before_s = time.perf_counter(), tree_s(everybody)
    steps = load()
    took_s, cpu_s = time.perf_counter() - started, tree_s(everybody) - cpu_before_s
    return {f"celery_{name}_per_s": steps / took_s, f"cpu_celery_{name}_us": cpu_s / steps * 1e6}


if __name__ == "__main__":
    tasks, steps, length = map(int, sys.argv[1:])
    step.delay().get(timeout=60)  # the worker is up
    print(
        json.dumps(measured("tasks", lambda: bare_tasks(tasks)) | measured("chain", lambda: chain_steps(steps, length)))
    )
