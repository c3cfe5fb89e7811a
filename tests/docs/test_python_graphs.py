"""Graphs in Python on the pages: the programs of docs/python-graphs.md, and the examples beside it, in this process."""

from __future__ import annotations

import ast
import runpy
import sys
import types
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, Block, blocks

FOLDER = ROOT / "docs" / "python_graphs"
PAGES = list(dict.fromkeys(block.page for block in blocks("python program")))

PRINTED = {
    "chatbot_with_tools": ["human: What is the weather in Oslo?", "ai: weather", "tool: rain", "ai: In Oslo: rain."],
    "conditional_loop": ["1.4142 after 4 rounds"],
    "human_in_the_loop": [
        "Send this?",
        "Dear all, about bells.",
        "{'topic': 'bells', 'draft': 'Dear all, about bells.', 'decision': 'yes', 'sent': True}",
    ],
    "map_reduce": ["A line about bells", "A line about bridges", "A line about boats"],
    "parallel": ["4 words; names: Ada, Grace"],
    "plan_and_execute": [
        "{'make_plan': {'plan': ['find train fares', 'compare train fares', 'write it down']}}",
        "{'execute': {'done': ['find train fares: done'], 'plan': ['compare train fares', 'write it down']}}",
        "{'replan': None}",
        "{'execute': {'done': ['compare train fares: done'], 'plan': ['write it down']}}",
        "{'replan': None}",
        "{'execute': {'done': ['write it down: done'], 'plan': []}}",
        "{'replan': {'answer': '3 steps for train fares'}}",
    ],
    "react_loop": ["capital of Norway", "Oslo", "population of Oslo", "717,710", "717,710"],
    "reflection": ["Draft 1 of a note on bells", "Draft 2 of a note on bells (name a source)"],
    "subgraph": [
        "letter {'write': {'draft': 'About bells'}}",
        "review {'read': {'notes': 'too short'}}",
        "review {'revise': {'draft': 'About bells and more'}}",
        "letter {'review': {'draft': 'About bells and more'}}",
    ],
    "supervisor": ["2 + 3 + 4 = 9", "The bell is cracked."],
}
"""What each example prints. Without the approval node, LangGraph 1.2.22 prints the same."""


def test_every_example_is_on_the_page_and_no_other() -> None:
    page = (ROOT / "docs" / "python-graphs.md").read_text()
    examples = sorted(file.name for file in FOLDER.glob("*.py"))
    assert examples == [f"{name}.py" for name in sorted(PRINTED)]
    assert [name for name in examples if page.count(f"| [{name}](python_graphs/{name}) |") != 1] == []


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_shows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == PRINTED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_is_only_built_when_it_is_imported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)
    assert capsys.readouterr().out == ""
    assert module["graph"].to_yaml().startswith(f"name: {module['graph'].name}\nversion: sleipnir/1\n")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module in which the blocks of a page run, one after the other."""
    module = types.ModuleType("program_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_their_comments_say(
    page: str, program: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks("python program"):
        if block.page == page:
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), program.__dict__)
            assert capsys.readouterr().out.splitlines() == list(promised(block)), str(block)


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_on_a_page_pass(page: str, program: types.ModuleType) -> None:
    for block in blocks("python program"):
        if block.page == page:
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), program.__dict__)
    tests = [test for name, test in vars(program).items() if name.startswith("test_")]
    written = [name for block in blocks("python program") if block.page == page for name in names_of_tests(block)]
    assert [test.__name__ for test in tests] == written
    for test in tests:
        test()


def promised(block: Block) -> Iterator[str]:
    """The lines that a program says it prints: in the comment of a print, and in lines of comments below it."""
    is_printing = False
    for line in block.lines:
        code, mark, comment = line.partition("# ")
        if (mark and "print(" in code) or (mark and not code.strip() and is_printing):
            is_printing = True
            yield comment
        else:
            is_printing = False


def names_of_tests(block: Block) -> list[str]:
    names = [node.name for node in ast.parse(block.text).body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith("test_")]
