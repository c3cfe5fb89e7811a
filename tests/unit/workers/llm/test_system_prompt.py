"""The system prompt of a config.yaml agent (spec 3.2, 3.4)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.graph.template import state_read_by
from sleipnir_workers.llm.conversation import first_messages
from tests.unit.workers.visits import host, visit

TOOLS = '''
def weather(city: str):
    """Say what the weather is.

    Of one city.
    """

def _instructions():
    """x"""
'''
TODO, SPAWN = "## Your todo list", "## Agents that work for you"
TEAM, USER = "## Messages between agents", "## Asking the user"
EVERY_TOOL = ["todo__init", "agent__spawn", "agent__send_message", "agent__check_inbox", "user__select"]
BOTH = {"auto_continue": True, "can_spawn_agents": True}


def prompt(folder: Path = Path(), *, tools: list[str] | None = None, **fields: Any) -> str:
    """The system message of an agent with the loop's fields, and a visit's."""
    of_visit = {key: fields.pop(key) for key in ("state", "variables", "caller_dir", "cwd") if key in fields}
    of_visit.setdefault("cwd", None)  # as without --cwd
    graph = {key: fields.pop(key) for key in ("global_tools", "mcp_servers") if key in fields}
    node = LlmNode(id="agent", prompt="{{initial_prompt}}", tools=EVERY_TOOL if tools is None else tools)
    of_visit["state"] = {"initial_prompt": "hello {{city}}", **of_visit.get("state", {})}
    at = visit(node, folder, graph={**graph, "loop": LoopAgent(**fields)}, **of_visit)
    *system, user = first_messages(node, at, host({"LOKI_CONFIG_DIR": str(folder / "loki")}))
    assert user == {"role": "user", "content": "hello {{city}}"}, "the prompt of the user is not a template"
    return str(system[0]["content"]) if system else ""


@pytest.mark.conformance("C11")
@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ({}, [TEAM, USER]),
        ({"auto_continue": True}, [TODO, TEAM, USER]),
        ({"auto_continue": True, "inject_todo_instructions": False}, [TEAM, USER]),
        ({"can_spawn_agents": True}, [SPAWN, TEAM, USER]),
        ({"can_spawn_agents": True, "inject_spawn_instructions": False}, [TEAM, USER]),
        (BOTH, [TODO, SPAWN, TEAM, USER]),
        ({**BOTH, "inject_todo_instructions": False}, [SPAWN, TEAM, USER]),
        ({**BOTH, "inject_spawn_instructions": False}, [TODO, TEAM, USER]),
        ({**BOTH, "tools": ["user__confirm"]}, [USER]),
        ({**BOTH, "tools": []}, []),
    ],
)
def test_our_texts_follow_the_instructions_in_their_order(fields: dict[str, Any], blocks: list[str]) -> None:
    text = prompt(instructions="Be brief.\n", **fields)
    assert text.startswith("Be brief.\n\n##" if blocks else "Be brief.")
    found = [block for block in (TODO, SPAWN, TEAM, USER) if block in text]
    assert found == blocks
    assert all(text.index(one) < text.index(other) for one, other in pairwise(found))
    assert all(f"\n\n{block}\n\n" in text for block in blocks)


@pytest.mark.conformance("C11")
@pytest.mark.parametrize(
    ("block", "named"),
    [
        (TODO, ["todo__init", "todo__add", "todo__done", "todo__list", "todo__clear"]),
        (
            SPAWN,
            [
                "agent__spawn", "agent__check", "agent__collect", "agent__list_running",
                "agent__list_available", "agent__cancel", "agent__task_create", "agent__task_list",
                "agent__task_complete", "agent__task_fail", "agent__reply_escalation",
                "--blocked_by", "--agent", "--prompt", "user__*", "5 minutes",
            ],
        ),
        (TEAM, ["agent__send_message --id", "--message", "agent__check_inbox"]),
        (USER, ["user__select", "user__confirm", "user__input", "user__checkbox"]),
    ],
)  # fmt: skip
def test_our_texts_name_every_tool_that_they_are_about(block: str, named: list[str]) -> None:
    text = prompt(**BOTH).partition(block)[2].partition("\n## ")[0]
    assert [name for name in named if name not in text] == []


def test_an_agent_without_instructions_and_tools_has_no_system_message() -> None:
    assert prompt(tools=[]) == ""


@pytest.mark.conformance("C03", "C05")
def test_variables_and_special_variables_are_put_in_everywhere(tmp_path: Path) -> None:
    text = prompt(
        instructions="{{city}} {{key}} {{__cwd__}} {{__shell__}} {{nothing}}",
        variables={"city": "Oslo", "key": "{{API_TOKEN}}"},
        caller_dir=tmp_path,
        tools=[],
    )
    assert text == f"Oslo {{{{API_TOKEN}}}} {tmp_path} bash {{{{nothing}}}}"


@pytest.mark.parametrize(
    ("fields", "cwd"),
    [
        ({"caller_dir": Path("/me")}, "/me"),
        ({"cwd": Path("/scripts"), "caller_dir": Path("/me")}, "/scripts"),
        ({}, "."),
    ],
)
def test_the_working_directory_is_the_one_that_was_asked_for_or_the_callers(fields: dict[str, Any], cwd: str) -> None:
    assert prompt(instructions="{{__cwd__}}", tools=[], **fields) == cwd


@pytest.mark.conformance("C07")
def test_dynamic_instructions_are_those_of_the_state(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    told = {"_instructions": "Look at {{city}} from {{__cwd__}} with {{__tools__}}\n"}
    fields = {"variables": {"city": "Oslo"}, "caller_dir": Path("/me"), "tools": []}
    text = prompt(tmp_path, dynamic_instructions=True, instructions="not these", state=told, **fields)
    assert text == "Look at Oslo from /me with {{__tools__}}"
    node = LlmNode(id="agent", prompt="{{initial_prompt}}")
    assert state_read_by(node, LoopAgent(dynamic_instructions=True)) == {"initial_prompt", "_instructions"}
    assert state_read_by(node, LoopAgent()) == {"initial_prompt"}


@pytest.mark.conformance("C04")
def test_the_list_of_tools_is_numbered_and_has_first_lines(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    shared = tmp_path / "loki" / "functions" / "tools" / "web_search.py"
    shared.parent.mkdir(parents=True)
    shared.write_text('def run(query: str):\n    """Search the web for {{city}}."""\n')
    fields = {"global_tools": ["web_search"], "mcp_servers": ["git"], "variables": {"city": "Oslo"}, "tools": []}
    text = prompt(tmp_path, instructions="You have:\n{{__tools__}}", **fields)
    lines = text.splitlines()
    assert lines[:3] == [
        "You have:",
        "1. web_search: Search the web for Oslo.",  # it is put in before everything else
        "2. weather: Say what the weather is.",
    ]
    assert [line.partition(":")[0] for line in lines[3:]] == [
        "3. mcp_search_git",
        "4. mcp_describe_git",
        "5. mcp_invoke_git",
    ]


def test_tools_that_cannot_be_read_are_a_failure_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def broken(:")
    with pytest.raises(NodeFailed, match=r"the tools of agent 'triage' cannot be read: .*syntax error"):
        prompt(tmp_path, instructions="{{__tools__}}")
    assert prompt(tmp_path, instructions="fine", tools=[]) == "fine"
