"""Every block of the documents that shows a file, read by what reads such files, or made part of an agent."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from sleipnir.client.client import Client
from sleipnir.graph.check import validate
from sleipnir.knowledge.application import application
from sleipnir.models.limits import parse as parse_limits
from sleipnir.plugin_points import GROUP
from sleipnir.settings import PREFIX, Settings
from sleipnir.testing.script import parse as parse_script
from sleipnir.tools.mcp_config import parse as parse_servers
from sleipnir_workers.llm.clients import read_clients
from sleipnir_workers.tools.skills import parsed
from tests.docs.pages import Block, blocks
from tests.docs.reader import Machine, open_page
from tests.processes import write_agent


def each(*infos: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", blocks(*infos), ids=str)


@each("yaml agent")
def test_a_config_yaml_agent_has_no_errors(block: Block, tmp_path: Path) -> None:
    agent = tmp_path / "helper"
    agent.mkdir()
    (agent / "config.yaml").write_text(
        block.text if "name" in yaml.safe_load(block.text) else f"name: helper\n{block.text}"
    )
    assert [str(problem) for problem in validate(agent) if problem.level == "error"] == []


@each("yaml config")
def test_a_config_yaml_of_the_configuration_directory_is_read(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(block.text)
    data = yaml.safe_load(block.text)
    clients = read_clients(file, 0)
    loaders = application({"LOKI_CONFIG_FILE": str(file)}).loaders
    assert len(clients.clients) == len(data.get("clients", ()))
    assert dict(loaders) == data.get("document_loaders", {})


@each("yaml limits")
def test_a_file_of_limits_has_no_errors(block: Block) -> None:
    loaded = parse_limits(block.text, "limits.yaml")
    assert loaded.problems == ()
    assert loaded.limits is not None


@each("yaml script")
def test_a_script_of_the_model_server_is_read(block: Block) -> None:
    script = parse_script(yaml.safe_load(block.text))
    assert script.rules and script.default


@each("yaml kubernetes")
def test_a_part_of_a_pod_is_yaml_and_its_command_exists(block: Block) -> None:
    assert yaml.safe_load(block.text)["livenessProbe"]["exec"]["command"] == ["sleipnir", "worker", "--health"]


@each("yaml comment")
def test_comments_are_comments(block: Block) -> None:
    assert yaml.safe_load(block.text) is None


@each("json")
def test_json_is_json_and_a_file_of_servers_is_one(block: Block) -> None:
    data = json.loads(block.text)
    if "mcpServers" in data:
        secrets = dict.fromkeys(re.findall(r"\{\{(\w+)\}\}", block.text), "a-secret")
        assert parse_servers(block.text, Path("mcp.json"), secrets).keys() == data["mcpServers"].keys()


@each("ini")
def test_variables_are_a_line_each_and_settings_are_those_that_exist(block: Block) -> None:
    lines = [line for line in block.lines if not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"""[A-Z][A-Z0-9_]*=(\S*|"[^"]*")""", line)]
    assert not wrong, f"{block}: a line is NAME=VALUE, or a comment"
    Settings.from_env(
        {name: text for name, _, text in (line.partition("=") for line in lines) if name.startswith(PREFIX)}
    )


@each("toml")
def test_a_part_of_a_pyproject_names_an_entry_point_that_is_looked_for(block: Block) -> None:
    assert tomllib.loads(block.text)["project"]["entry-points"].keys() == {GROUP}


@each("jsonl")
def test_the_lines_of_an_export_have_fields_that_a_real_one_has(block: Block, machine: Machine, tmp_path: Path) -> None:
    graph = "name: a\nstart: b\nnodes:\n  b: {type: script, script: b.sh, next: c}\n  c: {type: end, output: d}\n"
    agent = write_agent(tmp_path / "a", graph, b_sh="echo '{\"label\": 1}'\n")
    with Client(Settings(redis_url=machine.home.redis_url, home=machine.home.root)) as client:
        run = client.submit(agent)
        run.wait(60)
        real = fields_of(run.export())
    shown = fields_of(block.lines)
    assert {kind: sorted(names - real[kind]) for kind, names in shown.items() if names - real[kind]} == {}


def fields_of(lines: Iterable[str]) -> dict[str, set[str]]:
    """The fields of each type of line."""
    fields: dict[str, set[str]] = {}
    for line in lines:
        data = json.loads(line)
        fields.setdefault(data["type"], set()).update(data)
    return fields


@each("markdown skill")
def test_a_skill_has_the_text_of_its_page(block: Block) -> None:
    skill = parsed("git", block.text)
    assert (skill.description, skill.body) == ("Work with git", "Commit often.")
    assert (skill.tools, skill.servers, skill.auto_unload) == (("git_command",), ("iwe",), False)


@pytest.mark.parametrize("block", blocks("bash tool", "typescript"), ids=str)
def test_a_file_of_tools_declares_what_the_page_shows(block: Block, machine: Machine) -> None:
    reader = open_page(block.page, machine)
    agent = reader.folder / "agents" / "weather"
    agent.mkdir(parents=True)
    (agent / "config.yaml").write_text("name: weather\n")
    (agent / ("tools.ts" if block.info == "typescript" else "tools.sh")).write_text(block.text)
    typed = reader.type("sleipnir tools weather --json")
    assert typed.code == 0, typed.text
    [declared] = json.loads(typed.text)
    assert declared["name"] == "forecast"
    assert declared["description"] == "Forecast the weather."
