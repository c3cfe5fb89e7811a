"""The peers, each in processes of its own: stock Celery here; LangGraph and DBOS in a virtual environment of their own.

LangGraph and DBOS run the chain in their own processes and threads. The best numbers of both for this machine are
measured first, for every store, and then used in all rounds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.engine import NODES
from ops.bench.figures import BenchFailed, NotMeasured, Values
from ops.bench.postgres import Server
from ops.bench.processes import (
    PYTHON,
    ROOT,
    environment,
    last_line,
    output_of,
    processes,
    redis_server,
    workspace,
)
from sleipnir.store.address import celery_broker

HERE = Path(__file__).parent
VENV = ROOT / ".build" / "bench-venv"
REQUIREMENTS = HERE / "requirements.txt"


def celery(tasks: int, chain_steps: int) -> Values:
    """Bare tasks, then chains, on a Redis with the settings of the engine's."""
    with workspace() as folder, redis_server(folder) as (url, redis_pid):
        env = {"BENCH_BROKER": celery_broker(url).url, "PYTHONPATH": str(HERE)}
        worker = [PYTHON, "-m", "celery", "-A", "stock_celery", "worker", "-c", "2", "--loglevel", "ERROR"]
        with processes({"workers": [worker]}, env, folder) as pids:
            env["BENCH_PIDS"] = " ".join(map(str, [redis_pid, *pids["workers"]]))
            command = [PYTHON, str(HERE / "stock_celery.py"), str(tasks), str(chain_steps), str(NODES)]
            measured: Values = json.loads(output_of(command, environment(env)))
    return measured


@dataclass(frozen=True)
class Shape:
    """How a peer spreads over the machine. Its processes have the nice value `nice`, its server has 0."""

    processes: int
    threads: int
    nice: int = 0

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads}" + (f", nice {self.nice}" if self.nice else "")


SERVER_SHAPES = (Shape(1, 4), Shape(2, 1), Shape(2, 1, 10), Shape(2, 2), Shape(2, 2, 10), Shape(2, 4))
FILE_SHAPES = (Shape(1, 1), Shape(1, 4), Shape(2, 1))  # one writer at a time, so more only wait


@dataclass(frozen=True)
class Peer:
    """LangGraph or DBOS on one store. `script` is run by the peers' interpreter."""

    name: str
    script: Path
    store: str

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return FILE_SHAPES if self.store == "sqlite" else SERVER_SHAPES

    @property
    def figure(self) -> str:
        """Steps per second."""
        return f"{self.name}_{self.store}_per_s"

    @property
    def cpu_figure(self) -> str:
        return f"cpu_{self.name}_{self.store}_us"

    def best_shape(self, runs: int, trials: int, server: Server | None) -> Shape:
        """The shape with the fastest of its trials; the trials of different shapes alternate.

        Raises BenchFailed when no shape works.
        """
        best: dict[Shape, float] = {}
        trouble = ""
        for shape in self.shapes * trials:
            try:
                rate = self.measure(runs, shape, server)[self.figure]
            except BenchFailed as error:  # SQLite may refuse a second writer
                trouble = str(error)
                continue
            best[shape] = max(rate, best.get(shape, 0))
        if not best:
            raise BenchFailed(trouble)
        return max(best, key=lambda shape: best[shape])

    def measure(self, runs: int, shape: Shape, server: Server | None) -> Values:
        """Nodes (or steps) per second, and the CPU that one takes, the server's included."""
        with workspace() as folder:
            used = Server(f"sqlite:///{folder}/store.db", 0) if self.store == "sqlite" else server
            if used is None:
                raise NotMeasured("PostgreSQL not found")
            numbers = {
                "server": used.pid,
                "runs": runs,
                "nodes": NODES,
                "processes": shape.processes,
                "threads": shape.threads,
                "nice": shape.nice,
            }
            options = [f"--{name}={value}" for name, value in numbers.items()]
            command = [str(peer_python()), str(self.script), f"--store={used.url}", *options]
            env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            values = json.loads(last_line(output_of(command, env)))
        return {self.figure: values["per_s"], self.cpu_figure: values["cpu_us"]}


def chain_in_process(runs: int, trials: int) -> Values:
    """Nodes per second of the same program in a process of ours and in one of LangGraph's, in turns."""
    script, pythons = str(HERE / "chain_in_process.py"), {"sleipnir": PYTHON, "langgraph": str(peer_python())}
    rates: dict[str, list[float]] = {library: [] for library in pythons}
    for _ in range(trials):
        for library, python in pythons.items():
            command = [python, script, library, str(runs)]
            env = environment({}) if library == "sleipnir" else dict(os.environ, PYTHONPATH="")
            rates[library].append(json.loads(last_line(output_of(command, env)))["per_s"])
    ours, theirs = (statistics.median(rates[library]) for library in ("sleipnir", "langgraph"))
    return {"memory_per_s": ours, "langgraph_memory_per_s": theirs, "ratio_langgraph_memory": ours / theirs}


PEERS: Sequence[Peer] = tuple(
    Peer(name, HERE / f"{name}_peer.py", store) for name in ("langgraph", "dbos") for store in ("postgres", "sqlite")
)


@functools.cache
def peer_python() -> Path:
    """The interpreter of the peers' environment, which is made when it is missing or its requirements changed.

    Raises NotMeasured when it cannot be made, for example without a network.
    """
    python, stamp = VENV / "bin" / "python", VENV / ".requirements"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    for command in (
        [PYTHON, "-m", "venv", "--clear", str(VENV)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        except subprocess.TimeoutExpired:
            raise NotMeasured("the peers could not be installed within 15 minutes") from None
        if done.returncode:
            raise NotMeasured(f"the peers cannot be installed: {last_line(done.stderr)}")
    stamp.write_text(wanted)
    return python
