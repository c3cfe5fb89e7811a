"""What a trivial Python script costs, started warm and cold: `python ops/bench/warm_python.py`. Prints one JSON object.

`cold_ms` is `subprocess.run(["python3", script])`, `warm_ms` the same script as a worker runs it (sandbox.run: group,
pipes, limits, guard) from a ready launcher, `ratio` the second over the first. `sandbox_cold_ms` is a worker with
SLEIPNIR_WARM_PYTHON=0, and `fork_ms` the warm path without the sandbox: fork, run, exit status. Medians; the kinds take
turns, so that a busy neighbour disturbs all of them. The first warm start, which starts the launcher, is `first_ms`.
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
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "workers")]

from sleipnir_workers.processes import sandbox, warm_python  # noqa: E402

SCRIPT = 'import json, os\n\nprint(json.dumps({"seen": len(os.environ["GRAPH_STATE"])}))\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="starts of each kind (default 100)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), options.rounds)))


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds; `ratio` is of medians."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    env = {"PATH": path, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "GRAPH_STATE": "{}"}
    argv = ["python3", str(script)]

    def plain() -> None:
        subprocess.run(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    def sandboxed(warm: bool) -> None:
        outcome = sandbox.run(
            argv, env=env, cwd=folder, timeout_s=60, lost=threading.Event(), max_stdout_bytes=2**20, warm=warm
        )
        assert outcome.code == 0, outcome

    def forked() -> None:
        running = warm_python.warm_python.launch(argv, env, folder)
        assert running is not None
        running.reap()
        assert running.code == 0

    first = took(lambda: sandboxed(True))
    kinds: dict[str, Callable[[], None]] = {
        "cold_ms": plain,
        "warm_ms": lambda: sandboxed(True),
        "fork_ms": forked,
        "sandbox_cold_ms": lambda: sandboxed(False),
    }
    seen: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, kind in kinds.items():
            seen[name].append(took(kind))
    figures = {name: round(statistics.median(times), 2) for name, times in seen.items()}
    return {**figures, "first_ms": round(first, 2), "ratio": round(figures["warm_ms"] / figures["cold_ms"], 3)}


def took(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
