"""Findings of `validate` as people and programs read them: text, JSON, annotations of GitHub Actions, SARIF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sleipnir import __version__
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.errors import Problem
from sleipnir.graph.codes import CODES
from sleipnir.runs.plain_text import printable

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_PROPERTY: Final = {"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"}
_MESSAGE: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}


def print_text(problems: Sequence[Problem]) -> None:
    for problem in problems:
        terminal.result(printable(problem.with_code()))


def print_github(problems: Sequence[Problem]) -> None:
    """Workflow commands, which GitHub shows beside the lines of a change."""
    for problem in problems:
        places = {"file": _relative(problem.file), "line": problem.line, "col": problem.column, "title": problem.code}
        given = ",".join(f"{key}={_escaped(str(at), _PROPERTY)}" for key, at in places.items() if at not in (None, ""))
        terminal.result(f"::{problem.level} {given}::{_escaped(_message(problem), _MESSAGE)}")


def print_sarif(problems: Sequence[Problem]) -> None:
    """SARIF 2.1.0, which code scanners exchange."""
    used = sorted({problem.code for problem in problems if problem.code in CODES})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code].title},
            "fullDescription": {"text": CODES[code].explanation},
        }
        for code in used
    ]
    driver = {"name": "sleipnir", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each) for each in problems],
    }
    print_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


FORMATS: Final[Mapping[str, Callable[[Sequence[Problem]], None]]] = {
    "text": print_text,
    "json": print_json,
    "github": print_github,
    "sarif": print_sarif,
}


def _result(problem: Problem) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": Path(_relative(problem.file)).as_posix()}}
    if problem.line is not None:
        location["region"] = {"startLine": problem.line, "startColumn": problem.column or 1}
    return {
        "ruleId": problem.code,
        "level": problem.level,
        "message": {"text": _message(problem)},
        "locations": [{"physicalLocation": location}],
    }


def _message(problem: Problem) -> str:
    node = f"[{problem.node}] " if problem.node else ""
    return f"{node}{problem.message}" + (f"\n{problem.hint}" if problem.hint else "")


def _relative(file: str) -> str:
    """Relative to the working directory, if the file is below it: services that show findings need such paths."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else file


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)
