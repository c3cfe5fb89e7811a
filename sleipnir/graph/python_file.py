"""The graph that a Python file defines: `graph = StateGraph(...)...compile()`.

The file is executed in a process of its own, which is killed after TIMEOUT_S. Only who submits or checks an agent does
that: schedulers and workers read the document that it made.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from sleipnir.errors import Problem, UsageError
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.model import Json
from sleipnir.waiting import in_thread

TIMEOUT_S: Final = 60.0
"""Libraries of models take ten seconds to import on a busy machine."""

CODE: Final = "SLP108"

_Signature: TypeAlias = tuple[tuple[str, int, int], ...]


def answer_of(file: Path, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What the file defines: `document` and `places`, or `problems` (python_graph/__main__.py). Never raises because of
    the file. It is executed again when a file of its folder has changed."""
    try:
        answer = _answer_once(file.absolute(), _signature(file.absolute().parent), timeout_s)
        return {**answer, "problems": _problems(answer, file)}
    except _NoAnswer as error:
        return {"problems": [Problem("error", str(error), str(file), code=CODE)]}


def description_of(file: Path) -> str:
    """The first paragraph of the file's docstring; empty: it has none. The file is not executed. Raises UsageError if
    it cannot be read, or is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of literals in the file
            docstring = ast.get_docstring(ast.parse(file.read_bytes(), str(file))) or ""
    except OSError as error:
        raise UsageError(f"Failed to read graph file at '{file}': {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"{file}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else f"{file}"
        what = error.msg if isinstance(error, SyntaxError) else str(error) or "it is nested too deeply"
        raise UsageError(f"{line}: Python cannot read this file: {what}") from None
    return " ".join(docstring.partition("\n\n")[0].split())


def first_state(file: Path, given: Mapping[str, Json], timeout_s: float = TIMEOUT_S) -> dict[str, Json]:
    """The first state of a run with this input, which goes through the reducers of the file. Raises UsageError."""
    made: dict[str, Json] = _made(file, "state", "input", dict(given), timeout_s)
    return made


def first_states(
    file: Path, inputs: Sequence[Mapping[str, Json]], timeout_s: float = TIMEOUT_S
) -> list[dict[str, Json] | str]:
    """The same for several inputs; for one that cannot be used, the reason. Raises UsageError."""
    made: list[dict[str, Json] | str] = _made(file, "states", "input", list(map(dict, inputs)), timeout_s)
    return made


def state_of_turn(
    file: Path, given: Mapping[str, Json], before: Mapping[str, Json], timeout_s: float = TIMEOUT_S
) -> dict[str, Json]:
    """The state that a thread with the state `before` has with this input, as `first_state`. Raises UsageError."""
    turn = {"input": dict(given), "before": dict(before)}
    made: dict[str, Json] = _made(file, "turn", "input", turn, timeout_s)
    return made


def stored_context(file: Path, given: Mapping[str, Json], timeout_s: float = TIMEOUT_S) -> dict[str, Json]:
    """A context as a run stores it, with the class that the file declares for it. Raises UsageError."""
    made: dict[str, Json] = _made(file, "context", "context", dict(given), timeout_s)
    return made


def _made(file: Path, what: str, name: str, given: Json, timeout_s: float) -> Json:
    """`what` the process of the file makes of a value. `name` is for errors."""
    try:
        answer = _asked(file, json.dumps({what: given}), timeout_s)
    except _NoAnswer as error:
        raise UsageError(f"{file}: {error}") from None
    if what not in answer:
        listed = "".join(f"\n  {problem}" for problem in _problems(answer, file))
        raise UsageError(f"the {name} cannot be used:{listed}")
    return answer[what]


@functools.lru_cache(maxsize=64)
def _answer_once(file: Path, _signature: _Signature, timeout_s: float) -> dict[str, Any]:
    """One command reads an agent several times."""
    return _asked(file, "", timeout_s)


def _signature(folder: Path) -> _Signature:
    """Changes when a file of the folder does."""
    found = []
    for path in folder.rglob("*"):
        if "__pycache__" not in path.parts:
            with contextlib.suppress(OSError):  # removed meanwhile
                status = path.stat()
                found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


class _NoAnswer(Exception):
    """The process of the file said nothing; the message says why."""


def _asked(file: Path, given: str, timeout_s: float) -> dict[str, Any]:
    # -P: no file of the working directory takes the place of a module.
    command = [sys.executable, "-P", "-m", "sleipnir.python_graph", str(file)]
    try:
        ended = in_thread(
            subprocess.run,
            command,
            input=given,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NoAnswer(
            f"{file.name} did not define its graph within {timeout_s:g} s. It is executed when the agent is read: "
            'work belongs in functions, and calls under `if __name__ == "__main__":`'
        ) from None
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise _NoAnswer(f"{file.name} ended its process with exit code {ended.returncode}") from None
    return answer


def _problems(answer: Mapping[str, Any], file: Path) -> list[Problem]:
    return [Problem(**{**each, "file": _named(each["file"], file)}) for each in answer.get("problems", ())]


def _named(path: str, file: Path) -> str:
    """The path of a file of the same folder, as the caller names the folder."""
    folder = file.parent.resolve()
    return str(file.parent / Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


def placed(problems: list[Problem], loaded: LoadedGraph, file: str) -> list[Problem]:
    """Findings with the file of the call that made their node."""
    return [
        replace(problem, file=loaded.files.get((problem.node, problem.line), file), column=None)
        if problem.file == file
        else problem
        for problem in problems
    ]


def text_of(document: Json) -> str:
    """The graph.yaml of a document."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def places_in(answer: Mapping[str, Any], file: Path) -> dict[KeyPath, tuple[str, int]]:
    """The file and line of the call that made each part of the document."""
    return {tuple(path): (_named(made, file), line) for path, made, line in answer["places"]}
