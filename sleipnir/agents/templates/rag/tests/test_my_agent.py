"""Tests of my-agent. `pytest` on this folder runs them; they start a private Redis and workers, and ask no provider."""

import os
import subprocess
import sys
from pathlib import Path

from sleipnir.testing import ModelServer

AGENT = Path(__file__).parents[1]


def run_agent(prompt, home, *options, **env):
    """Run the agent to its end. `stdout` is its result, `stderr` says what it did."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    command = [sys.executable, "-m", "sleipnir", "--home", str(home), "run", str(AGENT), prompt, *options]
    return subprocess.run(
        command, env=clean | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def test_the_recorded_answer_gives_the_same_result(tmp_path):
    done = run_agent("When is breakfast served?", tmp_path, "--replay", str(AGENT / "recording"))
    assert done.stdout == "From seven to half past ten, on Sundays until noon (breakfast.md).\n", done.stderr


def test_the_model_is_given_the_passage_and_the_question(tmp_path):
    with ModelServer(["At the front desk."]) as server:
        done = run_agent("Where can I leave my luggage?", tmp_path, **server.env("openai"))
    assert done.stdout == "At the front desk.\n", done.stderr
    prompt = server.requests[0].prompt
    assert "[rooms.md]" in prompt
    assert "The front desk keeps luggage" in prompt
    assert "Question: Where can I leave my luggage?" in prompt
