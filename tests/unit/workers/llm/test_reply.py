"""Messages and pieces of streams become one answer."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir_workers.llm.reply import Answer, AnswerCollector, MalformedReply, RequestedCall
from tests.integration.workers.llm.raw_server import call


def answer(*pieces: dict[str, Any], place: str = "2") -> Answer:
    reply = AnswerCollector()
    for piece in pieces:
        reply.add(piece)
    return reply.answer(place)


def calls(*pieces: list[dict[str, Any]]) -> tuple[RequestedCall, ...]:
    return answer(*({"tool_calls": piece} for piece in pieces)).calls


def test_text_arrives_in_pieces_and_each_piece_is_passed_on() -> None:
    reply = AnswerCollector()
    assert [reply.add({"content": text}) for text in ("he", "", None, "llo")] == ["he", "", "", "llo"]
    assert reply.answer("2") == Answer("hello", message={"role": "assistant", "content": "hello"})


def test_content_may_be_a_list_of_parts() -> None:
    assert (
        answer({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]}).text
        == "ab"
    )


def test_a_message_with_calls_is_repeated_as_the_protocol_has_it() -> None:
    found = answer({"content": "", "tool_calls": [call("f", '{"x":1}', id="a"), call("g", "{}", id="b")]})
    assert found.calls == (RequestedCall("a", "f", '{"x":1}'), RequestedCall("b", "g", "{}"))
    assert found.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_pieces_of_a_call_belong_to_its_index() -> None:
    found = calls(
        [call("f", "", index=0, id="a")],
        [call(None, '{"x"', index=0)],
        [call("g", "{", index=1, id="b")],
        [call(None, ":1}", index=0), call(None, "}", index=1)],
    )
    assert found == (RequestedCall("a", "f", '{"x":1}'), RequestedCall("b", "g", "{}"))


def test_a_name_and_an_id_in_every_piece_are_one_call() -> None:
    pieces = [[call("f", part, index=0, id="a")] for part in ('{"x"', ":1", "}")]
    assert calls(*pieces) == (RequestedCall("a", "f", '{"x":1}'),)


def test_a_server_that_numbers_all_calls_zero_still_makes_several() -> None:
    found = calls([call("f", "{}", index=0, id="a")], [call("f", '{"x":1}', index=0, id="b")])
    assert found == (RequestedCall("a", "f", "{}"), RequestedCall("b", "f", '{"x":1}'))


def test_a_call_without_an_id_gets_one_that_follows_from_its_place() -> None:
    first = answer({"tool_calls": [call("f", "{}"), call("f", "{}", id="")]})
    again = answer({"tool_calls": [call("f", "{}"), call("f", "{}")]})
    later = answer({"tool_calls": [call("f", "{}")]}, place="4")
    ids = [each.id for each in first.calls]
    assert ids == [each.id for each in again.calls]
    assert len({*ids, later.calls[0].id}) == 3
    assert [each["id"] for each in first.message["tool_calls"]] == ids


def test_the_later_of_two_calls_with_one_id_counts() -> None:
    found = answer({"tool_calls": [call("f", "{}", id="a"), call("g", "{}", id="b"), call("h", "{}", id="a")]})
    assert found.calls == (RequestedCall("b", "g", "{}"), RequestedCall("a", "h", "{}"))
    assert [each["id"] for each in found.message["tool_calls"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("arguments", "text"), [(None, "{}"), ("", "{}"), (" ", "{}"), ({"ä": 1}, '{"ä": 1}'), ("{broken", "{broken")]
)
def test_arguments_are_text_an_object_or_nothing(arguments: Any, text: str) -> None:
    assert calls([call("f", arguments, id="a")]) == (RequestedCall("a", "f", text),)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (call("f", [1], id="a"), "calls 'f' with arguments that are neither text nor an object, but list"),
        (call("f", 5, id="a"), "but int"),
        (call(None, "{}", id="a"), "calls a tool without a name"),
        ({"id": "a"}, "calls a tool without a name"),
    ],
)
def test_a_call_that_cannot_be_made_is_an_error(written: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedReply, match=message):
        calls([written])


def test_what_providers_want_back_is_kept() -> None:
    thinking = {"type": "thinking", "thinking": "h", "signature": None}
    found = answer(
        {"reasoning_content": "h", "thinking_blocks": [thinking]},
        {"reasoning_content": "m", "thinking_blocks": [{**thinking, "thinking": "m"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s1"}]},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": "d"}, {**thinking, "signature": "s2"}]},
        {"provider_specific_fields": {"refusal": None, "thought_signatures": ["t"]}},
        {"tool_calls": [call("f", "{}", id="a", provider_specific_fields={"thought_signature": "g"})]},
    )
    assert found.message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s1"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "thinking", "thinking": "h", "signature": "s2"},
    ]
    assert found.message["reasoning_content"] == "hm"
    assert found.message["provider_specific_fields"] == {"thought_signatures": ["t"]}
    assert found.message["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "g"}


def test_reasoning_without_calls_is_not_sent_back() -> None:
    assert answer({"reasoning_content": "hm", "content": "a"}).message == {"role": "assistant", "content": "a"}


def test_halves_of_a_character_meet_or_are_replaced() -> None:
    found = answer({"content": "\ud83d"}, {"content": "\ude00 \ud83d"}, {"tool_calls": [call("f", "\udc00", id="a")]})
    assert found.text == "😀 \ufffd"
    assert found.calls[0].arguments == "\ufffd"
