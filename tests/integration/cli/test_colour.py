"""Colours and drawn tables: on a terminal only, and only if nobody said no."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the command line writes when stdin, stdout and stderr are a terminal."""
    mine, theirs = pty.openpty()
    clean = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "SLEIPNIR_REDIS_URL")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "sleipnir", *arguments],
        env=clean | {"TERM": "xterm", "COLUMNS": "100"} | environment,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while chunk := _read(mine):
        written += chunk
    os.close(mine)
    process.wait(timeout=60)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side has closed
        return b""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, so that nothing of this machine is listed or started."""
    return {"SLEIPNIR_HOME": str(tmp_path / "home"), "LOKI_CONFIG_DIR": str(tmp_path / "loki")}


@pytest.mark.parametrize("arguments", [["agents"], ["doctor"], ["run", "no-such-agent", "x"]])
def test_a_terminal_gets_colour(arguments: list[str], environment: Mapping[str, str]) -> None:
    assert "\x1b[" in on_a_terminal(*arguments, **environment)


@pytest.mark.parametrize("arguments", [["agents"], ["doctor"], ["run", "no-such-agent", "x"]])
@pytest.mark.parametrize(
    ("options", "refusal"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})]
)
def test_output_has_no_colour_if_it_is_refused(
    arguments: list[str], options: list[str], refusal: dict[str, str], environment: dict[str, str]
) -> None:
    assert "\x1b[" not in on_a_terminal(*options, *arguments, **(environment | refusal))


def test_an_unknown_agent_starts_nothing(environment: dict[str, str]) -> None:
    assert "no agent 'no-such-agent'" in on_a_terminal("run", "no-such-agent", "x", **environment)
    assert not Path(environment["SLEIPNIR_HOME"]).exists()
