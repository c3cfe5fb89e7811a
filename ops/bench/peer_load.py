"""The common part of the LangGraph and DBOS scripts: many runs in a few processes and threads, and the time they take.

Runs in the peers' virtual environment, so it imports nothing of Sleipnir.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cpu_time import tree_s

WARM_UP_RUNS = 3
LIMIT_S = 300.0


@dataclass(frozen=True)
class Load:
    """`store` is an SQLAlchemy-style URL: postgresql://... or sqlite:///PATH; `server` the pid behind it, or 0. `nice`
    is the nice value of the processes; the server has its own."""

    store: str
    server: int
    runs: int
    nodes: int
    processes: int
    threads: int
    nice: int

    @property
    def sqlite_path(self) -> str | None:
        return self.store.removeprefix("sqlite:///") if self.store.startswith("sqlite:///") else None


OneRun = Callable[[str], None]
"""Carries one run, of that id, from its beginning to its end."""


def from_arguments(description: str | None) -> Load:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--store", required=True)
    for name in ("server", "runs", "nodes", "processes", "threads", "nice"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return Load(**vars(parser.parse_args()))


def measure(load: Load, prepare: Callable[[Load, int], OneRun]) -> None:
    """Start the processes, let all of them get ready and warm, time the runs, and print the figures as JSON.

    `prepare` is called once in each process, with its number, after the fork: connections do not survive one.
    """
    everybody = [os.getpid(), *([load.server] if load.server else [])]
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(load.processes + 1)
    left = context.Value("i", load.runs)
    children = [context.Process(target=_child, args=(load, n, prepare, meeting, left)) for n in range(load.processes)]
    for child in children:
        child.start()
    try:
        meeting.wait(LIMIT_S)
        started, cpu_before_s = time.perf_counter(), tree_s(everybody)
        meeting.wait(LIMIT_S)
    except threading.BrokenBarrierError:
        sys.exit("a process of the peer failed")
    took_s = time.perf_counter() - started
    cpu_s = tree_s(everybody) - cpu_before_s
    for child in children:
        child.join()
    steps = load.runs * load.nodes
    print(json.dumps({"per_s": steps / took_s, "cpu_us": cpu_s / steps * 1e6}))


def _child(load: Load, number: int, prepare: Callable[[Load, int], OneRun], meeting: Any, left: Any) -> None:
    os.nice(load.nice)
    names = (f"{number}-{time.time_ns()}-{i}" for i in itertools.count())
    try:
        one_run = prepare(load, number)
        for _ in range(WARM_UP_RUNS):
            one_run(next(names))
        with ThreadPoolExecutor(load.threads) as pool:
            meeting.wait(LIMIT_S)
            working = [pool.submit(_work, one_run, f"{next(names)}-{thread}", left) for thread in range(load.threads)]
            for future in working:
                future.result()
        meeting.wait(LIMIT_S)
    except BaseException:
        traceback.print_exc()
        meeting.abort()
    finally:
        sys.stderr.flush()
        os._exit(0)  # the peers' own threads would hold up an ordinary exit


def _work(one_run: OneRun, name: str, left: Any) -> None:
    for number in itertools.count():
        with left.get_lock():
            if left.value <= 0:
                return
            left.value -= 1
        one_run(f"{name}-{number}")
