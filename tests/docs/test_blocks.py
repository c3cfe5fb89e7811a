"""Every code block of the documents belongs to a class that some test checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.command_lines import commands_in_blocks, commands_in_the_text, is_mentioned, refusal
from tests.docs.pages import CLASSES, PAGES, ROOT, blocks, blocks_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_states_how_it_is_checked(page: Path) -> None:
    unknown = [f"{block}: {block.info!r}" for block in blocks_of(page) if block.info not in CLASSES]
    assert not unknown, (
        "these blocks have no class: write one behind the fence. tests/docs/pages.py lists them; "
        "`text` is for what no program reads, and no command"
    )


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    hidden = [
        f"{block}: {line}"
        for block in blocks("text")
        for line in block.lines
        if line.startswith(("$ ", "sleipnir ", "python ", "make "))
    ]
    assert not hidden, "commands belong into blocks of the class bash, console or `text usage`"


def test_every_command_line_is_one_that_the_parser_takes() -> None:
    commands = list(commands_in_blocks())
    assert len(commands) > 50
    refused = {place: why for place, words in commands if (why := refusal(words)) is not None}
    assert not refused, "\n".join(f"{place}\n    {why}" for place, why in refused.items())


def test_every_command_that_the_text_mentions_exists_with_its_options() -> None:
    commands = list(commands_in_the_text())
    assert len(commands) > 100
    assert [place for place, words in commands if not is_mentioned(words)] == []
