"""Makes visits and hosts for executor tests, and waits for conditions."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sleipnir.graph.model import Graph, Node, ScriptNode
from sleipnir.settings import Settings
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.llm import node as llm
from sleipnir_workers.machine.host import Host
from sleipnir_workers.nodes import condition, function, reduction
from sleipnir_workers.nodes import script as script_
from tests.waiting import is_running, wait_until

# The interpreter of the test run first: a version manager's `python3` costs a tenth of a second per start.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

EXECUTORS = (condition, function, llm, reduction, script_)  # importing one registers it

WARM_PYTHON = True
"""What `host` says unless a test asks for something else."""


def host(env: dict[str, str] | None = None, **settings: Any) -> Host:
    """A worker that knows only these variables, and where to find interpreters."""
    known = {"PATH": PATH, "HOME": "/nonexistent", **(env or {})}
    return Host(env=known, settings=Settings(**{"warm_python": WARM_PYTHON, **settings}))


def visit(
    node: Node, folder: Path, *, graph: dict[str, Any] | None = None, others: Sequence[Node] = (), **fields: Any
) -> Execution:
    """The seventh visit of run r1, to `node` of agent `triage`, whose graph has `others` too."""
    nodes = {each.id: each for each in (node, *others)}
    written = Graph(name="Triage", start=node.id, nodes=nodes, **(graph or {}))
    defaults: dict[str, Any] = {"run": "r1", "seq": 7, "attempt": 1, "agent": "triage", "state": {}, "cwd": folder}
    given = defaults | fields
    given["state"] = StoredState({key: json.dumps(value) for key, value in given["state"].items()})
    return Execution(node=node, graph=written, folder=folder, **given)


def script(folder: Path, name: str, text: str, **fields: Any) -> ScriptNode:
    """A script node and its file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return ScriptNode(id="step", script=name, **fields)


def text_of(path: Path) -> str:
    """What a script wrote to `path` as a whole line, or the empty string while it did not."""
    text = path.read_text() if path.exists() else ""
    return text.strip() if text.endswith("\n") else ""


def is_gone(pid: str) -> bool:
    """The process does not run: it does not exist, or waits to be reaped."""
    assert pid, "the script did not come so far as to write its number"
    return not is_running(pid)


class When:
    """A thread that does `action` as soon as `condition` is true; leaving the block waits for it."""

    def __init__(self, condition: Callable[[], Any], action: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=lambda: (wait_until(condition, "the trigger"), self._act(action)))
        self.acted_at = 0.0

    def _act(self, action: Callable[[], Any]) -> None:
        self.acted_at = time.monotonic()
        action()

    def __enter__(self) -> When:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
