"""Rows from files: what is good is kept, what is wrong is said with its place, and nothing large is read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.batches.rows import MAX_ROW_BYTES, BadRow, Row, read
from sleipnir.errors import UsageError


def rows_of(path: Path, content: str | bytes, key: str | None = None) -> list[Row | BadRow]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read(path, key))


def said(path: Path, content: str | bytes, key: str | None = None) -> list[str]:
    """What is wrong, with the name of the file left out."""
    found = rows_of(path, content, key)
    return [str(row).removeprefix(f"{path}:") for row in found if isinstance(row, BadRow)]


def test_json_lines_are_rows_with_a_prompt_and_state(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    content = '{"prompt": "größer", "n": 1}\n\n{"n": [2]}'
    assert rows_of(file, content) == [
        Row(f"{file}:1", "1", "größer", {"n": 1}),
        Row(f"{file}:3", "2", "", {"n": [2]}),
    ]
    by_key = rows_of(file, b'\xef\xbb\xbf{"prompt": "a", "id": 7}\r\n{"id": "x"}\n', "id")
    assert [(row.key, row.state) for row in by_key if isinstance(row, Row)] == [("7", {"id": 7}), ("x", {"id": "x"})]


def test_each_bad_line_is_reported_with_its_place_and_the_others_are_kept(tmp_path: Path) -> None:
    lines = [
        b'{"prompt": "a"}', b'{"prompt": }', b"[1]", b'{"prompt": 1}', b'{"a": 1, "a": 2}', b'{"a": NaN}',
        b'{"prompt": "\xff"}', b"[" * 100_000, b'{"prompt": "z"}',
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    found = rows_of(file, b"\n".join(lines))
    assert [row.key for row in found if isinstance(row, Row)] == ["1", "9"]
    assert said(file, b"\n".join(lines))[:-1] == [
        "2:12: the row is not JSON: Expecting value",
        '3: the row must be an object of columns, as {"prompt": "..."}',
        "4: the column 'prompt' must be a text, not 1",
        "5: the row is not JSON: 'a' occurs twice in an object",
        "6: the row is not JSON: NaN is no JSON number",
        "7: the row is not valid UTF-8 text; convert the file, for example with iconv -f ISO-8859-1 -t UTF-8",
    ]
    assert said(file, b"\n".join(lines))[-1].startswith("8: the row is not JSON: maximum recursion")


def test_keys_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert [text[:25] for text in said(file, '{"a": 1}\n{"id": ""}\n{"id": true}', "id")] == [
        "1: the row has no column ", "2: the column 'id' must i", "3: the column 'id' must i"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_too_large_row_is_skipped_without_being_read_completely(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    head, large, last = (
        ("", '{"prompt": "%s"}\n', '{"prompt": "b"}\n') if "json" in name else ("prompt\n", "%s\n", "b\n")
    )
    found = rows_of(file, head + large % ("x" * (MAX_ROW_BYTES + 10)) + last)
    assert isinstance(found[0], BadRow)
    assert found[0].message == "the row has more than 10 MB; store the data in a file and give its path in the row"
    assert [row.prompt for row in found[1:] if isinstance(row, Row)] == ["b"]


def test_a_csv_file_has_a_header_and_texts(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    content = 'prompt, n\n"a, ""b""\nc",1\n\nd,2\n'
    assert rows_of(file, content, "n") == [
        Row(f"{file}:2", "1", 'a, "b"\nc', {"n": "1"}, as_text=True),
        Row(f"{file}:5", "2", "d", {"n": "2"}, as_text=True),
    ]


def test_csv_rows_with_wrong_columns_or_quotes_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    assert said(file, b'prompt,n\na\nb,1,2\nc,1\n"d"e,1\n\xff,1\nf,1\n"g,1\nh,1\n') == [
        "2: the row has 1 column, the header has 2",
        "3: the row has 3 columns, the header has 2",
        "5: the row is not CSV: ',' expected after '\"'",
        "6: the row is not valid UTF-8 text; convert the file, for example with iconv -f ISO-8859-1 -t UTF-8",
        "8: the row is not CSV: a quote that is opened in it is not closed; the following text belongs to it",
    ]


def test_files_without_rows_are_refused_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for content, key, why in (
        ("", None, "is empty; its first line must name the columns"),
        ("a,a\n", None, "the header must name each column once, not 'a,a'"),
        ("a,b\n", "id", "there is no column 'id'; the header has a, b"),
        ("a;b\n1;2\n", None, "1: the columns are separated by ';'; separate them by commas"),
        ("a,b\n".encode("utf-16"), None, "is encoded as UTF-16; convert it, for example with iconv -f UTF-16 -t"),
        ("a,b\n".encode("utf-16-le"), "a", "is encoded as UTF-16LE"),
        ("a,b\n".encode("utf-16-be"), None, "is encoded as UTF-16BE"),
    ):
        with pytest.raises(UsageError, match=why):
            rows_of(file, content, key)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        list(read(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        list(read(tmp_path))
