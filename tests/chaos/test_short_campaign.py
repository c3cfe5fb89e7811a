"""The short form of `make chaos`: a few dozen random graphs while workers, schedulers and Redis are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_no_promise_is_broken_while_everything_is_being_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/run.py"), "--runs", "40", "--seed", "11", "--kill-every", "1"]
    command += ["--fast", "--drops", "10", "--duplicates", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "40 random runs" in done.stdout
    assert "0 lost, 0 double commits, 0 stuck, 0 other broken promises" in done.stdout
    assert "50 duplicated or late messages, 0 changes of state" in done.stdout
