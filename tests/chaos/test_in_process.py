"""The short form of `ops/chaos/in_process.py`: random graphs end in this process as they do on Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_random_graphs_end_in_one_process_as_on_the_fleet() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/in_process.py"), "--graphs", "9", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    facts = json.loads(done.stdout)
    assert (facts["graphs"], facts["differ"]) == (9, 0)
