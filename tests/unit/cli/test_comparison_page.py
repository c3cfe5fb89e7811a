"""The page and the files of a comparison."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from sleipnir.cli.runs.comparison_files import CSV_FIELDS, ComparedNames, CsvFile, HtmlFile, JsonDocument
from sleipnir.runs.comparison import ComparedRun, Comparison, compared, summary_of

NAMES = ComparedNames("batch", "aaaaaaaaaaaa", "bbbbbbbbbbbb", "<i>monday</i>", 'tues"day')
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J'\"&"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "the page is well formed"


def rows() -> list[Comparison]:
    evil = ComparedRun(
        EVIL,
        "failed",
        None,
        EVIL,
        1200,
        None,
        5,
        (EVIL, "x"),
        2,
        {EVIL: json.dumps(EVIL), "long": json.dumps("y" * 5000)},
    )
    good = ComparedRun("r2", "completed", "42", path=("x",), visits=1, state={"new": "1"})
    return [
        compared(evil, good, EVIL).judged("undecided", EVIL),
        compared(good, good, "k2").judged("equal"),
        compared(good, None, "k3"),
        compared(None, evil, "k4"),
    ]


def page(found: Sequence[Comparison]) -> str:
    file = io.StringIO()
    html = HtmlFile(file, NAMES)
    for row in found:
        html.add(row)
    html.end(summary_of(found))
    html.close()
    return file.getvalue()


def test_all_of_the_page_is_text_nothing_of_it_runs_or_is_loaded() -> None:
    text = page(rows())
    found = Tags(text)
    assert found.open == []
    allowed = {
        "html", "head", "meta", "title", "style", "body", "h1", "p", "div", "b", "table", "thead", "tbody", "tr", "th",
        "td", "span", "details", "summary", "label", "input", "br",
    }  # fmt: skip
    assert {tag for tag, _ in found.tags} <= allowed
    names = {name for _, attributes in found.tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href", "style")]
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "\x1b" not in text and "url(" not in text
    assert text.index("Different: ") < text.index("&lt;script&gt;"), "summary first"


def test_the_page_is_for_light_and_dark_screens() -> None:
    text = page(rows())
    assert "color-scheme: light dark" in text and "prefers-color-scheme: dark" in text
    light, dark = (set(re.findall(r"--(\w+):", part)) for part in text.split("@media", 1))
    assert light <= dark


def test_a_long_value_is_shortened_on_the_page() -> None:
    text = page(rows())
    assert "y" * 5000 not in text and "(5,002 characters)" in text


def test_a_row_can_be_found_by_what_became_of_it() -> None:
    classes = [attributes["class"] for tag, attributes in Tags(page(rows())).tags if tag == "tbody"]
    assert classes == ["changed undecided", "equal same", "missing only_a", "missing only_b"]


def test_rows_beyond_the_most_of_a_page_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleipnir.cli.runs.comparison_page.MOST_ROWS", 1)
    text = page(rows())
    assert text.count("<tbody") == 1 and "3 further rows not shown" in text


def test_csv_has_a_record_for_each_row() -> None:
    file = io.StringIO()
    sink = CsvFile(file)
    for row in rows():
        sink.add(row)
    head, first, _, third, fourth = csv.reader(io.StringIO(file.getvalue()))
    assert tuple(head) == CSV_FIELDS and {len(line) for line in (first, third, fourth)} == {len(head)}
    found = dict(zip(head, first, strict=True))
    assert (found["key"], found["outcome"], found["error_a"], found["cost_usd_a"]) == (EVIL, "changed", EVIL, "")
    assert found["keys"].split()[-1] == "new"
    assert dict(zip(head, third, strict=True))["run_b"] == ""


def test_json_is_one_document_even_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for found in ([], rows()):
        document = JsonDocument(NAMES)
        for row in found:
            document.add(row)
        document.end(summary_of(found))
        read = json.loads(capsys.readouterr().out)
        assert (read["kind"], len(read["rows"]), read["summary"]["rows"]) == ("batch", len(found), len(found))
    assert read["rows"][0]["state"]["only_b"] == {"new": 1}
    assert read["rows"][0]["a"]["error"] == EVIL and "state" not in read["rows"][0]["a"]
