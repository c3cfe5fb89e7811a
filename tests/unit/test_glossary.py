"""docs/glossary.md against the names of the code: each noun once, each class name for one thing, no word of the list of
words that are not used."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "sleipnir",
    "scheduler/sleipnir_scheduler",
    "workers/sleipnir_workers",
    "inprocess/sleipnir_inprocess",
    "console/sleipnir_console",
)
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


TWO_MEANINGS = {
    "Branch": "graph.model's is named in the published JSON Schema; the other is the place of a visit in a super-step",
    "Call": "sleipnir.testing's is public; the other is the place of a visit in a loop",
    "Chunk": "of a document in a worker; of a stream in a program, where LangGraph's users know it under this name",
    "Entry": "the entry of an inbox, in Redis and in memory",
    "Run": "sleipnir.Run is public; the other is a run in this process",
    "RunValues": "the values of a run, in Redis and in memory",
    "Send": "sleipnir.Send is public; the other is the form in which a result travels",
    "Settings": "sleipnir.Settings is public; graph.model's is named in the published JSON Schema",
}
"""Names of two public classes each, with the reason why neither is renamed."""

STORED = {"Told", "TellBatch", "TellChild", "TellParent", "TellRoot", "TellRun"}
"""Names of events and effects with words that are not used: stored records and metrics have these names."""

PROGRAMMING = words_of("""
    action addition address amount app area argument backlog bar bucket cache case check child choice clock codec
    collector compat completion composer conductor config configuration connection consumer content context count
    counter creation default demand descendant detail difference directory dispatcher duration effort environment error
    estimate executor export expression extraction failure file form format frame fusion gauge glob grammar guard header
    health histogram history home host http import info init input install installation interpreter key knowledge
    language latch launch leader limiter line link liveness list lock log main mark matrix meaning memory module moment
    name narrator neighbour object observer origin page parameter parent parser patch path pattern picture plan point
    position problem process program protocol query reader reason reduction reference request response root runner
    runtime saver second sentinel separator series server shape shaper shim sink size socket span splitter start
    steering strategy submit summary symbol syntax system table tag tally terminal text time timeout total trace
    trait transport type upgrade use var wait walk warning watch way web word writer
""")
"""Last words of names that are English or a programmer's, and no nouns of Sleipnir's own."""

DRAWING = words_of("arrow axis chart colour curve layout mermaid outline palette svg dot tick timeline")

FORMATS = words_of("amqp bsp celeryconfig dag gc github kb markdown openapi pdf ps python rag spreadsheet typescript")
"""Formats, protocols, programs and commands."""

NO_NOUNS = words_of("""
    advance again begun busy collect compare connect declare do doctor done draw drop fill follow forget found
    gather gone ignore known large leave live load local long lost miss narrate new off overwrite parallel parse
    plain put ready refuse render salvage say scratch send settle several show spent split submit take told
    unclear up validate without written
""")
"""Verbs (what a function, a command or an effect does), adjectives and participles."""


class Name(NamedTuple):
    """A module or a public class, where it is defined."""

    name: str
    file: Path
    is_class: bool

    @property
    def words(self) -> list[str]:
        return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", self.name)]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.name}"


@cache
def names_of_code() -> list[Name]:
    return list(_names_of_code())


def _names_of_code() -> Iterator[Name]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "templates" in file.parts:
                continue
            if not file.stem.startswith("__"):
                yield Name(file.stem, file, is_class=False)
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield Name(node.name, file, is_class=True)


def table(heading: str, text: str = GLOSSARY) -> list[tuple[str, str]]:
    """The rows below a heading."""
    _, _, rest = text.partition(f"\n## {heading}\n")
    rows = [line.strip("|").split("|", 1) for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [(first.strip(), second.strip()) for first, second in rows[2:]]


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", GLOSSARY, re.MULTILINE)


NOT_USED = dict(table("Words that are not used"))
ENTRIES = [row for heading in headings() if heading != "Words that are not used" for row in table(heading)]
NOUNS = {noun for noun, _ in ENTRIES}


def singular(word: str) -> set[str]:
    """What a plural may be the plural of, and the word itself."""
    return {
        word,
        word.removesuffix("s"),
        word.removesuffix("es"),
        re.sub("ies$", "y", word),
        re.sub("ices$", "ex", word),
    }


def uses_banned_word(name: Name) -> str | None:
    """The word of a name that the glossary replaces by another, if there is one."""
    text = f" {' '.join(name.words)} "
    return next((word for word in NOT_USED if f" {word} " in text), None)


def is_known(word: str) -> bool:
    """Whether the last word of a name is in the glossary or in the lists above, or is no noun."""
    last = {noun.rpartition(" ")[2].rpartition("-")[2] for noun in NOUNS}
    is_no_noun = word.endswith(("ed", "ing", "able")) or word in NO_NOUNS
    return is_no_noun or not singular(word).isdisjoint(last | PROGRAMMING | DRAWING | FORMATS)


def defined_twice(names: list[Name]) -> dict[str, list[str]]:
    files = defaultdict(list)
    for each in names:
        if each.is_class:
            files[each.name].append(str(each))
    return {name: places for name, places in files.items() if len(places) > 1}


def test_the_glossary_has_each_noun_once_in_one_sentence() -> None:
    nouns = [noun for noun, _ in ENTRIES]
    assert len(nouns) > 100
    assert sorted({noun for noun in nouns if nouns.count(noun) > 1}) == []
    assert [noun for noun, meaning in ENTRIES if not re.fullmatch(r"[A-Z][^|]*\.", meaning)] == []
    for heading in headings():
        rows = [first for first, _ in table(heading)]
        assert rows == sorted(rows, key=str.lower), heading


def test_no_name_has_a_word_that_the_glossary_replaces() -> None:
    words = {str(each): uses_banned_word(each) for each in names_of_code()}
    wrong = {place: f"not {word!r} but {NOT_USED[word]!r}" for place, word in words.items() if word}
    assert {place: why for place, why in wrong.items() if place.rpartition(" ")[2] not in STORED} == {}


def test_no_public_class_name_has_two_meanings() -> None:
    twice = defined_twice(names_of_code())
    assert {name: files for name, files in twice.items() if name not in TWO_MEANINGS} == {}
    assert sorted(TWO_MEANINGS.keys() - twice.keys()) == [], "exceptions that nothing needs any more"


def test_the_last_word_of_each_name_is_a_noun_of_the_glossary_or_plain_english() -> None:
    unknown = defaultdict(list)
    for each in names_of_code():
        if not is_known(each.words[-1]):
            unknown[each.words[-1]].append(str(each))
    assert dict(unknown) == {}, "add the noun to docs/glossary.md, or choose one that is there"


def test_the_lists_of_general_words_repeat_no_noun_of_the_glossary() -> None:
    assert sorted((PROGRAMMING | DRAWING | FORMATS) & NOUNS) == []


def test_what_is_not_used_is_replaced_by_nouns_of_the_glossary() -> None:
    assert sorted(NOUNS & NOT_USED.keys()) == []


def test_pages_for_users_have_no_noun_that_the_glossary_replaces() -> None:
    nouns = [word for word in ("lost worker", "reading room", "rubbish", "shelf") if word in NOT_USED]
    assert nouns
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).lower()
        prose = "" if page.name == "glossary.md" else prose
        assert [word for word in nouns if re.search(rf"\b{word}\b", prose)] == [], page.name


@pytest.mark.parametrize(
    ("name", "word"),
    [("RunShelf", "shelf"), ("reading_room", "reading room"), ("ReadingRoom", "reading room"), ("told_lines", "told")],
)
def test_a_word_that_is_not_used_is_found_in_a_name(name: str, word: str) -> None:
    assert uses_banned_word(Name(name, ROOT / "x.py", is_class=True)) == word


@pytest.mark.parametrize("name", ["Shelves", "run_gubbins", "VisitThingy"])
def test_an_unknown_last_word_is_found(name: str) -> None:
    assert not is_known(Name(name, ROOT / "x.py", is_class=True).words[-1])


def test_a_class_name_that_is_defined_in_two_modules_is_found() -> None:
    twice = [Name("Visit", ROOT / "a.py", is_class=True), Name("Visit", ROOT / "b.py", is_class=True)]
    assert defined_twice(twice) == {"Visit": ["a.py: Visit", "b.py: Visit"]}
