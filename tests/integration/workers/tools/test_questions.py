"""Interrupts of tools: what a call asks, and what it gets when it is made again (spec/graph-package.md F23, F27)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sleipnir.messages import InterruptQuestion
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.runs.interrupts import UsedAnswer
from tests.integration.workers.tools.places import Agent

ASKS = """
from sleipnir import clear_resume_value, has_resume_value, interrupt, resume_value

def pay(amount: int):
    \"\"\"Pay.\"\"\"
    who = interrupt("who?")
    known = has_resume_value("sure"), resume_value("sure", default="?")
    try:
        sure = interrupt({"pay": amount}, key="sure", response_schema={"type": "boolean"}, timeout=60)
    except Exception:
        sure = "swallowed"
    if not sure:
        clear_resume_value("sure")
        sure = interrupt({"really": amount}, key="sure")
    return {"who": who, "sure": sure, "known": known, "where": interrupt("where?")}
"""
SH = """
# @cmd Pay.
# @option --amount! <INT> How much
pay() {
    if [ -z "$GRAPH_RESUME" ]; then echo '{"key": "sure", "value": {"pay": 7}}' > "$LLM_INTERRUPT"; exit 3; fi
    echo "$GRAPH_RESUME" >> "$LLM_OUTPUT"
}
eval "$(argc --argc-eval "$0" "$@")"
"""
WHO, SURE, WHERE = UsedAnswer(None, 0, "Ann"), UsedAnswer("sure", 1, True), UsedAnswer(None, 2, [1])


@pytest.fixture(params=["with Sleipnir", "without"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Agent:
    """An agent whose Python tools run in an interpreter that has Sleipnir, or has not."""
    agent = Agent(tmp_path)
    flags = "" if request.param == "with Sleipnir" else " -I -S"
    program = tmp_path / "interpreter"
    program.write_text(f'#!/bin/sh\nexec {sys.executable}{flags} "$@"\n')
    program.chmod(0o755)
    return agent.has("tools.py", f"#!{program}\n{ASKS}")


def asked(agent: Agent, *answers: UsedAnswer) -> InterruptQuestion | None:
    return agent.call("pay", {"amount": 7}, answers=VisitAnswers("pay", answers)).question


@pytest.mark.conformance("IN-06")
def test_a_python_tool_asks_one_question_after_the_other_and_then_returns(agent: Agent) -> None:
    assert asked(agent) == InterruptQuestion("pay#0", "who?")
    second = InterruptQuestion("sure", {"pay": 7}, "sure", 1, {"type": "boolean"}, 60_000)
    assert asked(agent, WHO) == second
    again = asked(agent, WHO, UsedAnswer("sure", 1, False))
    assert again == InterruptQuestion("sure", {"really": 7}, "sure", 2)
    assert asked(agent, WHO, SURE) == InterruptQuestion("pay#1", "where?", None, 2)
    outcome = agent.call("pay", {"amount": 7}, answers=VisitAnswers("pay", [WHO, SURE, WHERE]))
    assert outcome.value == {"who": "Ann", "sure": True, "known": [True, True], "where": [1]}


def test_a_tool_that_asks_in_another_order_fails(agent: Agent) -> None:
    value = agent.call("pay", {"amount": 7}, answers=VisitAnswers("pay", [UsedAnswer(None, 5, 1)])).value
    assert "asks its questions in another order" in value["stderr"]


def test_a_call_outside_of_a_run_cannot_ask(tmp_path: Path) -> None:
    value = Agent(tmp_path).has("tools.py", ASKS).call("pay", {"amount": 7}).value
    assert "interrupt() was called outside of a node" in value["stderr"]


def test_a_shell_tool_asks_through_a_file_and_reads_the_answers_from_a_variable(tmp_path: Path) -> None:
    agent = Agent(tmp_path).has("tools.sh", SH)
    assert agent.call("pay", {"amount": 7}, answers=VisitAnswers("pay")).question == InterruptQuestion(
        "sure", {"pay": 7}, "sure"
    )
    outcome = agent.call("pay", {"amount": 7}, answers=VisitAnswers("pay", [UsedAnswer("sure", 0, True)]))
    assert outcome.value == {"sure": True}


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("[1]", "it must be an object with value"),
        ('{"key": "k"}', "it must be an object with value"),
        ('{"value": 1, "keys": 2}', "it must be an object with value"),
        ('{"value": 1, "key": ""}', "the key of an interrupt must be a text"),
        ('{"value": 1, "at": -1}', "`at` counts the questions"),
        ('{"value": 1', "Expecting"),
        ("\\xff", "can't decode byte"),
        ("x" * 700_000, "it has more than 589,824 bytes"),
    ],
)
def test_a_question_that_cannot_be_asked_is_a_failure_that_the_model_reads(
    tmp_path: Path, written: str, why: str
) -> None:
    body = f"    import os\n    open(os.environ['QUESTION'], 'wb').write({written!r}.encode('latin-1'))\n"
    if written.startswith("\\x"):
        body = "    import os\n    open(os.environ['QUESTION'], 'wb').write(bytes([255]))\n"
    # The runner takes the variable away from the function.
    text = "import os, sys\nos.environ['QUESTION'] = sys.modules['sleipnir_tool_runner'].answers.file\n"
    agent = Agent(tmp_path).has("tools.py", f'{text}\ndef t():\n    """A tool"""\n{body}')
    outcome = agent.call("t", answers=VisitAnswers("t"))
    assert outcome.failure == "question"
    assert outcome.value["tool_call_error"].startswith("Tool call 't' asked a question that cannot be asked: ")
    assert why in outcome.value["tool_call_error"]


def test_large_answers_reach_a_tool_in_a_file(tmp_path: Path) -> None:
    text = """
import json, os

def t():
    \"\"\"A tool\"\"\"
    return len(json.load(open(os.environ["GRAPH_RESUME_FILE"]))["k"])
"""
    agent = Agent(tmp_path).has("tools.py", text)
    assert agent.call("t", answers=VisitAnswers("t", [UsedAnswer("k", 0, "x" * 40_000)])).value == 40_000
    assert json.loads(agent.call("t", answers=VisitAnswers("t")).text)["tool_call_error"]
