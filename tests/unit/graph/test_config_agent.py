"""config.yaml agents: what their file may say, and the graph that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import GraphError, Problem
from sleipnir.graph.check import validate
from sleipnir.graph.config_agent import load_config_agent
from sleipnir.graph.load import load_file, load_graph
from sleipnir.graph.model import Concurrency, EndNode, Graph, LlmNode, LoopAgent, RagNode, ToolNode, Variable

EVERY_KEY = """
name: sisyphus
model: openai:gpt-4o
temperature: 0.2
top_p: 0.9
agent_session: temp
auto_continue: true
max_auto_continues: 25
inject_todo_instructions: false
continuation_prompt: Go on.
can_spawn_agents: true
max_concurrent_agents: 8
max_agent_depth: 2
inject_spawn_instructions: false
summarization_model: openai:gpt-4o-mini
summarization_threshold: 8000
spawnable_agents: [stone, hill]
escalation_timeout: 60
compression_threshold: 9000
description: Rolls the stone.
version: 1
mcp_servers: [github]
global_tools: [fs_cat.sh, web_search]
instructions: You are {{who}}.
dynamic_instructions: true
variables:
  - {name: who, description: Who rolls}
  - {name: hill, description: Which one, default: steep}
conversation_starters: [Roll it., Rest.]
documents: [stones.md]
concurrency: {key: "{{tenant}}", limit: 3}
"""
MESSAGE_TOOLS = ["agent__send_message", "agent__check_inbox"]
USER_TOOLS = ["user__select", "user__confirm", "user__input", "user__checkbox"]
TODO_TOOLS = ["todo__init", "todo__add", "todo__done", "todo__list", "todo__clear"]
SPAWN_TOOLS = [
    "agent__spawn", "agent__check", "agent__collect", "agent__list_running", "agent__list_available",
    "agent__cancel",
    "agent__task_create", "agent__task_list", "agent__task_complete", "agent__task_fail",
    "agent__reply_escalation",
]  # fmt: skip


def loaded(text: str) -> Graph:
    found = load_config_agent(text, "config.yaml", "sisyphus")
    assert found.graph is not None, found.problems
    assert found.problems == ()
    return found.graph


def problems(text: str) -> tuple[Problem, ...]:
    return load_config_agent(text, "config.yaml", "sisyphus").problems


@pytest.mark.conformance("C01")
def test_every_key_is_read() -> None:
    graph = loaded(EVERY_KEY)
    assert graph.loop == LoopAgent(
        instructions="You are {{who}}.",
        dynamic_instructions=True,
        agent_session="temp",
        auto_continue=True,
        max_auto_continues=25,
        inject_todo_instructions=False,
        continuation_prompt="Go on.",
        can_spawn_agents=True,
        spawnable_agents=["stone", "hill"],
        max_concurrent_agents=8,
        max_agent_depth=2,
        inject_spawn_instructions=False,
        summarization_model="openai:gpt-4o-mini",
        summarization_threshold=8000,
        escalation_timeout=60,
        compression_threshold=9000,
        documents=["stones.md"],
    )
    assert (graph.name, graph.description) == ("sisyphus", "Rolls the stone.")
    assert (graph.model, graph.temperature, graph.top_p) == ("openai:gpt-4o", 0.2, 0.9)
    assert (graph.mcp_servers, graph.global_tools) == (["github"], ["fs_cat.sh", "web_search"])
    assert graph.variables == [
        Variable(name="who", description="Who rolls"),
        Variable(name="hill", description="Which one", default="steep"),
    ]
    assert graph.conversation_starters == ["Roll it.", "Rest."]
    assert graph.concurrency == Concurrency(key="{{tenant}}", limit=3)


@pytest.mark.conformance("C01")
def test_all_but_the_name_may_be_left_out() -> None:
    graph = loaded("name: x")
    assert graph.loop == LoopAgent(
        instructions="",
        dynamic_instructions=False,
        agent_session=None,
        auto_continue=False,
        max_auto_continues=10,
        inject_todo_instructions=True,
        continuation_prompt=None,
        can_spawn_agents=False,
        max_concurrent_agents=4,
        max_agent_depth=3,
        inject_spawn_instructions=True,
        summarization_model=None,
        summarization_threshold=4000,
        escalation_timeout=300,
        compression_threshold=None,
        documents=[],
    )
    assert (graph.description, graph.model, graph.temperature, graph.top_p) == ("", None, None, None)
    assert (graph.mcp_servers, graph.global_tools, graph.variables, graph.conversation_starters) == ([], [], [], [])


def test_null_is_as_if_the_key_were_not_there() -> None:
    assert loaded("name: x\nmodel: null\ntemperature: null\nagent_session: null\nvariables: null") == loaded("name: x")


def test_one_with_documents_looks_in_them_first() -> None:
    graph = loaded("name: x\ndocuments: [a.md, docs/**]")
    assert graph.start == "rag"
    assert graph.nodes["rag"] == RagNode(
        id="rag",
        documents=["a.md", "docs/**"],
        state_updates={"_context": "{{output.context}}", "_sources": "{{output.sources}}"},
        next="agent",
    )


def test_it_is_a_graph_that_asks_until_the_model_answers() -> None:
    graph = loaded("name: x")
    assert graph.start == "agent"
    assert list(graph.nodes.values()) == [
        LlmNode(
            id="agent",
            prompt="{{initial_prompt}}",
            tools=["agent:*", *MESSAGE_TOOLS, *USER_TOOLS],
            max_iterations=1000,
            state_updates={"output": "{{output}}"},
            next="done",
        ),
        EndNode(id="done", output="{{output}}"),
    ]


def test_dynamic_instructions_are_written_before_the_model_is_asked() -> None:
    graph = loaded("name: x\ndynamic_instructions: true")
    assert graph.start == "instructions"
    assert list(graph.nodes) == ["instructions", "agent", "done"]
    assert graph.nodes["instructions"] == ToolNode(
        id="instructions", tool="_instructions", output_key="_instructions", next="agent"
    )


@pytest.mark.conformance("C02")
def test_the_model_is_offered_what_the_agent_declares_and_nothing_else() -> None:
    node = loaded(EVERY_KEY).nodes["agent"]
    assert isinstance(node, LlmNode)
    assert node.tools == [
        "fs_cat.sh",
        "web_search",
        "agent:*",
        *TODO_TOOLS,
        *SPAWN_TOOLS,
        *MESSAGE_TOOLS,
        *USER_TOOLS,
        "mcp:github",
    ]


def test_what_this_version_does_not_have_is_reported_once_per_agent() -> None:
    """Finding U7 of the second review."""
    later = "brief_model: a:b\nmemory: false\nenvoy_model: a:b\nhooks: {a: 1}\n"
    found = load_config_agent(f"name: x\n{later}", "config.yaml", "sisyphus")
    assert found.graph == loaded("name: x")
    assert [(problem.level, problem.line, problem.message) for problem in found.problems] == [
        ("warning", 2, "'brief_model', 'envoy_model' are ignored"),
        ("warning", 3, "'memory' is ignored"),
        ("warning", 5, "'hooks' is ignored"),
    ]
    assert all(problem.hint and "this version" in problem.hint for problem in found.problems)


@pytest.mark.conformance("CY96")
def test_keys_without_effect_on_runs_are_not_reported() -> None:
    assert loaded("name: x\nenabled_macros: [a]") == loaded("name: x")


@pytest.mark.parametrize("key", ["memory", "skills_enabled", "enabled_skills", "reasoning_effort", "hooks"])
def test_a_key_of_later_releases_that_is_null_is_absent(key: str) -> None:
    """Finding U7 of the second review."""
    assert loaded(f"name: x\n{key}: null") == loaded("name: x")


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    (problem,) = problems("name: x\ninstruction: Hello.")
    assert str(problem) == (
        "config.yaml:2:1: warning: unknown key 'instruction' is ignored\n    Did you mean \"instructions\"?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: a:b", "config.yaml:1:1: missing field `name`\n    A config.yaml agent needs: name."),
        ("name: ' '", "config.yaml:1:1: Agent must have a non-empty 'name' field\n    Write `name: sisyphus`."),
        ("name: x\nmax_agent_depth: deep", "config.yaml:2:1: 'max_agent_depth' must be a whole number, got the text"),
        ("name: x\nauto_continue: yes", "config.yaml:2:1: 'auto_continue' must be true or false, got the text 'yes'"),
        ("name: x\nvariables: [who]", "config.yaml:2:13: 'variables' must hold mappings with a name and a description"),
        ("name: x\nvariables: [{name: a}]", "config.yaml:2:13: missing field `description`\n    A variable needs:"),
        ("name: x\nvariables: who", "config.yaml:2:1: 'variables' must be a list, got the text 'who'"),
        ("name: x\nmcp_servers: github", "config.yaml:2:1: 'mcp_servers' must be a list, got the text 'github'"),
        ("name: x\nconcurrency: {limit: 0}", "config.yaml:2:15: 'concurrency.limit' must be at least 1, got 0"),
        ("name: x\nname: y", "config.yaml:2:1: "),
        ("- x", "config.yaml:1:1: a config.yaml must be a mapping of keys, got a list"),
        ("", "config.yaml: the file is empty"),
        ("name: [", "config.yaml:2:1: YAML parsing error: "),
    ],
)
def test_problems_are_reported_with_their_place(text: str, message: str) -> None:
    found = [str(problem) for problem in problems(text) if problem.level == "error"]
    assert len(found) == 1
    assert found[0].startswith(message), found[0]


def test_errors_report_which_file_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(GraphError) as caught:
        load_graph("name: 1\nmax_agent_depth: x", str(file), "a")
    assert str(caught.value).startswith(f"Failed to load agent config at '{file}'\n  {file}:2:1: ")
    file.write_bytes(b"name: \xff")
    assert [problem.message for problem in load_file(tmp_path).problems] == [
        f"Failed to read agent config file at '{file}': byte 6 is not UTF-8"
    ]


def checked(folder: Path, config: str, **files: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    for name, text in files.items():
        (folder / name.replace("_py", ".py").replace("_sh", ".sh")).write_text(text)
    return [str(problem) for problem in validate(folder)]


def test_an_agent_with_every_kind_of_tool_has_no_problem(tmp_path: Path) -> None:
    config = "name: x\nauto_continue: true\ncan_spawn_agents: true\nmcp_servers: [m]\nglobal_tools: [g.sh, h]"
    assert checked(tmp_path, config, tools_py='def look():\n    """Look."""\n') == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tools_py", 'def _instructions():\n    """Say."""\n    return ""\n'),
        ("tools_sh", "# @cmd Say\n_instructions() {\n  :\n}\n"),
    ],
)
def test_dynamic_instructions_need_a_function_that_writes_them(tmp_path: Path, name: str, text: str) -> None:
    config = "name: x\ndynamic_instructions: true"
    (problem,) = checked(tmp_path, config)
    assert problem.startswith(
        f"{tmp_path}/config.yaml:2:1: 'dynamic_instructions' is true, but the agent has no function '_instructions'\n"
    )
    assert checked(tmp_path, config, **{name: text}) == []


def test_a_tools_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (problem,) = checked(tmp_path, "name: x\ndynamic_instructions: true", tools_py="def (")
    assert "tools.py cannot be read" in problem


def test_documents_are_checked_as_those_of_rag_nodes_are(tmp_path: Path) -> None:
    missing, wrong = checked(tmp_path, "name: x\ndocuments: [a.md, ../b]")
    assert wrong.startswith(f"{tmp_path}/config.yaml:2:19: Invalid document path: '../b'")
    assert missing.startswith(f"{tmp_path}/config.yaml:2:13: warning: document 'a.md' does not exist")


def test_models_are_checked_as_those_of_graphs_are(tmp_path: Path) -> None:
    found = checked(tmp_path, "name: x\nmodel: gpt-4o\nsummarization_model: opneai:gpt-4o")
    assert "config.yaml:2:1: unknown model 'gpt-4o'" in found[0]
    assert "config.yaml:3:1: warning: model 'opneai:gpt-4o' names the client 'opneai'" in found[1]
