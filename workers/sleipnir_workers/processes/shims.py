"""The interpreter behind a shim of pyenv or asdf.

Their `python3` is a shell script that chooses a version and executes it, which takes 140 ms of CPU each time, and keeps
scripts from starting warm. Its choice depends on a few files and variables: the shim is run once for each state of
these. Other scripts that are called python3 may do anything, and are started as they are.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SHIM = re.compile(rb"""^exec (?:"?[^"\n]*/)?(?:pyenv"? exec "\$program"|asdf"? exec "python3")""", re.MULTILINE)
_SHIM_BYTES = 4096  # shims are shorter
_FILES = (".python-version", ".tool-versions")
"""Files that shims look for in the working directory and in each folder above it."""

_VARIABLES = ("PYENV_", "ASDF_", "HOME", "PATH")
_PRINT_EXECUTABLE = "import sys; print(sys.executable)"
_TIMEOUT_S = 20

_FileTimes = tuple[tuple[str, int], ...]


def python3(env: Mapping[str, str], cwd: Path) -> str | None:
    """The absolute path of the program that a shim called python3 executes with `env` in `cwd`. None: python3 is not
    a shim, or its choice cannot be executed."""
    program = shutil.which("python3", path=env.get("PATH"))
    if program is None or not is_shim(program):
        return None
    variables = tuple(sorted((name, value) for name, value in env.items() if name.startswith(_VARIABLES)))
    return _chosen_program(program, str(_choosing_folder(cwd)), variables, _file_times(program, env, cwd))


def without_shim(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Sequence[str]:
    """The command that a shim called python3 would execute; `argv` if that is no such command."""
    chosen = python3(env, cwd) if argv[0] == "python3" else None
    return argv if chosen is None else [chosen, *argv[1:]]


def is_shim(program: str) -> bool:
    """Whether this file is a shim of pyenv or asdf."""
    try:
        with Path(program).open("rb") as file:
            text = file.read(_SHIM_BYTES)
    except OSError:
        return False
    return text.startswith(b"#!") and _SHIM.search(text) is not None


def _choosing_folder(cwd: Path) -> Path:
    """The nearest folder that chooses a version; the root if there is none."""
    return next((folder for folder in _and_above(cwd) if any((folder / name).is_file() for name in _FILES)), Path("/"))


def _and_above(cwd: Path) -> tuple[Path, ...]:
    return (cwd, *cwd.parents)


def _file_times(program: str, env: Mapping[str, str], cwd: Path) -> _FileTimes:
    """When each file that the choice depends on was changed; a missing file does not appear."""
    files = [Path(program), *(folder / name for folder in _and_above(cwd) for name in _FILES)]
    home = env.get("HOME", "/")
    files += [Path(env.get("PYENV_ROOT", f"{home}/.pyenv")) / "version", Path(home) / ".tool-versions"]
    times = []
    for file in files:
        try:
            times.append((str(file), file.stat().st_mtime_ns))
        except OSError:
            continue
    return tuple(times)


@functools.lru_cache(maxsize=64)
def _chosen_program(
    program: str, folder: str, variables: tuple[tuple[str, str], ...], file_times: _FileTimes
) -> str | None:
    """`file_times` is only a key of the cache, so that the shim is run again when a file has changed."""
    try:
        completed = subprocess.run(
            [program, "-I", "-c", _PRINT_EXECUTABLE],
            env=dict(variables),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    chosen = completed.stdout.strip()
    is_usable = Path(chosen).is_absolute() and os.access(chosen, os.X_OK) and not is_shim(chosen)
    return chosen if completed.returncode == 0 and is_usable else None
