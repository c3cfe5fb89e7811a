"""How a tool of each language is started. Tools run from their own files, which are never changed.

Rules. Bash tools get their arguments as options (sleipnir.tools.bash). Python and TypeScript tools are called by a
small runner, which reads the arguments from LLM_TOOL_DATA_FILE. For these two a shebang line chooses the interpreter.
All tools also get the arguments as JSON in a variable (raw_name). The kernel refuses words and variables of more than
128 KiB: a bash tool gets larger arguments through files, the others read theirs from LLM_TOOL_DATA_FILE only.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sleipnir.tools import bash as bash_tools
from sleipnir.tools.declaration import Declaration

RUNNERS: Final = Path(__file__).with_name("runners")
PYTHON_RUNNER: Final = RUNNERS / "python_tool.py"
TYPESCRIPT_RUNNER: Final = RUNNERS / "typescript_tool.mjs"

STRIPS_TYPES: Final = (22, 7)
"""The first version of node that runs TypeScript with --experimental-strip-types and detects ES modules."""

MOST_WORD_BYTES: Final = 120 * 1024  # the kernel's limit is 128 KiB, with the name of a variable


class NoInterpreter(Exception):
    """This worker has no interpreter for the tool; the message names what is missing."""


MOST_FOUND: Final = 100
_FOUND: dict[tuple[str, str | None], str] = {}
"""Where programs were found, by name and PATH: a search takes a twentieth of the worker's part of a call."""


@dataclass(frozen=True)
class Start:
    """The command of a call, and variables for it."""

    argv: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)


def start(
    declaration: Declaration, arguments: Mapping[str, Any], raw: str, env: Mapping[str, str], cwd: Path, scratch: Path
) -> Start:
    """The command of a call. `raw` is the text of `arguments`; `scratch` is a directory for this call only. Raises
    OSError, and the errors of the function of its language."""
    small = {raw_name(declaration): raw} if len(raw) <= MOST_WORD_BYTES else {}
    match declaration.language:
        case "bash":
            command = bash(declaration, arguments, env, scratch, is_small=bool(small))
        case "python":
            command = python(declaration, env, cwd)
        case "typescript":
            command = typescript(declaration, env, cwd)
    return Start(command.argv, {**command.variables, **small})


def raw_name(declaration: Declaration) -> str:
    """The variable that holds the arguments of a tool as JSON (spec/coyote.md 2.1)."""
    return "LLM_AGENT_RAW_JSON" if declaration.agent else "LLM_TOOL_RAW_JSON"


def bash(
    declaration: Declaration, arguments: Mapping[str, Any], env: Mapping[str, str], scratch: Path, *, is_small: bool
) -> Start:
    """bash with the file, or with a program that parses the arguments and sources the file. Raises NoInterpreter,
    ValueError for an argument that no command line can hold, and ToolFileError if the file was changed."""
    _need("bash", env)
    file = declaration.file.absolute()
    text = file.read_text(encoding="utf-8")
    words = bash_tools.argv(declaration, bash_tools.parse(text, file), arguments)
    program = bash_tools.runnable(text, file, words)
    if program is None:
        return Start(["bash", str(file), *words])
    variables = {} if is_small else {bash_tools.RAW_NAME: raw_name(declaration)}
    if any(len(word) * 4 > MOST_WORD_BYTES and len(word.encode()) > MOST_WORD_BYTES for word in words):
        words_file = scratch / "words"
        words_file.write_bytes(b"".join(word.encode() + b"\0" for word in words))
        variables[bash_tools.WORDS_FILE], words = str(words_file), []
    return Start(["bash", "-c", program, str(file), *words], variables)


def python(declaration: Declaration, env: Mapping[str, str], cwd: Path) -> Start:
    """python3, the interpreter of the shebang, or that of a `.venv` in the working directory. Raises NoInterpreter."""
    program = _python_program(declaration.file, cwd / ".venv" / "bin" / "python3")
    _need(program[0], env)
    return Start([*program, str(PYTHON_RUNNER)], _target(declaration))


def _python_program(file: Path, venv_python: Path) -> list[str]:
    if os.access(venv_python, os.X_OK):
        return [str(venv_python)]
    requested = _shebang(file)
    return requested if requested and Path(requested[0]).name not in ("python", "python3") else ["python3"]


def typescript(declaration: Declaration, env: Mapping[str, str], cwd: Path) -> Start:
    """The interpreter of the shebang; else tsx, a node that supports TypeScript, or npx. Raises NoInterpreter."""
    program = _shebang(declaration.file)
    if not program or Path(program[0]).name in ("node", "tsx", "ts-node"):
        program = _typescript_program(env, declaration.file.parent, cwd)
    _need(program[0], env)
    order = {"LLM_TOOL_PARAMETERS": json.dumps(list(declaration.written))}
    return Start([*program, str(TYPESCRIPT_RUNNER)], {**_target(declaration), **order})


def _target(declaration: Declaration) -> dict[str, str]:
    assert declaration.command is not None, "tools of these languages are functions"
    return {"LLM_TOOL_FILE": str(declaration.file.resolve()), "LLM_TOOL_FUNCTION": declaration.command}


def _typescript_program(env: Mapping[str, str], *folders: Path) -> list[str]:
    path = env.get("PATH")
    installed = [str(folder / "node_modules" / ".bin" / "tsx") for folder in folders]
    if tsx := next(filter(None, (shutil.which(name, path=path) for name in (*installed, "tsx"))), None):
        return [tsx]
    node = shutil.which("node", path=path)
    if node and _node_version(node, path, Path(node).stat().st_mtime_ns) >= STRIPS_TYPES:
        return [node, "--experimental-strip-types", "--disable-warning=ExperimentalWarning"]
    if shutil.which("npx", path=path):
        return ["npx", "tsx"]
    raise NoInterpreter("no TypeScript on this worker: install Node.js 22.7 or later, or tsx (`npm install -g tsx`)")


@functools.lru_cache(maxsize=16)
def _node_version(node: str, path: str | None, mtime_ns: int) -> tuple[int, ...]:
    """(22, 7, 0); empty if node does not print one. `mtime_ns` has it run again after an upgrade."""
    env = {"PATH": path or os.defpath}
    try:
        completed = subprocess.run(
            [node, "--version"], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", completed.stdout))


def _shebang(file: Path) -> list[str]:
    """The interpreter that the file's first line requests, with its arguments; empty without one."""
    with file.open("rb") as opened:
        first = opened.readline(1024).decode(errors="replace")
    if not first.startswith("#!"):
        return []
    words = shlex.split(first[2:])
    if words and Path(words[0]).name == "env":
        return [word for word in words[1:] if word != "-S"]
    return words


def _need(program: str, env: Mapping[str, str]) -> None:
    path = env.get("PATH")
    found = _FOUND.get((program, path))
    if found is not None and os.access(found, os.X_OK):  # its start looks for it once more
        return
    found = shutil.which(program, path=path)
    if found is None:
        raise NoInterpreter(f"{program} is not installed on this worker (not found on PATH)")
    if len(_FOUND) >= MOST_FOUND:
        _FOUND.clear()
    _FOUND[program, path] = found
