"""How fast visits go, beside stock Celery in the same run: `python ops/bench/visits.py` (or `make bench`).

Engine: graphs of ten no-op function nodes on a real redis-server, one scheduler and two solo workers (one per core).
Peers, in processes of their own on the same server, one after the other: stock Celery no-op tasks (default settings but
for ignored results, a prefork worker of two, time from the first publish to the last execution), and a stock Celery
chain of ten with a Redis result backend. The hop is the time between two nodes of an otherwise idle system, from the
delivery of one result to the claim of the next visit, by Redis' clock.

Ratios of one run are meaningful; absolute numbers depend on the machine and its other guests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sleipnir import launch  # noqa: E402
from sleipnir.client import Client, Run, wait_all  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store.connect import broker_url, connect  # noqa: E402
from sleipnir.supervisor import find_server  # noqa: E402

NODES = 10
PEER = Path(__file__).with_name("stock_celery.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="graph runs of ten visits each (default 300)")
    parser.add_argument("--hops", type=int, default=20, help="runs, one at a time, for the hop (default 20)")
    parser.add_argument("--tasks", type=int, default=3000, help="stock Celery tasks (default 3000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything; medians are printed (default 3)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rounds = []
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", file=sys.stderr)
        rounds.append({**engine(options.runs, options.hops), **peers(options.tasks)})
    figures = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    figures["ratio to tasks"] = statistics.median(r["visits/s"] / r["celery tasks/s"] for r in rounds)
    figures["ratio to chain"] = statistics.median(r["visits/s"] / r["celery chain steps/s"] for r in rounds)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "rounds": rounds}, indent=2) + "\n")


def show(figures: dict[str, float]) -> None:
    print()
    for name, value in figures.items():
        print(f"{name:28} {value:12,.2f}")
    print()
    for name, target in (("ratio to tasks", 1.0), ("ratio to chain", 1.5)):
        verdict = "reached" if figures[name] >= target else "MISSED"
        print(f"target {name} >= {target}: {verdict}")


def engine(runs: int, hops: int) -> dict[str, float]:
    """Visits per second under load, the hop when idle, and Redis commands per visit."""
    with tempfile.TemporaryDirectory(prefix="slp-bench-") as folder, redis_server(Path(folder)) as url:
        home = Path(folder)
        settings = Settings(redis_url=url, home=home, log_level="warning")
        agent = no_op_agent(home / "noop")
        with processes(services(), settings.to_env(), home), Client(settings) as client:
            wait_until(lambda: len(client.health().workers) == 2, "the workers are up")
            finish([client.submit(agent) for _ in range(20)], client)
            idle = [ms for _ in range(hops) for ms in hops_of(client.submit(agent), client)]
            before = commands(url)
            started = time.perf_counter()
            finish([client.submit(agent) for _ in range(runs)], client)
            took_s = time.perf_counter() - started
            after = commands(url)
    visits = runs * NODES
    percentiles = statistics.quantiles(idle, n=100)
    return {
        "visits/s": visits / took_s,
        "hop p50 ms": percentiles[49],
        "hop p99 ms": percentiles[98],
        "redis calls/visit": (after["sent"] - before["sent"]) / visits,
        "incl. inside lua/visit": (after["all"] - before["all"]) / visits,
    }


def services() -> list[list[str]]:
    worker = [sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "worker", "-Q", "functions", "-P", "solo"]
    flags = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
    return [
        [sys.executable, "-m", "sleipnir_scheduler"],
        [*worker, "-n", "one@%h", *flags],
        [*worker, "-n", "two@%h", *flags],
    ]


def finish(runs: list[Run], client: Client) -> None:
    for info in wait_all(client.store, [run.id for run in runs], 300):
        assert info.status == "completed", info


def hops_of(run: Run, client: Client) -> Iterator[float]:
    """Milliseconds from the end of a visit's work to the claim of the next, for each pair of nodes of a run."""
    finish([run], client)
    started = {event.data["seq"]: event.at_ms for event in run.events(follow=False) if event.type == "visit_started"}
    for step in run.history()[1:]:
        if step.seq is not None and step.seq + 1 in started:
            yield started[step.seq + 1] - step.at_ms


def no_op_agent(folder: Path) -> Path:
    nodes = [f"  n{i}: {{type: function, call: 'noop.py:noop', next: n{i + 1}}}" for i in range(NODES)]
    folder.mkdir()
    text = "name: noop\nstart: n0\nnodes:\n" + "\n".join(nodes) + f"\n  n{NODES}: {{type: end}}\n"
    (folder / "graph.yaml").write_text(text)
    (folder / "noop.py").write_text("def noop(state):\n    return {}\n")
    return folder


def peers(tasks: int) -> dict[str, float]:
    """Stock Celery on a server of its own: bare tasks, then chains."""
    with tempfile.TemporaryDirectory(prefix="slp-bench-") as folder, redis_server(Path(folder)) as url:
        env = {"BENCH_BROKER": broker_url(url), "PYTHONPATH": str(PEER.parent)}
        worker = [sys.executable, "-m", "celery", "-A", "stock_celery", "worker", "-c", "2", "--loglevel", "ERROR"]
        with processes([worker], env, Path(folder)):
            measured = subprocess.run(
                [sys.executable, str(PEER), str(tasks), str(NODES)],
                env={**os.environ, **env},
                capture_output=True,
                text=True,
                timeout=300,
            )
    if measured.returncode:
        sys.exit(measured.stderr)
    return {name: float(value) for name, value in json.loads(measured.stdout).items()}


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A server with the settings of the embedded stack (append-only file, synced every second)."""
    socket = folder / "redis.sock"
    command = [
        str(find_server()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--loglevel", "warning",
    ]  # fmt: skip
    process = subprocess.Popen(launch.command(command), stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists, "redis-server is up")
        yield f"unix://{socket}?db=0"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def processes(commands_: list[list[str]], env: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / "services.log").open("wb") as log:
        started = [
            subprocess.Popen(launch.command(command), env={**os.environ, **env}, stdout=log, stderr=log)
            for command in commands_
        ]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


def commands(url: str) -> dict[str, int]:
    """Commands so far: `sent` by our processes, and `all`, which also counts what scripts call inside Redis."""
    client: Any = connect(url)
    stats: dict[str, Any] = client.info("commandstats")
    client.close()
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    return {"sent": sum(calls.get(name, 0) for name in SENT), "all": sum(calls.values())}


SENT = ("evalsha", "eval", "xread", "lpush", "brpop", "publish", "ping", "hello")
"""The commands of the load phase that scripts never call."""


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {timeout_s:g} s: {what}")
        pause.wait(0.02)


if __name__ == "__main__":
    main()
