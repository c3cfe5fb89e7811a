"""The short form of `ops/chaos/supervisor.py`: an agent that starts agents, while everything is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_each_agent_is_started_once_and_each_message_read_once_while_everything_is_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/supervisor.py"), "--children", "10", "--rounds", "3"]
    command += ["--seed", "7", "--patient", "--limit", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 other answers or failed calls, 0 started, read or journaled twice, 0 messages or children" in done.stdout
    assert "0 repeated without a death, 0 stuck, 0 keys left over; 80 messages" in done.stdout
