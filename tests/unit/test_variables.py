"""Where the values of an agent's variables come from (spec 3.5)."""

from __future__ import annotations

import pytest

from sleipnir.agents.variables import env_name, resolved_variables
from sleipnir.cli.runs.gate_answers import ask_variable
from sleipnir.errors import UsageError
from sleipnir.graph.model import EndNode, Graph, Variable
from tests.unit.cli.test_gate_answers import typed

CITY = Variable(name="my-city", description="Where to look")
UNIT = Variable(name="unit", description="C or F", default="C")
NOTE = Variable(name="note", description="Anything", default="")
IN_ENV = {"LLM_AGENT_VAR_MY_CITY": "Bergen", "LLM_AGENT_VAR_UNIT": "F"}


def graph(*variables: Variable) -> Graph:
    return Graph(name="weather", start="e", nodes={"e": EndNode(id="e")}, variables=list(variables))


@pytest.mark.conformance("C05", "C06")
def test_what_is_given_comes_before_the_environment_and_that_before_the_default() -> None:
    known = graph(CITY, UNIT, NOTE)
    assert resolved_variables(known, {"my-city": "Oslo"}) == {"my-city": "Oslo", "unit": "C", "note": ""}
    assert resolved_variables(known, {}, IN_ENV) == {"my-city": "Bergen", "unit": "F", "note": ""}
    assert resolved_variables(known, {"my-city": "", "unit": "K"}, IN_ENV) == {"my-city": "", "unit": "K", "note": ""}


def test_an_empty_environment_variable_sets_nothing() -> None:
    assert resolved_variables(graph(UNIT), {}, {"LLM_AGENT_VAR_UNIT": ""}) == {"unit": "C"}
    assert env_name("my-city") == "LLM_AGENT_VAR_MY_CITY"


@pytest.mark.conformance("C05")
def test_all_that_are_missing_are_named_in_one_error() -> None:
    other = Variable(name="key", description="A key")
    with pytest.raises(UsageError) as raised:
        resolved_variables(graph(CITY, UNIT, other), {})
    assert str(raised.value).startswith(
        "The following agent variables are required:\n  - my-city: Where to look\n  - key: A key\n"
    )


def test_a_variable_that_the_agent_does_not_declare_is_refused() -> None:
    with pytest.raises(UsageError, match="agent 'weather' has no variable 'town'; it declares: unit"):
        resolved_variables(graph(UNIT), {"town": "Oslo"})


@pytest.mark.conformance("C05")
def test_a_person_is_asked_for_what_nothing_sets_until_they_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = resolved_variables(
        graph(CITY, UNIT), {}, {}, lambda variable: ask_variable(variable, typed("", " ", "Oslo"))
    )
    assert asked == {"my-city": "Oslo", "unit": "C"}
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("my-city (Where to look):"), shown.err.count("This field is required")) == (
        "",
        3,
        2,
    )


def test_no_question_is_asked_after_the_end_of_the_input() -> None:
    asked: list[str] = []

    def ask(variable: Variable) -> str | None:
        asked.append(variable.name)
        return ask_variable(variable, typed())

    with pytest.raises(UsageError, match="- my-city: Where to look\n  - key: A key"):
        resolved_variables(graph(CITY, Variable(name="key", description="A key")), {}, {}, ask)
    assert asked == ["my-city"]
