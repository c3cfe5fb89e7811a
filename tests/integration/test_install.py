"""`sleipnir install` asks a person on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("key", "code", "kept"), [("n", 1, True), ("y", 0, False)])
def test_a_person_is_asked_before_changes_are_given_up(key: str, code: int, kept: bool, tmp_path: Path) -> None:
    """With the agents that really ship, as a process on a terminal."""
    command = [sys.executable, "-m", "sleipnir", "--home", str(tmp_path), "agents", "install"]
    subprocess.run([*command, "hello"], check=True, capture_output=True)
    graph = tmp_path / "agents" / "hello" / "graph.yaml"
    graph.write_text("mine")
    person, terminal = pty.openpty()
    os.write(person, f"{key}\n".encode())
    done = subprocess.run([*command, "--reset", "hello"], stdin=terminal, stdout=terminal, stderr=terminal, timeout=60)
    os.close(terminal)
    os.close(person)
    assert done.returncode == code
    assert (graph.read_text() == "mine") is kept
