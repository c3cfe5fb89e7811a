"""The short form of `ops/chaos/short_visits.py`: groups of short visits while everything is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_no_short_visit_is_lost_or_doubled_while_everything_is_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/short_visits.py"), "--runs", "300", "--seed", "7"]
    done = subprocess.run([*command, "--limit", "150"], capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 broken promises" in done.stdout
