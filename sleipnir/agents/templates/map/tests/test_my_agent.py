"""Tests of my-agent. `pytest` on this folder runs them; they run the agent in one process, and ask no model."""

import os
import subprocess
import sys
from pathlib import Path

AGENT = Path(__file__).parents[1]


def run_agent(prompt, home):
    """Run the agent to its end. `stdout` is its result, `stderr` says what it did."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    command = [sys.executable, "-m", "sleipnir", "--home", str(home), "run", "--in-process", str(AGENT), prompt]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_expenses_are_added_up_and_what_cannot_be_read_is_named(tmp_path):
    done = run_agent("coffee 3.20; bread 4.10; a taxi", tmp_path)
    assert done.stdout == "Total: 7.30\nNot read: a taxi\n", done.stderr


def test_nothing_adds_up_to_nothing(tmp_path):
    done = run_agent(" ", tmp_path)
    assert done.stdout == "Total: 0.00\nNot read: nothing\n", done.stderr
