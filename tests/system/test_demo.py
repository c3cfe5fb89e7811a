"""`make demo`: what a new user sees first. Finding U14 of the second review: it was a failure, for want of a key."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sleipnir.cli import front_page
from sleipnir.local.supervisor import find_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the demo needs of a checkout, in a folder of its own: it writes to .build."""
    shutil.copytree(ROOT / "agents" / "log-triage", tmp_path / "agents" / "log-triage")
    (tmp_path / "ops").mkdir()
    shutil.copy(ROOT / "ops" / "demo", tmp_path / "ops")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "home").mkdir()
    return tmp_path


def demo(clone: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it as `make` does, without a terminal; what it prints is in `stdout`, the narration too."""
    base = {"PATH": f"{find_server().parent}:{os.environ['PATH']}", "HOME": str(clone / "home"), "LANG": "C"}
    return subprocess.run(
        [clone / "ops" / "demo"], env=base | {"TERM": "dumb"} | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=240, check=False, encoding="utf-8",
    )  # fmt: skip


def test_the_demo_shows_a_model_at_work_without_a_key_and_nothing_that_looks_like_a_failure(clone: Path) -> None:
    first = demo(clone)
    assert first.returncode == 0, first.stdout
    settings = {"SLEIPNIR_REDIS_URL": "redis://nowhere:1", "SLEIPNIR_MODEL": "openai:other", "SLEIPNIR_STRICT": "x"}
    second = demo(clone, **settings)
    assert second.returncode == 0, second.stdout
    for printed in (first.stdout, second.stdout):
        assert "▸   llm call: model=openai:recorded" in printed
        assert "Confidence:   high, by a model\n" in printed
        assert re.search(r"^✓ diagnose +llm +done", printed, re.MULTILINE)
        assert re.search(r"^○ diagnose_by_rules +script$", printed, re.MULTILINE)
        assert not re.search(r"failed|✗|^error|^warning|^note|Traceback", printed, re.MULTILINE), printed


def test_it_names_three_commands_that_exist_and_the_readme_shows_what_it_prints(clone: Path) -> None:
    printed = demo(clone).stdout
    _, _, after = printed.partition("Three commands to try next:")
    commands = re.findall(r"^  \S*/sleipnir (?:--home \S+ )?([a-z]+)", after, re.MULTILINE)
    assert len(commands) == 3, printed
    assert set(commands) <= set(front_page.COMMANDS)
    (shown,) = re.findall(r"^```text\n(▸ .+?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = [without_times(line) for line in printed.splitlines()]
    for line in shown.splitlines():
        assert line == "  ..." or without_times(line) in lines, line


def without_times(line: str) -> str:
    return re.sub(r"\d[\d.]*(ms|s)\b", "0s", line)
