"""The figures of scripts, tools and the command line, which have commands of their own that print JSON: warm_python.py,
tool_calls.py, cold_run.py and start_up.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ops.bench.figures import NotMeasured, Values
from ops.bench.processes import PYTHON, environment, output_of

HERE = Path(__file__).parent


def warm() -> Values:
    """A script on a warm interpreter against the start of `python3`, in the same run."""
    figures = _measured("warm_python.py", "--rounds", "50")
    return {
        "warm_script_ratio": float(figures["ratio"]),
        "warm_script_ms": float(figures["warm_ms"]),
        "cold_python_ms": float(figures["cold_ms"]),
    }


def tool_calls() -> Values:
    """The CPU of calls of tools."""
    return {f"tool_{kind}": float(ms) for kind, ms in _measured("tool_calls.py").items()}


def cold() -> Values:
    """Seconds of a `sleipnir run` of three scripts with nothing running before."""
    figures = _measured("cold_run.py", "--runs", "2")
    return {"cold_run_s": float(figures["seconds"]), "cold_run_cpu_s": float(figures["cpu_seconds"])}


def start_up() -> Values:
    """Commands that look, and our imports, against the import of redis-py, in the same run."""
    figures = _measured("start_up.py", "--rounds", "15")
    return {
        "start_up_ratio": float(figures["ratio"]),
        "start_up_ps_ms": float(figures["ps_ms"]),
        "start_up_redis_ms": float(figures["import_redis_ms"]),
        "import_ratio": float(figures["import_ratio"]),
        "import_sleipnir_ms": float(figures["import_sleipnir_ms"]),
        "import_state_graph_ms": float(figures["import_state_graph_ms"]),
    }


def _measured(script: str, *options: str) -> dict[str, Any]:
    if not (HERE / script).exists():
        raise NotMeasured(f"there is no ops/bench/{script} yet")
    figures: dict[str, Any] = json.loads(output_of([PYTHON, str(HERE / script), *options], environment({})))
    return figures
