"""How long `sleipnir run` of a graph of three Python scripts takes with nothing running before, from the start of the
command to its end: a private Redis, a scheduler and a worker start, run it, and stop again.

`python ops/bench/cold_run.py` prints one JSON object: `seconds`, the median of some runs, each in a home of its own;
`all`, each of them; `result_seconds`, the median until the result is printed, without the stop; `cpu_seconds`, the
median of what the processes of a run used together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GRAPH = """
name: three
start: first
nodes:
  first: {type: script, script: step.py, next: second}
  second: {type: script, script: step.py, next: third}
  third: {type: script, script: step.py, next: done}
  done: {type: end, output: "{{steps}}"}
"""
STEP = """
import json, os

state = json.loads(os.environ["GRAPH_STATE"])
print(json.dumps({"steps": state.get("steps", 0) + 1}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how many (default 5)")
    options = parser.parse_args()
    measured = [cold_run() for _ in range(options.runs)]
    figures = {name: statistics.median(figures_of_run[name] for figures_of_run in measured) for name in measured[0]}
    print(json.dumps({**figures, "all": [figures_of_run["seconds"] for figures_of_run in measured]}))


def cold_run() -> dict[str, float]:
    """The figures of one run in a new home."""
    with tempfile.TemporaryDirectory(prefix="slp-cold-") as folder:
        agent = Path(folder) / "three"
        agent.mkdir()
        (agent / "graph.yaml").write_text(GRAPH)
        (agent / "step.py").write_text(STEP)
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        # The environment of a shell with an active virtual environment.
        path = os.pathsep.join([str(Path(sys.executable).parent), keep.get("PATH", os.defpath)])
        modules = os.pathsep.join(str(ROOT / part) for part in ("", "scheduler", "workers"))
        env = keep | {"SLEIPNIR_HOME": f"{folder}/home", "PATH": path, "PYTHONPATH": modules}
        command = [sys.executable, "-m", "sleipnir", "run", str(agent)]
        used, started = _cpu_seconds(), time.perf_counter()
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            result = process.stdout.readline()
            printed = time.perf_counter()
            errors = process.stderr.read()
        ended = time.perf_counter()
    if (process.returncode, result) != (0, "3\n"):
        sys.exit(f"the run failed with {process.returncode}:\n{result}{errors}")
    return {
        "seconds": round(ended - started, 3),
        "result_seconds": round(printed - started, 3),
        "cpu_seconds": round(_cpu_seconds() - used, 3),
    }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
