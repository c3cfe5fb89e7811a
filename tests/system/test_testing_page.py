"""The examples of docs/testing.md, copied as their reader copies them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import write_agent

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("number", "passed"), [(0, "2 passed"), (1, "1 passed"), (2, "1 passed")])
def test_an_example_runs_as_it_is_written(tmp_path: Path, number: int, passed: str) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    write_agent(tmp_path / "agents" / "letters", blocks(page, "yaml")[0])
    (tmp_path / "test_letters.py").write_text(blocks(page, "python")[number])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLEIPNIR_", "PYTEST"))}
    fixtures = ["-p", "sleipnir.testing.plugin"]  # an environment of before this release does not register it
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *fixtures]
    command.append("test_letters.py")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed in done.stdout
