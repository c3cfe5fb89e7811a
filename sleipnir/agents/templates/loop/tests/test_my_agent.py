"""Tests of my-agent. `pytest` on this folder runs them; they run the agent in one process, and ask no provider."""

import os
import subprocess
import sys
from pathlib import Path

from sleipnir.testing import ModelServer

AGENT = Path(__file__).parents[1]
TOO_LONG = "The bakery that opens long before you have had your coffee"


def run_agent(prompt, home, *options, **env):
    """Run the agent to its end. `stdout` is its result, `stderr` says what it did."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    command = [sys.executable, "-m", "sleipnir", "--home", str(home), "run", "--in-process", str(AGENT)]
    command += [prompt, *options]
    return subprocess.run(
        command, env=clean | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def test_the_recorded_answers_give_the_same_result(tmp_path):
    done = run_agent("a bakery that opens at six", tmp_path, "--replay", str(AGENT / "recording"))
    assert done.stdout == "Fresh bread at six\n", done.stderr


def test_the_model_is_told_what_was_wrong(tmp_path):
    with ModelServer([TOO_LONG, "Bread at six"]) as server:
        done = run_agent("a bakery", tmp_path, **server.env("openai"))
    assert done.stdout == "Bread at six\n", done.stderr
    assert "58 characters" in server.requests[1].prompt


def test_it_gives_up_after_three_tries(tmp_path):
    with ModelServer([TOO_LONG] * 3) as server:
        done = run_agent("a bakery", tmp_path, **server.env("openai"))
    assert done.stdout == f"Still too long after 3 tries: {TOO_LONG}\n", done.stderr
    assert len(server.requests) == 3
