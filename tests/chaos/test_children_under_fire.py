"""The short form of `ops/chaos/children.py`: child runs while everything is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_each_child_runs_once_and_the_parent_ends_as_without_faults_while_everything_is_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/children.py"), "--children", "20", "--seed", "7", "--work", "1"]
    done = subprocess.run([*command, "--limit", "150"], capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 other results, 0 children too many or too few, 0 repeated without a death, 0 stuck" in done.stdout
