"""Failures after which a run goes on, in one process: what functions raise, what is recorded, what a parent reads."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from sleipnir import RecoverableError
from sleipnir.graph.check import validate
from sleipnir.testing import RunResult, run

STEPS = """
    from sleipnir import Command, RecoverableError

    class Soft(Exception):
        code = 17

    class Softer(Soft):
        pass

    def value(state):
        raise RecoverableError("half done", code="HALF", value={"n": 5})

    def command(state):
        raise RecoverableError("another way", value=Command(update={"n": 6}, goto="other"))

    def listed(state):
        raise Softer("as listed")

    def wrong(state):
        raise RecoverableError("wrong", value={"n": "many"})

    def no_json(state):
        raise RecoverableError("wrong", value={"n": {1, 2}})

    def hard(state):
        raise OSError("hard")

    def ok(state):
        return {"ok": True}
"""


def agent(
    tmp_path: Path, nodes: str, *, errors: str = 'errors: {collect: true, recoverable: ["steps.py:Soft"]}'
) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(exist_ok=True)
    lines = "".join(f"  {line}\n" for line in dedent(nodes).strip().splitlines())
    head = f"name: agent\nversion: sleipnir/1\nstart: first\nstate: {{n: int}}\n{errors}\nnodes:\n"
    (folder / "graph.yaml").write_text(head + lines)
    (folder / "steps.py").write_text(dedent(STEPS))
    return folder


def of(folder: Path) -> RunResult:
    return run(folder, "x")


AFTER = """
    first: {type: function, call: "steps.py:NAME", next: after}
    after: {type: function, call: "steps.py:ok"}
    other: {type: router}
"""


@pytest.mark.conformance("ER-01", "ER-03")
def test_the_value_of_a_recoverable_error_is_what_the_node_returns(tmp_path: Path) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", "value")))
    assert (result.status, result.state["n"], result.state["ok"]) == ("completed", 5, True)
    [record] = result.state["execution_errors"]
    expected = {"severity": "recoverable", "node": "first", "code": "HALF", "type": "sleipnir.errors:RecoverableError"}
    assert expected.items() <= record.items()
    assert "half done" in record["message"]


def test_a_command_as_the_value_chooses_the_way_on(tmp_path: Path) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", "command")))
    assert (result.status, result.state["n"], "ok" in result.state) == ("completed", 6, False), result.error


@pytest.mark.conformance("ER-02")
def test_a_class_that_derives_from_a_listed_one_is_recovered_from(tmp_path: Path) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", "listed")))
    [record] = result.state["execution_errors"]
    assert (result.status, record["type"], record["code"]) == ("completed", "steps.py:Softer", "17")


@pytest.mark.parametrize(
    ("name", "why"), [("wrong", "state key 'n' must be int"), ("no_json", "its value is not JSON")]
)
def test_a_value_that_cannot_be_stored_is_a_failure(tmp_path: Path, name: str, why: str) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", name)))
    assert result.status == "failed"
    assert why in str(result.error)


def test_without_the_block_a_recoverable_error_is_a_failure(tmp_path: Path) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", "value"), errors=""))
    assert result.status == "failed"
    assert "raised RecoverableError: half done" in str(result.error)
    assert "execution_errors" not in result.state


def test_without_collect_it_recovers_and_records_nothing(tmp_path: Path) -> None:
    result = of(agent(tmp_path, AFTER.replace("NAME", "value"), errors="errors: {}"))
    assert (result.status, result.state["n"]) == ("completed", 5)
    assert "execution_errors" not in result.state


@pytest.mark.conformance("ER-06")
def test_a_parent_reads_what_its_child_has_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))
    agent(tmp_path, AFTER.replace("NAME", "listed"))
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "graph.yaml").write_text(
        "name: parent\nversion: sleipnir/1\nstart: ask\nnodes:\n"
        '  ask: {type: agent, agent: agent, prompt: x, map_out: {found: "{{child.state.execution_errors[0].type}}"}}\n'
    )
    assert run(parent, "x").state["found"] == "steps.py:Softer"


def test_an_item_of_a_map_has_on_item_error_instead(tmp_path: Path) -> None:
    nodes = """
        first: {type: map, for_each: "{{items}}", as: item, node: each, collect: all, on_item_error: skip}
        each: {type: function, call: "steps.py:value"}
    """
    result = run(agent(tmp_path, nodes), state={"items": [1, 2]})
    assert (result.status, result.state["all"], "execution_errors" in result.state) == ("completed", [], False)


@pytest.mark.parametrize(
    ("errors", "found"),
    [
        ("errors: {recoverable: [any]}", "'any' would hide failures that nobody expects"),
        ("errors: {recoverable: [timeuot]}", "'timeuot' is not a known failure"),
        ('errors: {recoverable: ["steps.py:Sofft"]}', "'steps.py' does not define 'Sofft'"),
        ("errors: {colect: true}", "unknown key 'colect'"),
        ("errors: yes", "'errors' must hold a mapping with `collect` and `recoverable`, got the text 'yes'"),
    ],
)
def test_mistakes_in_the_block_are_named(tmp_path: Path, errors: str, found: str) -> None:
    problems = validate(agent(tmp_path, AFTER.replace("NAME", "ok"), errors=errors))
    assert any(found in problem.message for problem in problems), problems


def test_version_1_0_has_no_such_block(tmp_path: Path) -> None:
    folder = agent(tmp_path, AFTER.replace("NAME", "ok"))
    text = (folder / "graph.yaml").read_text().replace("version: sleipnir/1\n", "")
    (folder / "graph.yaml").write_text(text)
    assert "'errors' needs version sleipnir/1" in [problem.message for problem in validate(folder)]


def test_the_error_says_what_it_was_given() -> None:
    error = RecoverableError("m", 3, {"a": 1})
    assert (str(error), error.message, error.code, error.value) == ("m", "m", 3, {"a": 1})
