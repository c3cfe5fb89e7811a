"""Documents from files: what is read, and what is said of what cannot be."""

from __future__ import annotations

import csv
import io
from datetime import date, datetime
from pathlib import Path

import openpyxl
import pytest

from sleipnir.errors import UsageError
from sleipnir.knowledge.order import Progress
from sleipnir_workers.knowledge.base import Document
from tests.integration.knowledge.loads import Load, loaded
from tests.integration.knowledge.papers import docx, pdf, workbook_of_one_string, zipped


def one(folder: Path, name: str, content: str | bytes, **options: object) -> Load:
    """A load of a file of that name, beside one that is good."""
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return loaded(folder, [name], **options)  # type: ignore[arg-type]


def reason(folder: Path, name: str, content: str | bytes, **options: object) -> str:
    load = one(folder, name, content, **options)
    assert load.documents == []
    assert str(load.error) == f"1 document failed to load:\n  {folder / name}: {load.failures[str(folder / name)]}"
    return load.failures[str(folder / name)]


# Text


@pytest.mark.parametrize(
    ("name", "extension"),
    [("a.md", "md"), ("a.RST", "rst"), ("a.py", "py"), ("README", "txt"), (".env", "txt"), ("a.b.rs", "rs")],
)
def test_text_is_taken_as_it_is_and_split_by_its_extension(tmp_path: Path, name: str, extension: str) -> None:
    text = "# Höhe\n\n\tword  word\n"
    assert one(tmp_path, name, text).documents == [Document(str(tmp_path / name), text, extension)]


def test_a_byte_order_mark_and_windows_ends_of_lines_are_no_text(tmp_path: Path) -> None:
    assert one(tmp_path, "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n").text == "one\ntwo\n"


def test_text_in_another_encoding_is_named_with_its_first_bad_byte(tmp_path: Path) -> None:
    assert reason(tmp_path, "a.md", b"caf\xe9 au lait") == "is not valid UTF-8 (byte 0xe9 at offset 3)"
    assert reason(tmp_path, "b.md", "text".encode("utf-16")) == "is text in UTF-16, not text in UTF-8"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "is a PNG picture, not text in UTF-8"),
        (b"\x7fELF\x02\x01", "is a program, not text in UTF-8"),
        (pdf(["words"]), "is a PDF, not text in UTF-8"),
        (b"PK\x03\x04zip", "is a zip file, not text in UTF-8"),
        (b"plain\0words", "is a binary file, not text (a zero byte at offset 5)"),
        (b"\x80\x81", "is not valid UTF-8 (byte 0x80 at offset 0)"),
    ],
)
def test_a_binary_named_md_is_named_for_what_it_is(tmp_path: Path, content: bytes, expected: str) -> None:
    assert reason(tmp_path, "a.md", content) == expected


def test_a_file_of_a_gigabyte_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2**30)
    assert loaded(tmp_path, ["huge.txt"]).failures == {
        str(tmp_path / "huge.txt"): "is 1 GB; at most 64 MB are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
    }


def test_a_kernel_file_of_size_0_is_read_up_to_the_limit(tmp_path: Path) -> None:
    failures = loaded(tmp_path, ["/proc/self/smaps"], max_document_bytes=100).failures
    assert failures == {
        "/proc/self/smaps": "is more than 100 bytes; at most 100 bytes are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
    }


# HTML

PAGE = """<!doctype html><html><head><title>Shop</title><style>p {}</style></head><body>
<nav><a href="/">Home</a> <a href="/news">News</a></nav>
<main><h1>Prices</h1><p>All prices are in crowns, and hold until the end of the year for members of the stable.</p>
<table><thead><tr><th>Thing</th><th>Price</th></tr></thead>
<tbody><tr><td>Saddle</td><td>40</td></tr><tr><td>Bridle</td><td>12</td></tr></tbody></table>
<h2>Delivery</h2><p>We <a href="/delivery">deliver</a> on foot.</p></main>
<script>track()</script><footer>Imprint and cookies</footer></body></html>"""


def test_the_main_part_of_a_web_page_is_kept_with_its_headings_and_tables(tmp_path: Path) -> None:
    load = one(tmp_path, "a.html", PAGE)
    lines = [line.replace(" ", "") for line in load.text.splitlines()]
    assert {"#Prices", "|Thing|Price|", "|Saddle|40|", "|Bridle|12|", "##Delivery", "Wedeliveronfoot."} <= set(lines)
    assert not {"Home", "track", "Imprint", "p {}"} & set(load.text.split())
    assert load.documents[0].extension == "md"


def test_a_web_page_without_a_main_part_is_read_completely(tmp_path: Path) -> None:
    page = "<html><body><form><label>Name</label><button>Send it</button></form><script>x()</script></body></html>"
    load = one(tmp_path, "a.htm", page)
    assert "Send it" in load.text
    assert "x()" not in load.text


@pytest.mark.parametrize("page", ["", "  \n", "<!-- nothing -->", "<html><body><script>x()</script></body></html>"])
def test_a_web_page_without_words_is_reported_as_a_notice(tmp_path: Path, page: str) -> None:
    (tmp_path / "good.md").write_text("words")
    load = one(tmp_path, "a.html", page)
    assert load.notices == [f"{tmp_path}/a.html: has no text"]
    assert str(load.error) == "No RAG files"


def test_a_web_page_declares_its_encoding(tmp_path: Path) -> None:
    page = '<html><head><meta charset="iso-8859-1"></head><body><p>Sm\xf8rebr\xf8d og kaffe</p></body></html>'
    assert "Smørebrød" in one(tmp_path, "a.html", page.encode("latin-1")).text
    assert "Smørebrød" in one(tmp_path, "b.html", page.encode("utf-8")).text
    declared = '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Smørebrød</p></body></html>'
    assert "Smørebrød" in one(tmp_path, "c.xhtml", declared).text


def test_a_web_page_that_is_something_else_is_named(tmp_path: Path) -> None:
    assert reason(tmp_path, "a.html", b"\x89PNG\r\n\0") == "is a PNG picture, not HTML"


def test_endlessly_nested_elements_do_not_fail(tmp_path: Path) -> None:
    load = one(tmp_path, "a.html", "<div>" * 100_000 + "deep")
    assert load.documents or load.error


# PDF


def test_the_pages_of_a_pdf_are_its_text(tmp_path: Path) -> None:
    load = one(tmp_path, "a.pdf", pdf(["The first page.", "The second page."]))
    assert load.documents == [Document(str(tmp_path / "a.pdf"), "The first page.\n\nThe second page.", "txt")]
    assert load.notices == []


def test_pages_without_text_are_a_notice(tmp_path: Path) -> None:
    load = one(tmp_path, "a.pdf", pdf(["one", "", "three", "", "", "six"]))
    assert load.notices == [f"{tmp_path}/a.pdf: has no text on pages 2, 4-5"]
    assert one(tmp_path, "b.pdf", pdf(["one", ""])).notices == [f"{tmp_path}/b.pdf: has no text on page 2"]
    scan = one(tmp_path, "c.pdf", pdf(["", ""]))
    assert scan.notices == [f"{tmp_path}/c.pdf: has no text; its pages may be scanned images"]


def test_an_encrypted_pdf_is_named(tmp_path: Path) -> None:
    content = pdf(["secret"], encrypted=True)
    assert reason(tmp_path, "a.pdf", content) == "is encrypted, and cannot be read without its password"


def test_a_damaged_pdf_is_named(tmp_path: Path) -> None:
    assert reason(tmp_path, "a.pdf", pdf(["words"])[:60]) == "is not a PDF, or is damaged"
    assert reason(tmp_path, "b.pdf", "words") == "is not a PDF, or is damaged"


# Office


def test_a_word_document_becomes_markdown_with_its_headings_and_tables(tmp_path: Path) -> None:
    load = one(tmp_path, "a.docx", docx("Feed", "Twice a day.", [["Horse", "Oats"], ["Sleipnir", "8"]]))
    assert load.text == "# Feed\n\nTwice a day.\n\n| Horse | Oats |\n| --- | --- |\n| Sleipnir | 8 |"
    assert load.documents[0].extension == "md"


def test_each_sheet_of_a_workbook_is_a_table(tmp_path: Path) -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Feed"
    for row in (
        ["Horse", "", "Oats", "Since"],
        [],
        ["Sleipnir | Odin", None, 8.0, datetime(2024, 2, 29)],
        ["Grani", None, 1.5],
    ):
        sheet.append(row)
    workbook.create_sheet("Empty")
    workbook.create_sheet("Days").append(["Monday", date(2024, 1, 1), True])
    written = io.BytesIO()
    workbook.save(written)
    load = one(tmp_path, "a.xlsx", written.getvalue())
    assert load.text == (
        "## Feed\n\n| Horse | Oats | Since |\n| --- | --- | --- |\n| Sleipnir \\| Odin | 8 | 2024-02-29 |\n"
        "| Grani | 1.5 |  |\n\n## Days\n\n| Monday | 2024-01-01 | True |\n| --- | --- | --- |"
    )
    assert load.documents[0].extension == "md"


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx"])
def test_an_office_file_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    assert reason(tmp_path, name, "words") == "is damaged, or not an Office file"
    encrypted = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    assert reason(tmp_path, name, encrypted) == "is an Office file in the old format, or an encrypted one"
    assert reason(tmp_path, name, zipped({"other": "words"})).startswith(f"is not a readable .{name[2:]} (")


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx"])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, name: str) -> None:
    bomb = zipped({"word/document.xml": " " * 3_000_000})
    assert len(bomb) < 10_000
    expected = "unpacks to 2.861 MB; at most 1 MB are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
    assert reason(tmp_path, name, bomb, max_document_bytes=2**20) == expected


def test_a_sheet_that_is_small_only_in_its_file_is_refused(tmp_path: Path) -> None:
    content = workbook_of_one_string("x" * 10_000, rows=60, columns=10)
    assert reason(tmp_path, "a.xlsx", content, max_document_bytes=2**20) == (
        "has a sheet of 60 rows and 10 columns; at most 1 MB are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
    )


@pytest.mark.parametrize("extension", ["doc", "pptx", "odt"])
def test_a_kind_that_has_no_loader_asks_for_a_command(tmp_path: Path, extension: str) -> None:
    expected = f"there is no loader for .{extension}; name a command for it in `document_loaders`"
    assert reason(tmp_path, f"a.{extension}", b"\0\1") == expected


# Tables and records


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_each_value_of_a_csv_follows_the_name_of_its_column(tmp_path: Path, separator: str) -> None:
    rows = [["horse", "oats", "rider"], ["Sleipnir", "8", "Odin"], ["Grani", "", "Sigurd"]]
    load = one(tmp_path, "a.csv", "\n".join(separator.join(row) for row in rows))
    assert load.text == "horse, oats, rider\nhorse: Sleipnir; oats: 8; rider: Odin\nhorse: Grani; rider: Sigurd\n"
    assert load.documents[0].extension == "csv"


def test_the_lines_of_a_csv_stay_where_they_are(tmp_path: Path) -> None:
    load = one(tmp_path, "a.csv", 'horse,note\n\nSleipnir,"eight\nlegs"\nGrani,grey,more\n')
    assert load.text == "horse, note\n\nhorse: Sleipnir; note: eight\nlegs\nhorse: Grani; note: grey; more\n"


@pytest.mark.parametrize(
    "text", ["1,2\n3,4\n", "just one column\nof words\n", "a,a\nb,c\n", 'a,b\n"x,' + "y" * 140_000]
)
@pytest.mark.parametrize("limit", [128 * 1024, 2**31 - 1])  # the csv module has one for the whole process
def test_a_csv_without_names_of_columns_is_taken_as_it_is(tmp_path: Path, text: str, limit: int) -> None:
    before = csv.field_size_limit(limit)
    try:
        assert one(tmp_path, "a.csv", text).text == text
    finally:
        csv.field_size_limit(before)


def test_tsv_is_split_only_at_tabs(tmp_path: Path) -> None:
    assert one(tmp_path, "a.tsv", "a,b\tc\n1,2\t3\n").text == "a,b, c\na,b: 1,2; c: 3\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '{\n    "a": [1,\n 2]}', '{\n    "a": [1,\n 2]}'),
        ("a.json", '{"a": "caf\\u00e9"}', '{\n  "a": "café"\n}'),
        ("a.json", "// a comment \\u00e9\n{}", "// a comment \\u00e9\n{}"),
        ("a.json", '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("a.jsonl", '{"a": "\\u00e9"}\n\n{"b":1}\nbroken \\u00e9\n', '{"a": "é"}\n\n{"b":1}\nbroken \\u00e9\n'),
    ],
)
def test_json_is_taken_as_people_would_read_it(tmp_path: Path, name: str, text: str, expected: str) -> None:
    load = one(tmp_path, name, text)
    assert (load.text, load.documents[0].extension) == (expected, "json")


def test_json_of_one_long_line_is_split_in_lines(tmp_path: Path) -> None:
    load = one(tmp_path, "a.json", '{"list": [' + ", ".join(f'"word {number}"' for number in range(200)) + "]}")
    assert load.text.splitlines()[:3] == ["{", '  "list": [', '    "word 0",']


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_that_is_nested_for_ever_is_text(tmp_path: Path, name: str) -> None:
    text = "[" * 100_000 + "\\u00e9"
    assert one(tmp_path, name, text).text == text


# A whole load


def test_all_that_failed_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text("words")
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe")
    (tmp_path / "bad.pdf").write_bytes(b"words")
    load = loaded(tmp_path, ["*.{md,pdf}", "nowhere.md"])
    assert [document.path for document in load.documents] == [str(tmp_path / "good.md")]
    failures = [
        f"{tmp_path}/bad.md: is text in UTF-16, not text in UTF-8",
        f"{tmp_path}/bad.pdf: is not a PDF, or is damaged",
    ]
    assert str(load.error) == "\n  ".join(["2 documents failed to load:", *failures])
    assert load.notices == ["nowhere.md: does not exist, so it is left out", *failures]


def test_with_go_on_the_loadable_documents_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text("words")
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe")
    load = loaded(tmp_path, ["*.md"], go_on=True)
    assert (len(load.documents), len(load.notices), load.error) == (1, 1, None)


@pytest.mark.parametrize("documents", [[], ["nowhere.md"], ["empty.md"], ["*.rst"]])
def test_nothing_at_all_is_an_error(tmp_path: Path, documents: list[str]) -> None:
    (tmp_path / "empty.md").write_text(" \n")
    load = loaded(tmp_path, documents)
    assert str(load.error) == "No RAG files"


def test_with_go_on_the_error_for_no_loadable_document_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe")
    assert str(loaded(tmp_path, ["bad.md"], go_on=True).error).startswith(f"No RAG files\n  {tmp_path}/bad.md: is ")


def test_progress_is_reported_before_each_source_and_at_the_end(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("words")
    assert loaded(tmp_path, ["*.md"]).progress == [
        Progress("load", 0, 2, str(tmp_path / "a.md")),
        Progress("load", 1, 2, str(tmp_path / "b.md")),
        Progress("load", 2, 2),
    ]


@pytest.mark.conformance("K13")
def test_a_refused_path_stops_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("words")
    with pytest.raises(UsageError, match=r"Invalid document path: '\.\./b\.md'"):
        loaded(tmp_path, ["a.md", "../b.md"])
