"""The short form of `ops/chaos/loops.py`: loops of a few turns while their processes are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_loops_of_turns_and_tools_end_as_without_faults_while_processes_are_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/loops.py"), "--loops", "2", "--turns", "6", "--seed", "7"]
    done = subprocess.run([*command, "--patient", "--limit", "200"], capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 other texts or failed calls, 0 journaled or used twice, 0 repeated without a death" in done.stdout
    assert "0 stuck, 0 keys left over; 50 entries" in done.stdout
