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


def test_words_are_counted(tmp_path):
    done = run_agent("to be or not to be", tmp_path)
    assert done.stdout == "6 words; the longest is not.\n", done.stderr


def test_an_empty_text_is_refused(tmp_path):
    done = run_agent(" ", tmp_path)
    assert done.stdout.startswith("Nothing was counted:"), done.stderr
    assert "the text is empty" in done.stdout
