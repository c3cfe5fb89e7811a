"""The first peer: Celery as it comes, no-op tasks and chains. `python stock_celery.py TASKS STEPS LENGTH`.

Prints tasks and steps per second. Default settings but for the ignored results of the bare tasks; both times begin
with the first publish.
"""

from __future__ import annotations

import json
import os
import sys
import time

from celery import Celery, chain
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


def bare_tasks(count: int) -> float:
    """Tasks per second from the first publish to the last execution."""
    step.delay().get(timeout=60)  # the worker is up
    client = Connection(URL).default_channel.client
    started = time.perf_counter()
    for _ in range(count - 1):
        noop.delay()
    last = step.delay()  # consumed in order: when it is done, all before it were taken
    last.get(timeout=300)
    took_s = time.perf_counter() - started
    assert client.llen("celery") == 0
    return count / took_s


def chain_steps(count: int, length: int) -> float:
    """Steps per second of many chains at once."""
    started = time.perf_counter()
    results = [chain(step.s(0), *[step.s() for _ in range(length - 1)]).apply_async() for _ in range(count // length)]
    for result in results:
        assert result.get(timeout=300) == length
    return (count // length) * length / (time.perf_counter() - started)


if __name__ == "__main__":
    tasks, steps, length = map(int, sys.argv[1:])
    print(json.dumps({"tasks": bare_tasks(tasks), "chain": chain_steps(steps, length)}))
