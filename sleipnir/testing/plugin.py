"""Fixtures for pytest: `run_agent` runs an agent in the test's process, `model` starts scripted models.

    def test_a_letter(run_agent, model):
        server = model(["urgent"])
        assert run_agent("agents/letters", "Our bell is cracked", model=server).output == "urgent"

The package registers this module with pytest; nothing has to be imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sleipnir.python_graph.compiled import CompiledGraph
    from sleipnir.testing.in_process import RunResult
    from sleipnir.testing.reply import Reply
    from sleipnir.testing.script import Chooser, Script
    from sleipnir.testing.server import ModelServer


@pytest.fixture
def run_agent(tmp_path: Path) -> Callable[..., RunResult]:
    """sleipnir.testing.run, where scripts and tools work in the test's `tmp_path` unless `cwd` is given."""
    from sleipnir.testing.in_process import run

    def run_here(agent: str | Path | CompiledGraph, prompt: Any = "", **options: Any) -> RunResult:
        return run(agent, prompt, **{"cwd": tmp_path, **options})

    return run_here


@pytest.fixture
def model() -> Iterator[Callable[..., ModelServer]]:
    """Starts a ModelServer with these replies, or with this script, until the end of the test."""
    from sleipnir.testing.server import ModelServer

    with contextlib.ExitStack() as servers:

        def started(replies: Iterable[Reply | str] | Script | Chooser = (), **options: Any) -> ModelServer:
            return servers.enter_context(ModelServer(replies, **options))

        yield started
