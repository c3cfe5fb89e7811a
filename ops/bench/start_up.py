"""The cost of a command that only reads, `sleipnir ps` and its like, against `python -c "import redis"`.

`python ops/bench/start_up.py` prints one JSON object: `import_redis_ms`, `import_sleipnir_ms`, `import_state_graph_ms`,
`ps_ms`, `show_ms`, `gates_ms` and `batch_ls_ms`, the medians of some runs of each, taken in turns; `ratio`: of the
slowest of the commands, the median over the rounds of its time over that of `import redis`; `import_ratio`: the same of
the slower of our two imports. A private Redis runs meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 2  # of each, not counted: files are read from the disk and compiled

OUR_IMPORTS = ("import_sleipnir_ms", "import_state_graph_ms")

GRAPH = """
name: ask
start: ask
nodes:
  ask: {type: input, question: "Which?", state_updates: {which: "{{input}}"}, next: done}
  done: {type: end, output: "{{which}}"}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="how many (default 15)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-start-") as folder:
        agent = Path(folder) / "ask"
        agent.mkdir()
        (agent / "graph.yaml").write_text(GRAPH)
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        modules = os.pathsep.join(str(ROOT / part) for part in ("", "scheduler", "workers"))
        env = keep | {"SLEIPNIR_HOME": f"{folder}/home", "PYTHONPATH": modules}
        sleipnir = [sys.executable, "-m", "sleipnir"]
        # Without workers only Redis and a scheduler run, and both are idle once the run waits.
        stack = subprocess.Popen(
            [*sleipnir, "up", "--scripts", "0", "--llm", "0"],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _wait_for(Path(folder) / "home" / "stack.json", stack)
            run = subprocess.run([*sleipnir, "submit", str(agent)], env=env, capture_output=True, text=True, check=True)
            commands = {
                "import_redis_ms": [sys.executable, "-c", "import redis"],
                "import_sleipnir_ms": [sys.executable, "-c", "import sleipnir"],
                "import_state_graph_ms": [sys.executable, "-c", "from sleipnir import StateGraph"],
                "ps_ms": [*sleipnir, "ps"],
                "show_ms": [*sleipnir, "show", run.stdout.strip()],
                "gates_ms": [*sleipnir, "gates"],
                "batch_ls_ms": [*sleipnir, "batch", "ls"],
            }
            taken = _measured(commands, env, options.rounds)
        finally:
            stack.terminate()
            stack.wait()
    redis = taken["import_redis_ms"]
    ratios = {
        name: statistics.median(time_ms / alone for time_ms, alone in zip(times, redis, strict=True))
        for name, times in taken.items()
    }
    import_ratio = max(ratios[name] for name in OUR_IMPORTS)
    ratio = max(ratios[name] for name in ratios.keys() - {*OUR_IMPORTS, "import_redis_ms"})
    medians = {name: round(statistics.median(times), 1) for name, times in taken.items()}
    print(json.dumps({**medians, "ratio": round(ratio, 3), "import_ratio": round(import_ratio, 3)}))


def _wait_for(file: Path, stack: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        if stack.poll() is not None or time.monotonic() > deadline:
            sys.exit("the stack did not start")
        time.sleep(0.05)


def _measured(commands: dict[str, list[str]], env: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds. In turns, so that what else the machine does meets all alike."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(WARM_UP + rounds):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            if number >= WARM_UP:
                taken[name].append((time.perf_counter() - started) * 1000)
    return taken


if __name__ == "__main__":
    main()
