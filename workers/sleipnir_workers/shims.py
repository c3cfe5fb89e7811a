"""The interpreter behind a shim of pyenv or asdf.

Their `python3` is a shell script that chooses a version and becomes it, which takes 140 ms of CPU each time, and keeps
scripts from starting warm. What it chooses follows from a few files and variables: it is asked once for each state of
these. Other scripts that are called python3 may do anything, and are started as they are.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SHIM = re.compile(rb"""^exec (?:"?[^"\n]*/)?(?:pyenv"? exec "\$program"|asdf"? exec "python3")""", re.MULTILINE)
_SHIM_BYTES = 4096  # they are shorter
_FILES = (".python-version", ".tool-versions")
"""What they look for in the working directory and in each folder above it."""

_VARIABLES = ("PYENV_", "ASDF_", "HOME", "PATH")
_ASK = "import sys; print(sys.executable)"
_ASK_S = 20

_Choice = tuple[tuple[str, int], ...]


def python3(env: Mapping[str, str], cwd: Path) -> str | None:
    """The absolute path of what a shim called python3 starts with `env` in `cwd`. None: python3 is no shim, or it
    chooses nothing that can be run."""
    program = shutil.which("python3", path=env.get("PATH"))
    if program is None or not is_shim(program):
        return None
    variables = tuple(sorted((name, value) for name, value in env.items() if name.startswith(_VARIABLES)))
    return _behind(program, str(_place(cwd)), variables, _state(program, env, cwd))


def is_shim(program: str) -> bool:
    """Whether this file is a shim of pyenv or asdf."""
    try:
        with Path(program).open("rb") as file:
            text = file.read(_SHIM_BYTES)
    except OSError:
        return False
    return text.startswith(b"#!") and _SHIM.search(text) is not None


def _place(cwd: Path) -> Path:
    """The nearest folder that chooses a version; the root if none does, whatever the working directory is."""
    return next((folder for folder in _and_above(cwd) if any((folder / name).is_file() for name in _FILES)), Path("/"))


def _and_above(cwd: Path) -> tuple[Path, ...]:
    return (cwd, *cwd.parents)


def _state(program: str, env: Mapping[str, str], cwd: Path) -> _Choice:
    """When each of the files that decide was changed; one that is missing does not appear."""
    files = [Path(program), *(folder / name for folder in _and_above(cwd) for name in _FILES)]
    home = env.get("HOME", "/")
    files += [Path(env.get("PYENV_ROOT", f"{home}/.pyenv")) / "version", Path(home) / ".tool-versions"]
    found = []
    for file in files:
        try:
            found.append((str(file), file.stat().st_mtime_ns))
        except OSError:
            continue
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _behind(program: str, place: str, variables: tuple[tuple[str, str], ...], state: _Choice) -> str | None:
    """`state` is only there to ask again when it has changed."""
    try:
        told = subprocess.run(
            [program, "-I", "-c", _ASK],
            env=dict(variables),
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = told.stdout.strip()
    usable = told.returncode == 0 and Path(found).is_absolute() and os.access(found, os.X_OK) and not is_shim(found)
    return found if usable else None
