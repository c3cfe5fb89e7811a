"""The variables that a tool sees (spec 3.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, Variable
from sleipnir_workers.machine.agent_environment import expand_env_file, parse_env_file
from sleipnir_workers.tools.call import run_call
from sleipnir_workers.tools.place import Place
from tests.integration.workers.tools.places import Agent
from tests.unit.workers.visits import PATH, host, visit

SH = '# @cmd x\nt-t() {\n    env > "$COPY"\n}\neval "$(argc --argc-eval "$0" "$@")"\n'
PY = 'import os\n\ndef t_t():\n    """x"""\n    return dict(os.environ)\n'
RUN = 'import os\n\ndef run():\n    """x"""\n    return dict(os.environ)\n'


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def seen(agent: Agent, name: str) -> dict[str, Any]:
    """The environment of a call of a Python tool."""
    result = agent.call(name)
    assert isinstance(result.value, dict) and result.failure is None, result
    return result.value


def seen_by_bash(agent: Agent, tmp_path: Path) -> dict[str, str]:
    agent.variables = {**agent.variables, "COPY": str(tmp_path / "copy")}
    assert agent.has("tools.sh", SH).call("t_t").failure is None
    return dict(line.partition("=")[::2] for line in (tmp_path / "copy").read_text().splitlines())


@pytest.mark.conformance("X11", "CY25", "CY26")
def test_the_tools_of_an_agent_see_this_and_nothing_else(agent: Agent) -> None:
    agent.env = {"OPENAI_API_KEY": "secret", "SLEIPNIR_REDIS_URL": "secret", "LC_TIME": "de", "LLM_TOOL_NAME": "x"}
    agent.variables = {"LLM_AGENT_VAR_MY_CITY": "Oslo"}
    env = seen(agent.has("tools.py", PY), "t_t")
    scratch = Path(env.pop("LLM_OUTPUT")).parent
    assert env.pop("LLM_TOOL_DATA_FILE") == f"{scratch}/arguments.json"
    env.pop("LC_CTYPE", None)  # Python's own
    assert env == {
        "PATH": f"{agent.config}/functions/bin:{PATH}",
        "HOME": "/nonexistent",
        "LC_TIME": "de",
        "LLM_ROOT_DIR": str(agent.config),
        "LLM_AGENT_NAME": "triage",
        "LLM_AGENT_FUNC": "t_t",
        "LLM_AGENT_ROOT_DIR": str(agent.folder),
        "LLM_AGENT_CACHE_DIR": f"{agent.config}/cache/triage",
        "LLM_AGENT_VAR_MY_CITY": "Oslo",
        "LLM_AGENT_RAW_JSON": "{}",
        "CLICOLOR_FORCE": "1",
        "FORCE_COLOR": "1",
        "AUTO_CONFIRM": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.mark.conformance("X11")
def test_a_global_tool_has_the_folder_of_the_agent_as_its_root_and_a_cache_of_its_own(agent: Agent) -> None:
    agent.variables = {"LLM_AGENT_VAR_MY_CITY": "Oslo"}
    env = seen(agent.has("loki/functions/tools/find.py", RUN), "find")
    found = {name: value for name, value in env.items() if name.startswith("LLM_")}
    assert found.pop("LLM_OUTPUT") and found.pop("LLM_TOOL_DATA_FILE")
    assert found == {
        "LLM_ROOT_DIR": str(agent.folder),
        "LLM_TOOL_NAME": "find",
        "LLM_TOOL_RAW_JSON": "{}",
        "LLM_TOOL_CACHE_DIR": f"{agent.config}/cache/triage/find",
        "LLM_AGENT_VAR_MY_CITY": "Oslo",
    }


@pytest.mark.conformance("X11")
def test_a_bash_tool_gets_the_path_of_the_prompt_utilities_and_reads_no_terminal(agent: Agent, tmp_path: Path) -> None:
    env = seen_by_bash(agent, tmp_path)
    assert env["LLM_PROMPT_UTILS_FILE"] == f"{agent.config}/functions/utils/prompt-utils.sh"
    assert (env["LLM_AGENT_FUNC"], env["AUTO_CONFIRM"], env["TERM"]) == ("t-t", "1", "xterm-256color")
    assert agent.has("tools.sh", '# @cmd x\nt() { cat >> "$LLM_OUTPUT"; }\nmain() { :; }\n').call("t").value == "DONE"


@pytest.mark.conformance("X11")
@pytest.mark.parametrize(
    ("reference", "beside_config", "root"),
    [
        ("$LLM_ROOT_DIR/lib/words.sh", False, "folder"),
        ("${LLM_ROOT_DIR}/lib/words.sh", False, "folder"),
        ("$LLM_ROOT_DIR/lib/words.sh", True, "config"),
        ('${LLM_ROOT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/lib/words.sh', False, "folder"),
        ("$LLM_ROOT_DIR/agents/.shared/utils.sh", False, "config"),
    ],
)
def test_the_root_is_the_agents_folder_where_its_file_means_that(
    agent: Agent, reference: str, beside_config: bool, root: str
) -> None:
    agent.has("lib/words.sh", "")
    if beside_config:
        agent.has("loki/lib/words.sh", "")
    agent.has("tools.sh", f'# {reference}\n# @cmd x\nt() {{\n    echo "$LLM_ROOT_DIR" >> "$LLM_OUTPUT"\n}}\n')
    assert agent.call("t").value == {"output": str(getattr(agent, root))}


@pytest.mark.conformance("X11")
def test_a_global_tool_of_an_older_release_finds_its_utilities_in_the_functions_directory(agent: Agent) -> None:
    agent.has("loki/functions/utils/prompt-utils.sh", "")
    text = '# @describe x\n# ${LLM_ROOT_DIR:-$(dirname "$0")/..}/utils/prompt-utils.sh\n'
    text += 'main() {\n    echo "$LLM_ROOT_DIR" >> "$LLM_OUTPUT"\n}\n'
    assert agent.has("loki/functions/tools/old.sh", text).call("old").value == {"output": f"{agent.config}/functions"}


@pytest.mark.conformance("X11")
def test_the_agents_env_file_comes_before_those_of_the_machine_and_after_the_workers_own(agent: Agent) -> None:
    agent.has(".env", "A=agent\nHOME=no\n").has("loki/.env", "A=config\nB=config\nC=config\n")
    agent.has("loki/functions/.env", "B=functions\nF=functions\n")
    agent.has("tools.py", PY).has("loki/functions/tools/find.py", RUN)
    own, shared = seen(agent, "t_t"), seen(agent, "find")
    names = ("A", "B", "C", "F", "HOME")
    assert [own.get(name) for name in names] == ["agent", "config", "config", None, "/nonexistent"]
    assert [shared.get(name) for name in names] == ["agent", "functions", "config", "functions", "/nonexistent"]


@pytest.mark.conformance("X11")
def test_the_env_file_of_an_installed_agent_is_read_for_its_bundle(agent: Agent, tmp_path: Path) -> None:
    agent.has("tools.py", PY).has("loki/agents/triage/.env", "A=config dir\n")
    assert seen(agent, "t_t")["A"] == "config dir"
    agent.settings["agents_dir"] = tmp_path / "agents"
    (tmp_path / "agents" / "triage").mkdir(parents=True)
    (tmp_path / "agents" / "triage" / ".env").write_text("A=agents dir\n")
    assert seen(agent, "t_t")["A"] == "agents dir"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".env").write_text("A=data dir\n")
    agent.env["TRIAGE_DATA_DIR"] = str(tmp_path / "data")
    assert seen(agent, "t_t")["A"] == "data dir"


@pytest.mark.conformance("X11")
def test_agents_are_installed_in_the_home_too_with_their_env_file_and_what_they_share(
    agent: Agent, tmp_path: Path
) -> None:
    agent.settings["home"] = tmp_path / "home"
    for file, text in {"triage/.env": "A=home\n", ".shared/utils.sh": "B=shared\n"}.items():
        (tmp_path / "home" / "agents" / file).parent.mkdir(parents=True)
        (tmp_path / "home" / "agents" / file).write_text(text)
    text = 'source "$LLM_ROOT_DIR/agents/.shared/utils.sh"\n# @cmd x\nt() {\n    echo "$A $B" >> "$LLM_OUTPUT"\n}\n'
    assert agent.has("tools.sh", text).call("t").value == {"output": "home shared"}


def test_keys_of_models_in_the_shared_env_file_reach_no_tool_and_keys_of_tools_do(agent: Agent) -> None:
    agent.has("loki/.env", "OPENAI_API_KEY=no\nSLEIPNIR_REDIS_URL=no\nUSQL_DSN=yes\n")
    agent.has("loki/functions/.env", "TAVILY_API_KEY=yes\n")
    agent.has(".env", "JINA_API_KEY=yes\n")
    env = seen(agent.has("loki/functions/tools/find.py", RUN), "find")
    names = ("OPENAI_API_KEY", "SLEIPNIR_REDIS_URL", "USQL_DSN", "TAVILY_API_KEY", "JINA_API_KEY")
    assert [env.get(name) for name in names] == [None, None, "yes", "yes", "yes"]


def test_for_bash_the_values_of_an_env_file_may_name_others(agent: Agent, tmp_path: Path) -> None:
    agent.has(".env", "A=1\nB=\"$A-${HOME}\"\nC='$A'\nD=$(touch never)\n")
    env = seen_by_bash(agent, tmp_path)
    assert [env[name] for name in "ABCD"] == ["1", "1-/nonexistent", "$A", "$(touch never)"]


def test_lines_of_env_files() -> None:
    text = "# comment\n\nA = 1\nexport B='x y'\nC=\"q\"\nD=\nno line\n=x\nE='half\nF=a=b\n"
    expected = {"A": "1", "B": "x y", "C": "q", "D": "", "E": "'half", "F": "a=b"}
    assert parse_env_file(text) == expand_env_file(text, {}) == expected
    assert expand_env_file("A=$X$Y\nX=1\nB=$X", {"Y": "y"}) == {"A": "y", "X": "1", "B": "1"}


def test_the_calls_of_a_visit_run_where_its_scripts_would_with_the_variables_of_its_run(agent: Agent) -> None:
    variables = [
        Variable(name="my-city", description="x", default="Oslo"),
        Variable(name="unit", description="x", default="C"),
    ]
    node = LlmNode(id="step", prompt="p", next="end")
    given = visit(
        node, agent.folder, graph={"variables": variables}, variables={"unit": "F"}, cwd=agent.cwd, caller_dir=agent.cwd
    )
    place = Place.of_visit(given, host({"LOKI_CONFIG_DIR": str(agent.config)}))
    (declaration,) = agent.has(
        "tools.py", PY.replace("dict(os.environ)", "{**os.environ, 'cwd': os.getcwd()}")
    ).tools.declarations
    env = run_call(declaration, {}, place).value
    assert isinstance(env, dict)
    names = ("cwd", "LLM_AGENT_VAR_MY_CITY", "LLM_AGENT_VAR_UNIT", "GRAPH_RUN_ID", "GRAPH_NODE_ID", "GRAPH_VISIT")
    assert [env[name] for name in names] == [str(agent.cwd), "Oslo", "F", "r1", "step", "r1/7"]
    assert env["GRAPH_CALLER_DIR"] == str(agent.cwd)
