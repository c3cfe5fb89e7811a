"""`draw --run`: the picture of a run as a user gets it, from the definition that the run was started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.processes import RedisServer, Stack, write_agent
from tests.system.test_command_line import ASK, BAD_SH, Shell


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    with Stack(redis_server, tmp_path / "fleet", key_prefix=f"draw-{tmp_path.name}") as made:
        yield made


@pytest.fixture
def shell(stack: Stack, tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.env = stack.settings.to_env() | made.env
    write_agent(made.agents / "ask", ASK, bad_sh=BAD_SH)
    return made


def texts(picture: Path) -> set[str]:
    """Every text that can be read in an SVG."""
    return {element.text or "" for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}


def test_a_waiting_and_a_failed_run_are_drawn_although_their_agent_was_changed(
    stack: Stack, shell: Shell, tmp_path: Path
) -> None:
    stack.start_scheduler()
    stack.start_worker("w", "scripts")
    picture = tmp_path / "run.svg"
    assert shell("run", "ask").returncode == 3, "it waits for an answer"
    (run_id,) = (line.split()[0] for line in shell("ps").stdout.splitlines()[1:])
    (shell.agents / "ask" / "graph.yaml").write_text("nonsense")

    assert shell("draw", "--run", run_id, "-o", str(picture)).returncode == 0
    assert {"sure", "waiting", "waiting: 1", "not reached: 2"} <= texts(picture)

    assert shell("answer", run_id, "no").returncode == 0
    assert shell("wait", run_id).returncode == 1
    assert shell("draw", "--run", run_id, "-o", str(picture)).returncode == 0
    assert {"bad", "done: 1", "failed: 1", "not reached: 1"} <= texts(picture)
    assert "classDef failed" in shell("draw", "--run", run_id).stdout
    assert "fillcolor" in shell("draw", "--run", run_id, "--format", "dot").stdout


def test_a_run_that_cannot_be_drawn_is_reported(shell: Shell) -> None:
    unknown = shell("draw", "--run", "nosuchrun000")
    assert unknown.returncode == 2
    assert "no run 'nosuchrun000'" in unknown.stderr
    for words in (("draw",), ("draw", "ask", "--run", "nosuchrun000")):
        both = shell(*words)
        assert (both.returncode, both.stderr) == (2, "error: draw takes either an agent or --run RUN\n")
