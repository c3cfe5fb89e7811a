"""Dynamic instructions: the agent's own function that writes them (spec 3.4)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, ToolNode, Variable
from sleipnir.messages import VisitResult
from sleipnir_workers.tools.node import run_tool
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import host, visit

BASH = """# @cmd Write the instructions
_instructions() {
    echo "You look at $LLM_AGENT_VAR_CITY for $LLM_AGENT_NAME." >> "$LLM_OUTPUT"
}
"""
PYTHON = '''import os

def _instructions():
    """Write the instructions."""
    return f"You look at {os.environ['LLM_AGENT_VAR_CITY']} for {os.environ['LLM_AGENT_NAME']}."
'''
NODE = ToolNode(id="instructions", tool="_instructions", output_key="_instructions", next="agent")
CITY = Variable(name="city", description="Where", default="Oslo")


def run(folder: Path, node: ToolNode = NODE, *, settings: dict[str, Any] | None = None, **fields: Any) -> VisitResult:
    others = [LlmNode(id="agent", prompt="p")]
    at = visit(node, folder, graph={"variables": [CITY]}, others=others, **fields)
    return run_tool(node, at, host({"LOKI_CONFIG_DIR": str(folder / "loki")}, **(settings or {})))


def returning(folder: Path, value: str) -> Path:
    (folder / "tools.py").write_text(f'def _instructions():\n    """x"""\n    return {value}\n')
    return folder


@pytest.mark.conformance("C06", "C07")
@pytest.mark.parametrize(("name", "text"), [("tools.sh", BASH), ("tools.py", PYTHON)])
def test_the_function_writes_the_instructions_from_the_variables(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert run(tmp_path).delta == {"_instructions": "You look at Oslo for triage."}
    assert run(tmp_path, variables={"city": "Bergen"}).delta == {"_instructions": "You look at Bergen for triage."}


@pytest.mark.conformance("C07")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("'42'", "42"),
        ("'\"quoted\"'", '"quoted"'),
        ("'  # You\\n\\nare.\\n'", "# You\n\nare."),
        ("{'a': 1}", '{\n  "a": 1\n}'),
    ],
)
def test_what_it_returns_is_taken_as_text(tmp_path: Path, value: str, text: str) -> None:
    assert run(returning(tmp_path, value)).delta == {"_instructions": text}


@pytest.mark.conformance("C07")
@pytest.mark.parametrize("value", ["None", "''", "' \\n'"])
def test_an_agent_without_an_answer_is_a_failure(tmp_path: Path, value: str) -> None:
    result = run(returning(tmp_path, value))
    assert (result.ok, result.error) == (False, "No return value from '_instructions' function")


@pytest.mark.parametrize(
    ("value", "node", "settings", "kind", "error"),
    [
        ("open('/nowhere')", NODE, {}, "exit", r"Tool call '_instructions' exited with code 1\n.*FileNotFoundError"),
        ("__import__('time').sleep(9)", NODE, {"tool_timeout_s": 0.1}, "timeout", "timed out after 0.1s"),
        (
            "'x' * 9",
            NODE,
            {"max_tool_result_bytes": 8},
            "too_large",
            "more than SLEIPNIR_MAX_TOOL_RESULT_BYTES=8 bytes",
        ),
        ("input('City? ')", NODE, {}, "exit", r"EOFError.*\nA run has no terminal to read from: declare what"),
        ("1", replace(NODE, tool="other"), {}, "not_found", "'triage' has no function 'other'"),
        ("(", NODE, {}, "tool_file", "tools of agent 'triage' cannot be read: .*syntax error"),
    ],
)
def test_why_there_are_no_instructions(
    tmp_path: Path, value: str, node: ToolNode, settings: dict[str, Any], kind: str, error: str
) -> None:
    result = run(returning(tmp_path, value), node, settings=settings)
    assert (result.ok, result.error_kind, result.delta) == (False, kind, {})
    assert re.search(error, result.error or "", re.DOTALL)


def test_a_visit_of_the_node_is_executed_by_the_worker_of_tools(tmp_path: Path) -> None:
    result = execute(visit(NODE, returning(tmp_path, "'go'")))
    assert result is not None
    assert (result.ok, result.delta) == (True, {"_instructions": "go"})
