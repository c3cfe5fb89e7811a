"""What completions are made of: requests, questions in texts, the text that is spoken, and how many there may be."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.runs.views import GateInfo
from sleipnir_console.chat_completions.chat_questions import QuestionMark, question_text
from sleipnir_console.chat_completions.chat_request import ChatRequest, conversation_of
from sleipnir_console.listened_run import AnswerSlots, SpokenText
from sleipnir_console.openai_errors import openai_response
from sleipnir_console.problems import HttpProblem


def piece(text: str, number: int = 0, *, seq: int = 1, attempt: int = 1, last: bool = False) -> dict[str, Any]:
    return {"seq": seq, "attempt": attempt, "turn": 0, "draft": 1, "piece": number, "text": text, "last": last}


def test_what_streams_is_said_once_and_ends_with_the_output() -> None:
    spoken = SpokenText()
    said = [spoken.more(piece("Hel")), spoken.more(piece("lo", 1, last=True)), spoken.rest("Hello")]
    assert said == ["Hel", "lo", ""]
    assert SpokenText().rest("Hello") == "Hello"


def test_an_output_that_goes_on_after_the_text_is_completed() -> None:
    spoken = SpokenText()
    assert [spoken.more(piece("Hel")), spoken.rest("Hello")] == ["Hel", "lo"]


def test_a_text_that_begins_anew_follows_an_empty_line() -> None:
    spoken = SpokenText()
    said = [spoken.more(piece("Hel")), spoken.more(piece("Good ", attempt=2)), spoken.more(piece("day", 1, attempt=2))]
    assert said == ["Hel", "\n\nGood ", "day"]
    assert spoken.rest("Good day") == ""


def test_another_output_than_the_text_follows_an_empty_line() -> None:
    spoken = SpokenText()
    assert [spoken.more(piece("Hello", last=True)), spoken.rest('{"said": 1}')] == ["Hello", '\n\n{"said": 1}']


def test_of_two_texts_at_once_the_first_is_said_and_the_other_with_the_output() -> None:
    spoken = SpokenText()
    pieces = [piece("a"), piece("x", seq=2), piece("b", 1), piece("y", 1, seq=2, last=True), piece("c", 2, last=True)]
    assert [spoken.more(each) for each in pieces] == ["a", "", "b", "", "c"]
    assert spoken.more(piece("next", seq=3)) == "\n\nnext"


def test_a_piece_in_the_middle_of_a_text_whose_beginning_is_lost_is_not_said() -> None:
    spoken = SpokenText()
    assert spoken.more(piece("lo", 4)) == ""
    assert spoken.rest("Hello") == "Hello"


def test_a_question_is_found_again_at_the_end_of_a_message_alone() -> None:
    gate = GateInfo("k3v9x2ab77pq", 3, "pay", "approval", "Pay \x1b[2J?", ("yes", "no"), None, 1_700_000_000_000, 2)
    text = question_text(gate)
    assert text == "Pay \\x1b[2J?\n\nOptions: yes, no\n\n[question k3v9x2ab77pq 3.2.1700000000000]"
    assert QuestionMark.in_text(f"before\n{text}\n ") == QuestionMark.of(gate)
    assert QuestionMark.in_text(f"{text} and more") is None
    assert QuestionMark.in_text("[question ../x 1.1.1]") is None


def test_two_callers_with_one_user_have_two_conversations() -> None:
    names = {
        conversation_of("u", "ann", "default"),
        conversation_of("u", "bob", "default"),
        conversation_of("u", "ann", "x"),
    }
    assert len(names) == 3 and all(len(name) == 37 for name in names)
    assert conversation_of("u", "ann", "default") in names


def test_a_system_message_is_told_as_one_and_fields_of_models_are_ignored() -> None:
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]}]
    body = {"model": "a", "messages": [*messages, {"role": "user", "content": "hi"}], "top_p": 1, "seed": 4, "n": None}
    asked = ChatRequest.model_validate(body)
    asked.check()
    assert asked.earlier[0].as_said == {"role": "system", "content": "Be\nkind"}
    assert asked.transcript().startswith("The conversation so far:\n\nsystem: Be\nkind\n\n")


def test_there_is_a_number_of_requests_that_may_wait_for_runs() -> None:
    slots = AnswerSlots(1)
    slots.check()
    with slots.taken():
        with pytest.raises(HttpProblem) as full:
            slots.check()
        answer = openai_response(full.value)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
    slots.check()
