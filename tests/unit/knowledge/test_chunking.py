"""Chunks are Loki's (spec 8.4), and say which lines they come from."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sleipnir_workers.knowledge.base import Chunk
from sleipnir_workers.knowledge.chunking import split
from sleipnir_workers.knowledge.separators import DEFAULT, separators_of


def texts(text: str, extension: str, size: int, overlap: int) -> list[str]:
    return [chunk.text for chunk in split(text, extension, size, overlap)]


def test_pieces_are_merged_up_to_the_size_and_the_end_of_a_chunk_begins_the_next() -> None:
    assert texts("foo bar baz 123", "txt", 7, 3) == ["foo bar", "bar baz", "baz 123"]
    assert texts("foo bar baz 123", "txt", 7, 0) == ["foo bar", "baz 123"]


def test_a_piece_of_exactly_the_size_is_cut_again() -> None:
    assert texts("one two\n\nthree", "txt", 7, 0) == ["one two", "three"]
    assert texts("seven..\n\nx", "txt", 7, 0) == ["seven..", "x"]


def test_empty_pieces_are_left_out_and_pieces_are_joined_with_their_separator() -> None:
    assert texts("a\n\n\n\nb", "txt", 10, 0) == ["a\n\nb"]


def test_markdown_is_cut_before_its_headings_and_keeps_them() -> None:
    text = (
        "# \N{PARROT} Birds\n\nBirds of the north; they winter in the south.\n\n## Quick start\n\n```bash\n"
        "# A block is cut behind its end.\nbirds list --all\n```\n\nAsk at the station, where "
        "people know most of the birds by their names and songs."
    )
    assert split(text, "md", 90, 0) == [
        Chunk("# \N{PARROT} Birds\n\nBirds of the north; they winter in the south.", (1, 3)),
        Chunk("## Quick start\n\n```bash\n# A block is cut behind its end.\nbirds list --all", (5, 9)),
        Chunk("```\n\nAsk at the station, where people know most of the birds by their names and songs.", (10, 12)),
    ]


def test_html_is_cut_before_its_tags() -> None:
    text = "<html><body><p>The first paragraph of it.</p><p>Another.</p></body></html>"
    assert texts(text, "html", 40, 0) == [
        "<html>",
        "<body><p>The first paragraph of it.</p>",
        "<p>Another.</p></body></html>",
    ]


def test_code_is_cut_before_its_functions() -> None:
    text = "import os\n\n\ndef first():\n    return 1\n\n\ndef second():\n    return 2\n"
    assert split(text, "py", 36, 0) == [
        Chunk("import os", (1, 1)),
        Chunk("def first():\n    return 1", (4, 5)),
        Chunk("def second():\n    return 2", (8, 9)),
    ]


def test_a_separator_at_the_end_that_is_no_white_space_is_kept() -> None:
    assert texts("some words\n\nmore ```\n\n", "md", 12, 0) == ["some words", "more", "```"]


def test_lengths_are_bytes_and_no_character_is_cut() -> None:
    assert texts("äöüß" * 3, "txt", 7, 0) == ["äöü", "ßäö", "üßä", "öüß"]
    assert texts("äöüß", "txt", 7, 2) == ["äöü", "üß"]


def test_a_character_that_is_larger_than_a_chunk_is_a_chunk() -> None:
    assert texts("a\N{PARROT}b", "txt", 3, 0) == ["a", "\N{PARROT}", "b"]


def test_single_characters_are_merged_in_the_same_way_for_every_size() -> None:
    assert texts("abcdefgh", "txt", 4, 1) == ["abcd", "defg", "gh"]
    assert texts("abcdefgh", "txt", 5, 1) == ["abcde", "efgh"]


def test_an_unknown_extension_is_cut_as_plain_text() -> None:
    assert separators_of("yaml") == separators_of("txt") == separators_of("") == DEFAULT
    assert separators_of("cpp") == separators_of("cc") == separators_of("c") != DEFAULT


def test_half_a_surrogate_pair_does_not_fail() -> None:
    assert texts("a \ud83d b", "txt", 100, 0) == ["a ? b"]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (-1, 0), (5, -1)])
def test_impossible_sizes_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="are not possible"):
        split("a", "txt", size, overlap)


WORDS = st.sampled_from(
    ["a", "word", "ß", "\N{PARROT}", "\n", "\n\n", "\n\n\n", " ", "  ", "\t", "\n## ", "\ndef ", "\nclass ", "```\n\n",
     "<p>", "<td>", "\n\n---\n\n", "\n===\n", "$$", "\u2003", "\n\\section{", "longerthanachunkofeight"]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=60).map("".join)
KINDS = st.sampled_from(["txt", "md", "py", "html", "rst", "tex", "c"])


@given(TEXTS, KINDS, st.integers(1, 30), st.integers(0, 40))
@example("```\n\n", "md", 5, 0)
def test_nothing_is_lost_but_white_space_and_no_chunk_is_too_large(
    text: str, kind: str, size: int, overlap: int
) -> None:
    chunks = split(text, kind, size, overlap)
    for chunk in chunks:
        assert len(chunk.text.encode()) <= size or len(chunk.text) == 1
    lines = text.split("\n")
    for chunk in chunks:
        assert chunk.lines is not None
        first, last = chunk.lines
        cited = "\n".join(lines[first - 1 : last])
        assert "".join(chunk.text.split()) in "".join(cited.split())
        if chunk.text.strip():
            assert lines[first - 1].strip() and lines[last - 1].strip()
    assert [chunk.lines for chunk in chunks] == sorted(chunk.lines for chunk in chunks)
    solid = "".join(text.split())
    if overlap == 0:
        assert "".join("".join(chunk.text.split()) for chunk in chunks) == solid
    else:
        assert covers(["".join(chunk.text.split()) for chunk in chunks], solid)


def covers(pieces: list[str], whole: str) -> bool:
    """Whether the pieces, each from within or right behind what came before, make up the whole."""
    ends = {0}
    for piece in pieces:
        if not piece:
            continue
        starts = [at for at in range(max(ends) + 1) if whole.startswith(piece, at)]
        ends = ends | {at + len(piece) for at in starts}
    return max(ends) == len(whole)


@given(TEXTS, st.integers(5, 30), st.integers(0, 12))
def test_a_text_without_separators_is_cut_as_single_characters_would_be(text: str, size: int, overlap: int) -> None:
    solid = "".join(text.split())
    chunks, rest = texts(solid, "txt", size, overlap), ""
    expected = []
    for character in solid:
        if len((rest + character).encode()) > size:
            expected.append(rest)
            while rest and (len(rest.encode()) > overlap or len((rest + character).encode()) > size):
                rest = rest[1:]
        rest += character
    # A text shorter than a chunk is a piece of its own.
    assert chunks == ([*expected, rest] if rest else [])
