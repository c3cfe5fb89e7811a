"""Where the prompt of a run comes from."""

import io
from pathlib import Path

import pytest

from sleipnir.cli.runs.run import prompt_text


@pytest.mark.conformance("N01")
def test_the_argument_is_the_prompt() -> None:
    assert prompt_text("hello", None, stdin=io.StringIO("ignored")) == "hello"


@pytest.mark.conformance("N01")
def test_piped_text_is_the_prompt_without_its_last_line_end() -> None:
    assert prompt_text(None, None, stdin=io.StringIO("one\ntwo\n")) == "one\ntwo"
    assert prompt_text(None, None, stdin=io.StringIO("one\r\n")) == "one"
    assert prompt_text(None, None, stdin=io.StringIO("")) == ""


def test_a_dash_reads_the_input_in_addition_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("file\n")
    assert prompt_text("-", None, stdin=io.StringIO("typed\n")) == "typed"
    assert prompt_text("-", tmp_path / "f", stdin=io.StringIO("typed\n")) == "typed\n\nfile\n"


@pytest.mark.conformance("N01")
def test_a_file_is_the_prompt_or_follows_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("file ö\n", encoding="utf-8")
    assert prompt_text(None, tmp_path / "f", stdin=io.StringIO("ignored")) == "file ö\n"
    assert prompt_text("Sum up:", tmp_path / "f", stdin=io.StringIO("ignored")) == "Sum up:\n\nfile ö\n"
