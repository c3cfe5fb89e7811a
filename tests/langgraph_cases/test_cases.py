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

BREAKPOINTS = "interrupt_before and interrupt_after"
STATE = "get_state, update_state and the history"
GOING_ON = "invoke(None), which goes on with an unfinished thread"
CACHE = "compile(cache=) and cache_policy"
STREAMS = "the stream modes messages, tasks, checkpoints and debug"
FUNCTIONS = "entrypoint and task"

LATER: dict[str, dict[str, set[int]]] = {
    "10_interrupt_single": {STATE: {1, 3}},
    "11_interrupt_several": {STATE: {2, 4, 5}},
    "12_interrupt_parallel": {STATE: {1, 3, 4, 5, 7, 8, 10, 11}},
    "13_interrupt_loop": {STATE: {4}},
    "14_interrupt_subgraph": {STATE: {1, 2, 4, 6}},
    "15_validation_loop": {STATE: {7}},
    "16_breakpoint_compiled": {BREAKPOINTS: set(range(11))},
    "17_breakpoint_at_call": {BREAKPOINTS: {0, 1, 2, 5, 6}, STATE: {3, 7}, GOING_ON: {4}},
    "18_update_state": {BREAKPOINTS: set(range(16))},
    "19_fork": {STATE: set(range(1, 8))},
    "20_history": {STATE: {0, 1, 3, 5, 6, 7, 8, 9}, GOING_ON: {10}},
    "22_stream_messages": {STREAMS: {1, 2, 3}},
    "24_stream_tasks": {STREAMS: {0, 1, 2, 3, 4}},
    "26_error_and_resume": {STATE: {1, 5}, GOING_ON: {3, 4}},
    "27_recursion_limit": {STATE: {2, 4}, GOING_ON: {6}},
    "29_messages_state": {STATE: {2}},
    "32_schemas_and_private": {STATE: {4}},
    "37_cache": {CACHE: set(range(8))},
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
