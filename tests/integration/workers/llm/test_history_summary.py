"""The summary in the place of older messages: against a real HTTP server that speaks the protocol (F51)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir import START, InMemorySaver, MessagesState, StateGraph
from sleipnir.graph.model import LlmNode, SessionRules, SummaryRules
from sleipnir.messages import VisitResult
from sleipnir.testing import ModelServer, Reply, Request
from sleipnir_workers.llm.history_summary import DEFAULT_TEMPLATE
from sleipnir_workers.llm.node import run_llm
from sleipnir_workers.llm.session_history import summarization_prompt
from tests.unit.workers.visits import host, visit

SYSTEM = {"role": "system", "content": "Talk."}
PROMPT = summarization_prompt(7)


def said(*texts: str) -> list[dict[str, Any]]:
    """Messages of the user and of the model in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text, "id": f"m{n}"} for n, text in enumerate(texts)]


def sent(request: Request) -> list[str]:
    """What a request sends after its instructions."""
    return [str(message["content"]) for message in request.messages[1:]]


def ask(
    folder: Path,
    replies: list[Any],
    state: dict[str, Any],
    *,
    run: str = "r1",
    session: SessionRules | None = None,
    **keys: Any,
) -> tuple[VisitResult, list[Request]]:
    rules = session or SessionRules(max_history=2, summary=SummaryRules(max_words=7, template="S: {{summary}}"))
    node = LlmNode(
        id="ask", prompt=None, input="auto", user_input_key="user_input", model="openai:gpt-test",
        instructions="Talk.", **keys,
    )  # fmt: skip
    graph = {"session": rules, "has_messages": True}
    with ModelServer(replies) as server:
        return run_llm(
            node, visit(node, folder, state=state, graph=graph, run=run), host(server.env())
        ), server.requests


def summary(text: str, messages: int, result: VisitResult) -> dict[str, Any]:
    written = result.delta["_summary"]
    assert isinstance(written, dict)
    assert (written["text"], written["messages"]) == (text, messages)
    return written


@pytest.mark.conformance("SE-03")
def test_older_messages_are_replaced_by_a_summary_and_the_last_turn_stays(tmp_path: Path) -> None:
    messages = said("one", "1", "two", "2")
    result, (first, second) = ask(tmp_path, [" short \n", "3"], {"messages": messages, "user_input": "three"})
    assert first.messages == [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": "user: one\n\nassistant: 1"},
    ]
    assert second.messages[:2] == [SYSTEM, {"role": "system", "content": "S: short"}]
    assert sent(second) == ["S: short", "two", "2", "three"]
    assert summary("short", 2, result)["run"] == "r1"
    assert [each["content"] for each in result.delta["messages"]] == ["three", "3"], "the state keeps all messages"
    assert result.usage is not None
    assert result.usage.calls == 2, "the summary is paid for too"
    assert "the history is summarised: 2 messages" in result.notes


def test_the_default_message_names_what_it_is(tmp_path: Path) -> None:
    rules = SessionRules(max_history=2, summary=SummaryRules())
    state = {"messages": said("one", "1", "two", "2", "three")}
    _, (first, second) = ask(tmp_path, ["{{x}}", "3"], state, session=rules)
    assert first.messages[0]["content"] == summarization_prompt(400)
    assert sent(second)[0] == DEFAULT_TEMPLATE.replace("{{summary}}", "{{x}}"), "the summary is no template"


def test_a_later_visit_of_the_run_sends_the_same_summary_without_a_call(tmp_path: Path) -> None:
    state = {"messages": said("one", "1", "two", "2", "three")}
    result, _ = ask(tmp_path, ["short", "3"], state)
    more = dict(result.delta)
    more["messages"] = said("one", "1", "two", "2", "three", "3", "four", "4", "five")
    again, (request,) = ask(tmp_path, ["5"], more)
    assert sent(request) == ["S: short", "two", "2", "three", "3", "four", "4", "five"]
    assert "_summary" not in again.delta
    next_turn, (first, second) = ask(tmp_path, ["shorter", "5"], more, run="r2")
    assert first.messages[1]["content"] == (
        "Summary of what was said before:\nshort\n\nuser: two\n\nassistant: 2\n\nuser: three\n\nassistant: 3"
    )
    assert sent(second) == ["S: shorter", "four", "4", "five"]
    summary("shorter", 6, next_turn)


@pytest.mark.parametrize(
    ("reply", "why"),
    [(Reply(status=400, error="no room"), "no room"), ("  ", "the model said nothing")],
)
def test_a_summary_that_fails_is_told_and_tried_again_in_the_next_turn(tmp_path: Path, reply: Any, why: str) -> None:
    messages = said("one", "1", "two", "2", "three")
    result, (_, second) = ask(tmp_path, [reply, "3"], {"messages": messages})
    assert result.ok
    assert sent(second) == ["one", "1", "two", "2", "three"]
    assert any("the history is not summarised" in note and why in note for note in result.notes), result.notes
    assert result.delta["_summary"] == {"run": "r1"}
    state = {"messages": messages, **{"_summary": result.delta["_summary"]}}
    assert len(ask(tmp_path, ["3"], state)[1]) == 1, "not in this run"
    later, (_, second) = ask(tmp_path, ["short", "3"], state, run="r2")
    assert sent(second)[0] == "S: short"
    summary("short", 2, later)


def test_a_failed_summary_leaves_the_one_before(tmp_path: Path) -> None:
    made, _ = ask(tmp_path, ["short", "3"], {"messages": said("one", "1", "two", "2", "three")})
    state = {"messages": said(*"a1b2c3d4e"), "_summary": made.delta["_summary"]}
    state["messages"][:5] = said("one", "1", "two", "2", "three")
    result, (_, second) = ask(tmp_path, [Reply(status=400), "x"], state, run="r2")
    assert sent(second) == ["S: short", "two", "2", "three", "3", "d", "4", "e"]
    assert summary("short", 2, result)["run"] == "r2"


def test_a_failed_answer_writes_no_summary(tmp_path: Path) -> None:
    result, _ = ask(tmp_path, ["short", Reply(status=400)], {"messages": said("one", "1", "two", "2", "three")})
    assert not result.ok
    assert "_summary" not in result.delta
    assert result.usage is not None
    assert result.usage.calls == 2


def test_a_summary_of_other_messages_is_not_sent(tmp_path: Path) -> None:
    made, _ = ask(tmp_path, ["short", "3"], {"messages": said("one", "1", "two", "2", "three")})
    kept = {"_summary": made.delta["_summary"]}
    other = [{**message, "content": f"new {message['content']}"} for message in said("one", "1", "two")]
    _, (request,) = ask(tmp_path, ["3"], {"messages": other, **kept})
    assert sent(request) == ["new one", "new 1", "new two"]
    added = [{"role": "user", "content": "zero", "id": "z"}, *said("one", "1", "two")]
    _, (request,) = ask(tmp_path, ["3"], {"messages": added, **kept})
    assert sent(request) == ["S: short", "two"], "what the summary ends with has an id, and is found"


def test_system_messages_at_the_front_are_sent_and_not_summarised(tmp_path: Path) -> None:
    front = {"role": "system", "content": "Rules.", "id": "s"}
    state = {"messages": [front, *said("one", "1", "two", "2", "three")]}
    result, (first, second) = ask(tmp_path, ["short", "3"], state, few_shot=[{"role": "user", "content": "ex"}])
    assert "Rules." not in first.messages[1]["content"]
    assert [each["content"] for each in second.messages] == ["Rules.", "S: short", "ex", "two", "2", "three"]
    summary("short", 3, result)


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        (("one", "1", "two"), {}),  # not too many
        (("one", "1"), {"user_input": "two"}),
        (("one", *"12345"), {"user_input": "two"}),
        (("one", "1", "two", "2", "three"), {"one_shot_messages": said("only")}),
    ],
)
def test_no_call_is_made_where_nothing_can_be_summarised(
    tmp_path: Path, texts: tuple[str, ...], state: dict[str, Any]
) -> None:
    rules = SessionRules(max_history=6, summary=SummaryRules())
    result, requests = ask(tmp_path, ["x"], {"messages": said(*texts), **state}, session=rules)
    assert (len(requests), "_summary" in result.delta) == (1, False)


def test_without_max_history_the_tokens_count(tmp_path: Path) -> None:
    rules = SessionRules(summary=SummaryRules(template="S: {{summary}}"))
    for words, calls in ((10, 1), (4_000, 2)):
        state = {"messages": said("word " * words, "1", "two", "2", "three")}
        result, requests = ask(tmp_path, ["short", "3"][-calls:], state, session=rules)
        assert (len(requests), "_summary" in result.delta) == (calls, calls == 2)


def replies(request: Request) -> str:
    return "short" if "nothing but the" in str(request.messages[0]["content"]) else f"saw {len(request.messages)}"


@pytest.mark.conformance("SE-03")
def test_turns_in_this_process_send_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    session = {"max_history": 5, "summary": {"max_words": 7, "template": "S: {{summary}}"}}
    builder = StateGraph(MessagesState).add_llm_node("ask", model="openai:gpt-test", instructions="Talk.")
    graph = builder.add_edge(START, "ask").compile(checkpointer=InMemorySaver(), session=session)
    config = {"configurable": {"thread_id": "t"}}
    with ModelServer(replies) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        turns = [graph.invoke({"messages": [("user", f"p{n}")]}, config) for n in range(5)]
        assert [turn["messages"][-1].content for turn in turns] == ["saw 2", "saw 4", "saw 6", "saw 5", "saw 7"]
        assert len(server.requests) == 6, "one summary, in the fourth turn"
        assert sent(server.requests[-1]) == ["S: short", "p2", "saw 6", "p3", "saw 5", "p4"]
    assert len(turns[-1]["messages"]) == 10, "the state has all messages"
