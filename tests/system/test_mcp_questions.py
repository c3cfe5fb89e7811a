"""Questions of runs as elicitations of the real `mcp` client, with the newest protocol and that of `initialize`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest
from mcp.types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from tests.mcp_clients import MODES, content_of, log_of, serving, text_of, until
from tests.processes import Stack, write_agent

ASKING = """
name: asking
version: sleipnir/1
start: pay
nodes:
  pay:
    type: approval
    question: "Pay {{initial_prompt}}?"
    options: [pay, refuse]
    routes: {pay: order, refuse: refused}
    on_other: refused
  order: {type: function, call: "steps.py:order", next: done}
  done: {type: end, output: "{{ordered}}"}
  refused: {type: end, output: "refused"}
"""
STEPS = """
from sleipnir import interrupt
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["colour", "count"],
}
def order(state):
    first = interrupt("What to order?", key="what", response_schema=SCHEMA)
    where = interrupt({"where to": first}, key="where", response_schema={"type": "array", "minItems": 2})
    return {"ordered": [first["colour"], first["count"], *where]}
"""


def asking(folder: Path) -> Path:
    return write_agent(folder / "asking", ASKING, steps_py=STEPS)


def accept(**content: str | int) -> ElicitResult:
    return ElicitResult(action="accept", content=dict(content))


class User:
    """Gives these answers in turn, and keeps the forms."""

    def __init__(self, *answers: ElicitResult) -> None:
        self._answers, self.forms = list(answers), list[ElicitRequestFormParams]()

    def __call__(self, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.forms.append(params)
        return self._answers.pop(0)


@pytest.mark.parametrize("mode", MODES)
def test_the_user_answers_the_questions_of_a_run_in_forms(stack: Stack, tmp_path: Path, mode: str) -> None:
    agent = asking(tmp_path)
    user = User(
        accept(answer="pay"),
        accept(colour="red", count=70),
        accept(colour="red", count=7),
        accept(answer='["Oslo"]'),
        accept(answer='["Oslo", "Rome"]'),
    )

    async def use() -> None:
        async with serving(stack, "--agents", str(agent), mode=mode, answering=user) as client:
            result = await client.call_tool("asking", {"prompt": "12 EUR"})
            assert content_of(result)["result"] == ["red", 7, "Oslo", "Rome"], result

    asyncio.run(use())
    pay, order, again, where, _ = user.forms
    assert "Pay 12 EUR?" in pay.message and pay.requested_schema["properties"]["answer"]["enum"] == ["pay", "refuse"]
    assert order.requested_schema["properties"] == {
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "count": {"type": "integer", "maximum": 9},
    }
    assert order.requested_schema["required"] == ["colour", "count"]
    assert "The last answer does not fit" in again.message and "70" in again.message
    assert '"minItems": 2' in where.requested_schema["properties"]["answer"]["description"]
    assert len(user.forms) == 5


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("mode", MODES)
def test_a_declined_question_stays_open_and_the_result_has_it(
    stack: Stack, tmp_path: Path, mode: str, action: str
) -> None:
    agent, user = asking(tmp_path), User(ElicitResult.model_validate({"action": action}))

    async def use() -> str:
        async with serving(stack, "--agents", str(agent), mode=mode, answering=user) as client:
            result = await client.call_tool("asking", {"prompt": "12 EUR"})
            content = content_of(result)
            assert (result.is_error, content["status"]) == (False, "waiting")
            [question] = content["questions"]
            assert (question["text"], question["options"]) == ("Pay 12 EUR?", ["pay", "refuse"])
            assert content["run_id"] in text_of(result)
            return str(content["run_id"])

    run_id = asyncio.run(use())
    assert len(user.forms) == 1
    with stack.client() as client:
        run = client.run(run_id)
        assert len(run.gates()) == 1
        run.answer("refuse")
        assert run.wait(60).status == "completed"


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_forms_answers_with_a_tool(stack: Stack, tmp_path: Path, mode: str) -> None:
    agent = asking(tmp_path)

    async def use() -> None:
        async with serving(stack, "--agents", str(agent), mode=mode) as client:
            content = content_of(await client.call_tool("asking", {"prompt": "12 EUR"}))
            [question] = content["questions"]
            given = {"run_id": question["run_id"], "question_id": question["question_id"]}
            wrong = await client.call_tool("answer_question", {**given, "answer": ["pay"]})
            assert wrong.is_error and "must be a text" in text_of(wrong)
            answered = await client.call_tool("answer_question", {**given, "answer": "refuse"})
            assert not answered.is_error
            ended = await client.call_tool("wait_for_run", {"run_id": content["run_id"]})
            assert text_of(ended) == "refused"
            late = await client.call_tool("answer_question", {**given, "answer": "pay"})
            assert late.is_error and "question" in text_of(late)

        async with serving(stack, "--agents", str(agent), "--no-answers", mode=mode) as client:
            assert "answer_question" not in [tool.name for tool in (await client.list_tools()).tools]
            refused = await client.call_tool("answer_question", {**given, "answer": "pay"})
            assert refused.is_error and "no tool 'answer_question'" in text_of(refused)

    asyncio.run(use())


def test_a_form_is_withdrawn_when_somebody_else_has_answered(stack: Stack, tmp_path: Path) -> None:
    agent = asking(tmp_path)

    async def use() -> None:
        asked: list[ElicitRequestParams] = []
        gone = asyncio.Event()

        async def elicit(context: object, params: ElicitRequestParams) -> ElicitResult:
            asked.append(params)
            await gone.wait()
            return accept(answer="pay")

        async with serving(stack, "--agents", str(agent), mode="legacy", eliciting=elicit) as client:
            call = asyncio.ensure_future(client.call_tool("asking", {"prompt": "12 EUR"}))
            await until(lambda: asked, "the form is shown")
            with stack.client() as other:
                [info] = other.runs(1, agents=["asking"])
                await anyio.to_thread.run_sync(other.run(info.id).answer, "refuse")
            assert text_of(await call) == "refused", "while the form is still shown"
            gone.set()

    asyncio.run(use())
    assert "Traceback" not in log_of(stack)


def test_the_state_of_a_repeated_call_is_checked(stack: Stack, tmp_path: Path) -> None:
    agent = asking(tmp_path)

    async def use() -> None:
        async with serving(stack, "--agents", str(agent), answering=User()) as client:
            unknown = '["aaaaaaaaaaaa", ["b", 1, 1, 1], 1, []]'
            for state in ("", "[]", '["a", ["b", 1, 1, 1], "2", []]', "[" * 100_000, unknown):
                refused = await client.session.call_tool("asking", {"prompt": ""}, request_state=state)
                assert refused.is_error, state

    asyncio.run(use())
