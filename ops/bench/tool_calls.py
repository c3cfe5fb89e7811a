"""The CPU that a call of a tool costs: `python ops/bench/tool_calls.py`. Prints one JSON object.

A bash tool with three options and a flag and a Python tool with two parameters, called as a worker calls them, with
warm starts; `bare_bash_ms` is `bash -c :` under the same isolation, without a tool. Of all processes: this one, its
launchers and guard, and what they start. Medians of groups of calls, which take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "workers"), str(ROOT / "scheduler")]

from ops.bench.cpu_time import tree_s  # noqa: E402
from sleipnir_workers.processes import sandbox  # noqa: E402
from sleipnir_workers.tools.call import answer  # noqa: E402
from sleipnir_workers.tools.repeated_calls import PastCall  # noqa: E402
from tests.integration.workers.tools.places import Agent  # noqa: E402

CALLS: Final = 40
"""Of a group: the kernel counts in hundredths of a second."""

BASH = """#!/usr/bin/env bash
set -e
# @describe The weather of a city
# @option --city! The city
# @option --unit[=celsius|fahrenheit] The unit
# @option --days <INT> How many days
# @flag --verbose Say more
main() {
    echo "$argc_city $argc_unit $argc_days" >>"$LLM_OUTPUT"
}
eval "$(argc --argc-eval "$0" "$@")"
"""
PYTHON = '''def run(city: str, days: int = 1):
    """The forecast of a city

    Args:
        city: The city
        days: How many days
    """
    return f"{city} {days}"
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="groups of each kind (default 9)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), options.rounds)))


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU per call."""
    agent = Agent(folder)
    agent.has("loki/functions/tools/weather.sh", BASH).has("loki/functions/tools/forecast.py", PYTHON)
    tools, place = agent.tools, agent.place

    def call(name: str, arguments: Mapping[str, Any]) -> None:
        outcome = answer(PastCall(name, json.dumps(arguments)), tools, place)
        assert outcome.failure is None and "Rome" in str(outcome.value), outcome

    def bare() -> None:
        env = {"PATH": os.environ["PATH"]}
        outcome = sandbox.run(
            ["bash", "-c", ":"], env=env, cwd=agent.cwd, timeout_s=60, lost=threading.Event(), max_stdout_bytes=None,
            warm=True,
        )  # fmt: skip
        assert outcome.code == 0, outcome

    kinds: dict[str, Callable[[], None]] = {
        "bash_ms": lambda: call("weather", {"city": "Rome", "days": 3}),
        "python_ms": lambda: call("forecast", {"city": "Rome", "days": 3}),
        "bare_bash_ms": bare,
    }
    for once in kinds.values():
        once()  # starts what is kept
    groups: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, once in kinds.items():
            groups[kind].append(group_ms(once))
    return {kind: statistics.median(group) for kind, group in groups.items()}


def group_ms(once: Callable[[], None]) -> float:
    before = tree_s([os.getpid()])
    for _ in range(CALLS):
        once()
    return (tree_s([os.getpid()]) - before) / CALLS * 1000


if __name__ == "__main__":
    main()
