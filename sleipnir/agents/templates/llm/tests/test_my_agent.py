"""Tests of my-agent. `pytest` on this folder runs them; they run the agent in one process, and ask no provider."""

import os
import subprocess
import sys
from pathlib import Path

from sleipnir.testing import ModelServer, Reply

AGENT = Path(__file__).parents[1]
MESSAGE = "The heating in room 12 has failed, and guests arrive at six."


def run_agent(prompt, home, *options, **env):
    """Run the agent to its end. `stdout` is its result, `stderr` says what it did."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    command = [sys.executable, "-m", "sleipnir", "--home", str(home), "run", "--in-process", str(AGENT)]
    command += [prompt, *options]
    return subprocess.run(
        command, env=clean | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def test_the_recorded_answer_gives_the_same_result(tmp_path):
    done = run_agent(MESSAGE, tmp_path, "--replay", str(AGENT / "recording"))
    assert done.stdout == "heating (now): The heating of room 12 has failed and guests arrive at six.\n", done.stderr


def test_the_model_is_given_the_message(tmp_path):
    with ModelServer(['{"topic": "keys", "urgency": "later", "summary": "A key was lost."}']) as server:
        done = run_agent("I lost my key", tmp_path, **server.env("openai"))
    assert done.stdout == "keys (later): A key was lost.\n", done.stderr
    assert "I lost my key" in server.requests[0].prompt


def test_a_refused_key_fails_the_run(tmp_path):
    with ModelServer([Reply(status=401, error="no such key")]) as server:
        done = run_agent("I lost my key", tmp_path, **server.env("openai"))
    assert done.returncode == 1
    assert "no such key" in done.stderr
