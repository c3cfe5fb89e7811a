"""Programs written for LangGraph give here what LangGraph gave: each step of each program, against its recorded output.

The programs run in this process. LATER names the steps that need what is not built yet, with the reason: such a step
must fail, so whoever builds it takes it off the list.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.langgraph_cases import runner

FUNCTIONS = "entrypoint and task"

LATER: dict[str, dict[str, set[int]]] = {
    "38_func_tasks": {FUNCTIONS: set(range(6))},
    "39_func_interrupt": {FUNCTIONS: set(range(7))},
    "40_func_previous": {FUNCTIONS: set(range(6))},
}


class Outputs(NamedTuple):
    """What the steps of a program gave. `loose`: which of them a package may answer otherwise than LangGraph."""

    given: list[Any]
    loose: list[bool]


def recorded(path: Path) -> list[Any]:
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def steps() -> Iterator[Any]:
    for path in sorted(runner.PROGRAMS.glob("[0-9][0-9]_*.py")):
        for number in range(len(recorded(path))):
            later = [reason for reason, numbers in LATER.get(path.stem, {}).items() if number in numbers]
            marks = [pytest.mark.xfail(strict=True, reason=f"not built yet: {reason}") for reason in later]
            yield pytest.param(path, number, id=f"{path.stem}-{number}", marks=marks)


@functools.cache
def outputs(path: Path) -> Outputs | Exception:
    """All steps of a program, run once."""
    package = sys.modules["PKG"] = runner.package("sleipnir")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outputs(*runner.outputs(path, package))
    except Exception as error:  # a program that cannot be built fails in each of its steps
        return error
    finally:
        del sys.modules["PKG"]


@pytest.mark.parametrize(("path", "number"), [*steps()])
def test_a_step_gives_what_langgraph_gave(path: Path, number: int) -> None:
    ran = outputs(path)
    if isinstance(ran, Exception):
        pytest.fail(f"the program could not be built: {ran!r}", pytrace=False)
    if ran.loose[number]:
        pytest.skip("LangGraph is silent or wrong here; a package may differ")
    given, expected = ran.given[number], recorded(path)[number]
    if not runner.same(given, expected, path.read_text(encoding="utf-8"), texts=False):
        pytest.fail("\n".join(runner.differences(expected, runner.bare(given), "sleipnir")), pytrace=False)


def test_there_are_forty_programs() -> None:
    assert len(list(runner.PROGRAMS.glob("*.py"))) == 40
    assert {path.stem for path in runner.PROGRAMS.glob("*.py")} >= LATER.keys()
