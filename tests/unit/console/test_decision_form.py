"""Forms from schemas, and questions as Markdown."""

from __future__ import annotations

from typing import Any

from sleipnir_console.pages.decision_form import answer_of_form, fields_of, filled
from sleipnir_console.pages.markdown import markdown_html, title_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["amount", "currency"],
    "properties": {
        "amount": {"type": "number", "minimum": 0, "maximum": 1249, "title": "Amount"},
        "currency": {"enum": ["EUR", "SEK"]},
        "tell": {"type": "boolean", "default": True},
        "note": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "to": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "when": {"type": "string", "format": "date"}},
        },
        "extra": {"type": "array", "items": {"type": "object"}},
    },
}


def test_a_form_has_a_field_for_each_value_and_proposes_what_the_question_shows() -> None:
    fields = fields_of(SCHEMA, {"amount": 980.0, "to": {"name": "ann"}})
    assert [(field.name, field.kind, field.proposed, field.group) for field in fields] == [
        ("f.amount", "number", "980", ""),
        ("f.currency", "choice", '"EUR"', ""),
        ("f.tell", "flag", "true", ""),
        ("f.note", "text", "", ""),
        ("f.lines", "list", "", ""),
        ("f.to.name", "text", "ann", "To"),
        ("f.to.when", "date", "", "To"),
        ("f.extra", "json", "", ""),
    ]
    assert (fields[0].label, fields[0].hint, fields[4].hint) == ("Amount", "0 to 1,249", "one in each line")


def test_what_is_typed_becomes_the_answer() -> None:
    typed = {
        "f.amount": "1,100.5", "f.currency": '"SEK"', "f.lines": "1\r\n 2\r\n", "f.to.name": "bob", "f.note": "",
        "f.extra": '[{"a": 1}]',
    }  # fmt: skip
    fields = filled(fields_of(SCHEMA, {}), typed)
    answer, checked = answer_of_form(fields)
    assert answer == {
        "amount": 1100.5, "currency": "SEK", "tell": False, "lines": [1, 2], "to": {"name": "bob"}, "extra": [{"a": 1}],
    }  # fmt: skip
    assert [field.name for field in checked if field.is_changed] == [
        "f.amount", "f.currency", "f.tell", "f.lines", "f.to.name", "f.extra",
    ]  # fmt: skip


def test_what_cannot_be_read_has_a_problem_and_stays() -> None:
    fields = filled(fields_of(SCHEMA, {}), {"f.amount": "a lot", "f.currency": '"USD"', "f.lines": "x"})
    _, checked = answer_of_form(fields)
    assert {field.name: field.problem for field in checked if field.problem} == {
        "f.amount": "'a lot' is no number",
        "f.currency": "choose one of the options",
        "f.lines": "'x' is no whole number",
    }
    assert checked[0].text == "a lot"
    assert answer_of_form(filled(fields_of(SCHEMA, {}), {}))[1][0].problem == "a value is needed"


def test_an_answer_without_schema_is_json_or_a_text() -> None:
    for typed, answer in (('{"a": 1}', {"a": 1}), ("yes, do", "yes, do"), ("7", 7)):
        assert answer_of_form(filled(fields_of(None, None), {"f.answer": typed}))[0] == answer
    assert answer_of_form(filled(fields_of({"type": "boolean"}, None), {"f.answer": "true"}))[0] is True
    assert answer_of_form(filled(fields_of({"enum": [1, 2]}, None), {"f.answer": "2"}))[0] == 2


def test_markdown_of_others_is_harmless() -> None:
    html = markdown_html(
        "# Pay?\n\n**now** <script>x()</script> [a](javascript:alert(1)) [b](https://e.org) ![p](https://e.org/x.png)\n"
    )
    assert "<h2>Pay?</h2>" in html
    assert "<strong>now</strong> &lt;script&gt;x()&lt;/script&gt;" in html
    assert '<a href="https://e.org" rel="noopener noreferrer nofollow">b</a>' in html
    assert "<img" not in html and 'href="javascript' not in html
    assert title_of("\n# **Pay 3 EUR?**\n\nmore") == "Pay 3 EUR?"
    assert title_of("") == "A question without words"
