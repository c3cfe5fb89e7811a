"""What `import sleipnir` costs: programs with graphs in Python import neither Redis nor Celery, nor pydantic."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ["celery", "kombu", "pydantic", "redis", "yaml"]


@pytest.mark.parametrize("statement", ["import sleipnir", "from sleipnir import StateGraph, START, END, Command, Send"])
def test_an_import_loads_no_large_library(statement: str) -> None:
    assert loaded_after(statement) == []


def test_a_large_library_that_is_imported_is_found() -> None:
    assert loaded_after("from sleipnir import Client") == ["redis"]


@pytest.mark.parametrize("call", ["invoke({})", "to_yaml()"])
def test_a_graph_runs_in_its_process_without_redis_and_celery(call: str) -> None:
    program = f"""
from typing import TypedDict
from sleipnir import StateGraph, START
class State(TypedDict):
    text: str
def node(state):
    return {{"text": "x"}}
StateGraph(State).add_node(node).add_edge(START, "node").compile().{call}
"""
    assert [name for name in loaded_after(program) if name in ("celery", "kombu", "redis")] == []


@pytest.mark.parametrize("words", [["mcp", "--help"], ["mcp", "serve", "--help"]])
def test_the_help_of_the_mcp_server_does_without_its_libraries(words: list[str]) -> None:
    names = ["mcp", "pydantic", "redis", "sleipnir.graph.model"]
    program = f"""
import sys
from sleipnir.cli import main
try:
    main({words})
finally:
    print([name for name in {names} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "Usage:" in done.stdout
    assert done.stderr.strip() == "[]"


def loaded_after(program: str) -> list[str]:
    """Those of HEAVY that a new process has imported after this program."""
    report = f"import json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"], capture_output=True, text=True, timeout=60, check=True
    )
    names: list[str] = json.loads(done.stdout)
    return names
