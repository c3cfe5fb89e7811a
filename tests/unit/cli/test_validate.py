"""`validate` and `schema` as commands, and the warnings that are printed before a run starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from sleipnir.cli.app import main
from sleipnir.cli.runs import agent_warnings
from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.client.client import Client
from sleipnir.errors import GraphError, Problem
from sleipnir.settings import Settings

GRAPH = """\
name: answer
start: ask
nodes:
  ask:
    type: llm
    prompt: "{{ topic }}, {{x}}"
    next: {next}
  done: {{type: end}}
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    monkeypatch.delenv("SLEIPNIR_REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, *, to: str = "done", top: str = "") -> Path:
    folder = tmp_path / "answer"
    folder.mkdir(exist_ok=True)
    (folder / "graph.yaml").write_text(top + GRAPH.replace("{next}", to).replace("{{type: end}}", "{type: end}"))
    return folder


def out(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["validate", *words]) == code
    return capsys.readouterr().out


def test_each_finding_is_printed_with_its_code_and_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, to="doen")
    file = "answer/graph.yaml"
    assert out(capsys, "./answer", code=1).splitlines() == [
        f"{file}:6:14: warning: [ask] '{{{{ topic }}}}' is not a placeholder; it stays in the text (SLP401)",
        "    Write {{topic}}.",
        f"{file}:6:27: warning: [ask] nothing writes 'x', which the text reads (SLP403)",
        "    Write it in a node, or declare it under `initial_state` or `state` if it is set at submission.",
        f"{file}:7:5: [ask] References non-existent node 'doen' in 'next' (SLP301)",
        '    Did you mean "done"?',
        "answer: 1 error, 2 warnings",
    ]


def test_json_has_the_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    found = json.loads(out(capsys, "--format", "json", "./answer"))
    assert [(each["level"], each["line"], each["column"], each["code"]) for each in found] == [
        ("warning", 6, 14, "SLP401"),
        ("warning", 6, 27, "SLP403"),
    ]
    assert json.loads(out(capsys, "--json", "./answer")) == found


def test_github_annotations_name_the_file_as_seen_from_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, to="doen")
    assert out(capsys, "--format", "github", str(folder), code=1).splitlines()[2] == (
        "::error file=answer/graph.yaml,line=7,col=5,title=SLP301::"
        "[ask] References non-existent node 'doen' in 'next'%0ADid you mean \"done\"?"
    )


def test_sarif_has_a_rule_for_each_code_and_a_place_for_each_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, to="doen")
    (run,) = json.loads(out(capsys, "--format", "sarif", "./answer", code=1))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["SLP301", "SLP401", "SLP403"]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("SLP401", "warning"),
        ("SLP403", "warning"),
        ("SLP301", "error"),
    ]
    place = run["results"][2]["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "answer/graph.yaml"},
        "region": {"startLine": 7, "startColumn": 5},
    }


def test_a_format_without_findings_is_still_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    (folder / "graph.yaml").write_text("name: a\nstart: e\nnodes: {e: {type: end}}\n")
    assert json.loads(out(capsys, "--format", "sarif", "./answer"))["runs"][0]["results"] == []
    assert out(capsys, "--format", "github", "./answer") == ""


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "--explain", "slp401").startswith("SLP401: Braces that are not a placeholder\n")
    assert main(["validate", "--explain", "SLP41"]) == 2
    assert "there is no finding 'SLP41'" in capsys.readouterr().err
    assert main(["validate"]) == 2


@pytest.mark.parametrize(
    ("variable", "level"), [("OTHER_API_BASE", "error"), ("NOPE_API_BASE", None), ("SLEIPNIR_REDIS_URL", "warning")]
)
def test_an_unknown_client_is_an_error_where_the_workers_are_on_this_machine(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    level: str | None,
) -> None:
    """Finding U3 of the second review."""
    folder = written(tmp_path)
    (folder / "graph.yaml").write_text("name: a\nmodel: nope:nope\nstart: e\nnodes: {e: {type: end}}\n")
    monkeypatch.setenv(variable, "redis://nowhere")
    found = json.loads(out(capsys, "--json", "./answer", code=1 if level == "error" else 0))
    assert [(each["level"], each["code"]) for each in found] == ([] if level is None else [(level, "SLP602")])


def test_a_client_of_config_yaml_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    (tmp_path / "loki").mkdir()
    (tmp_path / "loki" / "config.yaml").write_text("clients:\n  - {type: openai-compatible, name: nope}\n")
    (folder / "graph.yaml").write_text("name: a\nmodel: nope:nope\nstart: e\nnodes: {e: {type: end}}\n")
    assert json.loads(out(capsys, "--json", "./answer")) == []


@pytest.mark.parametrize(
    ("words", "title"),
    [((), "graph.yaml of Sleipnir"), (("--version", "1.0"), "1.0"), (("--version", "sleipnir/1"), "sleipnir/1")],
)
def test_the_schema_of_each_version_is_printed(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], title: str
) -> None:
    assert main(["schema", *words]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["title"].endswith(title)
    assert main(["schema", "--version", "3"]) == 2


# --- before a run starts


class Warned:
    """As much of a client as `tell_warnings` uses."""

    def __init__(self, found: list[Problem] | Exception) -> None:
        self._found = found

    def warnings(self, agent: str) -> list[Problem]:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def told(
    capsys: pytest.CaptureFixture[str], found: list[Problem] | Exception, given: tuple[str, ...] | None = ()
) -> list[str]:
    agent_warnings.tell_warnings(cast(Client, Warned(found)), "answer", given)
    return capsys.readouterr().err.splitlines()


def problem(number: int, message: str = "odd") -> Problem:
    return Problem("warning", message, "g.yaml", number, 1, "ask", "a hint", "SLP401")


def test_each_warning_is_printed_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, []) == []
    assert told(capsys, [problem(1)]) == ["warning: g.yaml:1: [ask] odd (SLP401)"]
    assert told(capsys, [problem(1, "a\n" * 900)])[0].endswith("…")


def test_many_warnings_are_cut_and_the_rest_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, [problem(number) for number in range(1, 9)])
    assert len(lines) == agent_warnings.MOST_WARNINGS + 1
    assert lines[-1] == "warning: 3 more; `sleipnir validate answer` lists all"


def test_a_key_that_the_submission_gives_is_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    warnings = list(prepared(folder).warnings)
    assert [problem.code for problem in warnings] == ["SLP401", "SLP403"]
    assert len(told(capsys, warnings)) == 2
    assert len(told(capsys, warnings, ("y",))) == 2
    assert len(told(capsys, warnings, ("x",))) == 1
    assert len(told(capsys, warnings, None)) == 1, "rows of a batch may give it"


def test_an_agent_that_cannot_run_is_left_to_the_submission(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, GraphError("broken")) == []


def prepared(folder: Path) -> Any:
    settings = Settings.from_env()
    return AgentPreparation(settings).agent(folder)


def test_what_is_prepared_carries_its_warnings(tmp_path: Path) -> None:
    """Finding U3 of the second review."""
    folder = written(tmp_path, top="descripton: x\n")
    assert [(each.line, each.code) for each in prepared(folder).warnings] == [
        (1, "SLP203"),
        (7, "SLP401"),
        (7, "SLP403"),
    ]


def test_a_broken_agent_is_refused_with_the_findings_of_all_stages(tmp_path: Path) -> None:
    """Finding U3 of the second review."""
    folder = written(tmp_path, to="doen", top="settings: 5\n")
    with pytest.raises(GraphError) as caught:
        prepared(folder)
    assert [each.code for each in caught.value.problems] == ["SLP201", "SLP401", "SLP403", "SLP301"]


def test_without_checks_before_a_run_only_the_parts_are_read(tmp_path: Path) -> None:
    folder = written(tmp_path, to="doen", top="settings: {validate_before_run: false}\n")
    assert prepared(folder).warnings == ()
