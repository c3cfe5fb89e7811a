"""The corpus of beginner's mistakes: each is found in the first pass, by its code and on its line, and good graphs give
no false alarm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sleipnir.graph.check import validate
from sleipnir.graph.check_case import KnownClients
from sleipnir.graph.codes import CODES
from sleipnir.tools.folder import custom_tools

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures"
MISTAKES = sorted((FIXTURES / "mistakes").iterdir())
GOOD = [
    *sorted((FIXTURES / "good").iterdir()),
    *(file.parent for root in (FIXTURES / "agents", ROOT / "agents") for file in sorted(root.glob("*/graph.yaml"))),
]


def find_agent(name: str) -> Path | None:
    places = [root / name for root in (FIXTURES / "agents", FIXTURES / "good", ROOT / "agents")]
    return next((place for place in places if place.is_dir()), None)


def found_in(folder: Path) -> list[str]:
    """`file:line code` of each finding, sorted as expected.txt is: graph.yaml first."""
    problems = validate(folder, find_agent, read_tools=custom_tools, clients=KnownClients(frozenset(), complete=True))
    places = [(str(Path(each.file).relative_to(folder)), each.line or 0, each.code) for each in problems]
    return [
        f"{file}:{line} {code}" for file, line, code in sorted(places, key=lambda each: (each[0] != "graph.yaml", each))
    ]


@pytest.mark.parametrize("folder", MISTAKES, ids=lambda folder: folder.name)
def test_a_mistake_is_found_in_the_first_pass_on_its_line(folder: Path) -> None:
    """Finding U3 of the second review."""
    assert found_in(folder) == (folder / "expected.txt").read_text().splitlines()


@pytest.mark.parametrize("folder", GOOD, ids=lambda folder: folder.name)
def test_a_good_graph_gives_no_false_alarm(folder: Path) -> None:
    assert found_in(folder) == []


def test_the_corpus_has_its_size_and_its_codes() -> None:
    assert len(MISTAKES) >= 60
    assert len(GOOD) >= 40
    expected = {line.split()[1] for folder in MISTAKES for line in (folder / "expected.txt").read_text().splitlines()}
    assert expected <= set(CODES)


@pytest.mark.parametrize("part", ["{{ ", " ", "{{a", "a.", "a}}", "{a", "{{{{", "{{a}", "}} "])
def test_a_long_text_is_checked_in_linear_time(tmp_path: Path, part: str) -> None:
    prompt = part * (300_000 // len(part))
    (tmp_path / "graph.yaml").write_text(
        f"name: g\nstart: a\nnodes:\n  a: {{type: llm, prompt: '{prompt}', next: e}}\n  e: {{type: end}}\n"
    )
    begun = time.process_time()
    validate(tmp_path)
    assert time.process_time() - begun < 10
