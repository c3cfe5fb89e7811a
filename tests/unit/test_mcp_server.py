"""Forms of questions, schemas of arguments and names of tools of the MCP server, without a server."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.types import ClientCapabilities, ElicitationCapability, FormElicitationCapability, UrlElicitationCapability

from sleipnir.errors import UsageError
from sleipnir.graph.model import EndNode, Graph, StateField, Variable
from sleipnir.mcp_server import questions
from sleipnir.mcp_server.arguments import CallArguments, input_schema, read
from sleipnir.mcp_server.catalogue import MOST_CHARACTERS, RESERVED, tool_name
from sleipnir.mcp_server.progress import BURST, ProgressMessages
from sleipnir.mcp_server.results import run_content, run_result
from sleipnir.runs.views import GateInfo, RunInfo


def question(kind: str = "interrupt", schema: Any = None, **more: Any) -> GateInfo:
    return GateInfo(
        "r1", 3, "ask", kind, "Which?", more.pop("options", ()), more.pop("default", None), 1, schema=schema
    )


def graph(**more: Any) -> Graph:
    return Graph(name="g", start="end", nodes={"end": EndNode()}, **more)


@pytest.mark.parametrize(
    ("gate", "fields", "required", "content", "answer"),
    [
        (
            question("input", default="x"),
            {"answer": {"type": "string", "title": "Answer", "default": "x"}},
            [],
            {},
            "x",
        ),
        (
            question("approval", options=("yes", "no")),
            {"answer": {"type": "string", "title": "Answer", "enum": ["yes", "no"]}},
            ["answer"],
            {"answer": "no"},
            "no",
        ),
        (question(schema={"type": "boolean"}), {"answer": {"type": "boolean"}}, ["answer"], {"answer": True}, True),
        (
            question(schema={"type": "string", "format": "ipv4", "pattern": "1.*", "maxLength": 3}),
            {"answer": {"type": "string", "maxLength": 3}},
            ["answer"],
            {"answer": "1"},
            "1",
        ),
        (
            question(
                schema={"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
            ),
            {"a": {"type": "integer"}},
            [],
            {"a": 2},
            {"a": 2},
        ),
    ],
)
def test_a_question_is_a_form_of_plain_fields(
    gate: GateInfo, fields: dict[str, Any], required: list[str], content: dict[str, Any], answer: Any
) -> None:
    form = questions.form_of(gate, "agent")
    assert form.requested_schema == {"type": "object", "properties": fields, "required": required}
    assert questions.answer_in(gate, content) == answer


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
        {"type": "object", "properties": {}},
        {"enum": [1, 2]},
        {"type": ["string", "null"]},
        True,
    ],
)
def test_what_no_form_expresses_is_typed_as_json(schema: Any) -> None:
    gate = question(schema=schema)
    form = questions.form_of(gate, "agent")
    assert form.requested_schema["properties"]["answer"]["type"] == "string"
    assert questions.answer_in(gate, {"answer": '{"a": [1]}'}) == {"a": [1]}
    assert questions.answer_in(gate, {"answer": "a text"}) == "a text"


def test_control_characters_of_a_question_do_not_reach_the_form() -> None:
    gate = GateInfo("r1", 3, "ask", "input", "\x1b[2J Which?", (), None, 1)
    assert questions.form_of(gate, "agent").message.endswith("\\x1b[2J Which?")


@pytest.mark.parametrize(
    ("elicitation", "can"),
    [
        (None, False),
        (ElicitationCapability(), True),
        (ElicitationCapability(form=FormElicitationCapability()), True),
        (ElicitationCapability(url=UrlElicitationCapability()), False),
    ],
)
def test_a_client_shows_forms_if_it_says_so(elicitation: ElicitationCapability | None, can: bool) -> None:
    assert questions.can_elicit(ClientCapabilities(elicitation=elicitation)) is can
    assert questions.can_elicit(None) is False


def test_a_schema_with_references_is_left_to_the_submission() -> None:
    state = {"a": StateField(type="object", schema={"$ref": "#/$defs/x", "$defs": {"x": {}}}), "_own": StateField()}
    made = input_schema(graph(state=state, initial_state={"b": 1, "token": "secret"}), {})
    assert made["required"] == ["prompt"]
    assert made["properties"]["state"]["properties"] == {"a": {"type": "object"}, "b": {"default": 1}}


def test_a_variable_of_the_environment_is_not_required_and_its_value_not_shown() -> None:
    declared = graph(variables=[Variable(name="team", description="Who")])
    assert input_schema(declared, {})["required"] == ["prompt", "variables"]
    made = input_schema(declared, {"LLM_AGENT_VAR_TEAM": "value-of-it"})
    assert made["required"] == ["prompt"] and "value-of-it" not in str(made)


def test_the_arguments_are_read_or_refused() -> None:
    schema = input_schema(graph(), {})
    assert read(schema, {"prompt": "x", "state": {"a": 1}}) == CallArguments("x", {"a": 1})
    for wrong in (None, {}, {"prompt": 1}, {"prompt": "", "sate": {}}, {"prompt": "", "request_id": ""}):
        with pytest.raises(UsageError, match="the arguments do not fit"):
            read(schema, wrong)


def test_a_tool_has_a_name_that_models_take() -> None:
    assert tool_name("log-triage") == "log-triage"
    names = [tool_name(name) for name in ("a b", "a.b", "ä", "x" * 100, *RESERVED)]
    assert len(set(names)) == len(names) and RESERVED.isdisjoint(names)
    assert all(name.isascii() and len(name) <= MOST_CHARACTERS and "." not in name for name in names)


def test_a_run_of_a_million_visits_sends_few_notifications() -> None:
    sent: list[float] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        sent.append(progress)

    async def tell() -> None:
        messages = ProgressMessages(send)
        began_s = anyio.current_time()
        for number in range(20_000):
            await messages.report(f"visit {number}")
        assert len(sent) <= BURST + 1 + (anyio.current_time() - began_s) / 0.5

    anyio.run(tell)
    assert sent == sorted(set(sent))


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_run_that_did_not_complete_is_an_error(status: Any) -> None:
    result = run_result(run_content(RunInfo("r1", "a", status, 1, error="\x1b]0;x")))
    assert result.is_error and result.content[0].type == "text"
    assert result.content[0].text == f"run r1 {status}: \\x1b]0;x"


@pytest.mark.parametrize(("output", "result"), [("[1]", [1]), ("1", None), ("[1", None), ('{"a": NaN}', None)])
def test_an_output_that_is_a_json_object_or_list_is_there_as_json_too(output: str, result: Any) -> None:
    assert run_content(RunInfo("r1", "a", "completed", 1), output).get("result") == result
