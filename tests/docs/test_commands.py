"""Every command of the documents runs as written, in the order of its page."""

from __future__ import annotations

import re

import pytest

from tests.docs.before import BEFORE, Before
from tests.docs.command_lines import Line, lines_of
from tests.docs.not_run import NOT_RUN, reason
from tests.docs.pages import ROOT, blocks_of, pages_with
from tests.docs.reader import Machine, open_page


def lines_on(page: str) -> list[Line]:
    return [line for block in blocks_of(ROOT / page) if block.info in ("bash", "console") for line in lines_of(block)]


def to_run(page: str) -> list[Line]:
    return [line for line in lines_on(page) if reason(page, line.command) is None]


PAGES = [page for page in pages_with("bash", "console") if to_run(page)]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_their_order(page: str, machine: Machine) -> None:
    reader = open_page(page, machine)
    before = BEFORE.get(page, Before())
    for block in blocks_of(ROOT / page):
        reader.save(block)
        for line in [line for line in to_run(page) if line.block is block]:
            typed = reader.type(line.text)
            expected = before.ends.get(line.command, 0)
            assert typed.code == expected, f"{block}: $ {line.text}\n{typed.text}"
            lasting = [text for text in line.output if not text.startswith(tuple(before.passing))]
            shown = [beginning(text) if text.startswith(tuple(before.varies)) else text for text in lasting]
            absent = [text for text in shown if not is_printed(text, typed.text)]
            assert not absent, f"{block}: $ {line.text}\nwas to print\n{absent}\nprinted\n{typed.text}"


def is_printed(shown: str, text: str) -> bool:
    """Whether a line like this one was printed: the same but for numbers and ids, and what `...` stands for."""
    pattern = ".*".join(_pattern(part) for part in re.split(r"\.\.\.|…", shown.strip()))
    return re.search(rf"^\s*{pattern}\s*$", text, re.MULTILINE) is not None


def beginning(line: str) -> str:
    """What is compared of a line that varies."""
    return re.split(r"\d", line)[0] + "..."


def _pattern(part: str) -> str:
    words = re.split(r"(\b[0-9a-z]{12}\b|\d[\d,.:]*)", part)
    return "".join(
        r"[\w,.:]+" if odd % 2 else re.sub(r"(\\ )+", r"\\s+", re.escape(word)) for odd, word in enumerate(words)
    )


def test_commands_that_are_not_run_are_on_their_page() -> None:
    idle = [
        (page, begins)
        for page, entries in NOT_RUN.items()
        for begins in entries
        if not any(line.command.startswith(begins) for line in lines_on(page))
    ]
    assert not idle, "no command of the page begins so: take the entry out of tests/docs/not_run.py"


def test_every_exit_code_that_is_expected_is_of_a_command_that_is_run() -> None:
    idle = [
        (page, command)
        for page, before in BEFORE.items()
        for command in before.ends
        if command not in [line.command for line in to_run(page)]
    ]
    assert not idle, "no such command is run on the page: take the entry out of tests/docs/before.py"
