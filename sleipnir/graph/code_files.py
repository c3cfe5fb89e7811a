"""The code files in an agent's folder, read for checks: bounded, and never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

RUNTIMES: Final = (".sh", ".py", ".ts")
"""The extensions of files that a worker can run."""

MOST_FILES: Final = 500  # of one folder; an agent has a dozen
MOST_BYTES: Final = 2**20  # of one file: longer ones are data


def code_files(folder: Path, most: int = MOST_FILES) -> list[Path]:
    """The code files in a folder and below it, without hidden folders and installed packages."""
    files: list[Path] = []
    todo = [folder]
    while todo and len(files) < most:
        for path in listing(todo.pop()):
            if path.name.startswith(".") or path.name in ("__pycache__", "node_modules", "site-packages"):
                continue
            if path.is_dir():
                if not path.is_symlink() and not (path / "pyvenv.cfg").is_file():
                    todo.append(path)
            elif path.suffix in RUNTIMES and path.is_file():
                files.append(path)
    return files[:most]


def text_of(file: Path) -> str | None:
    """The text of a file; None if it cannot be read or is too long to be code."""
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= MOST_BYTES else None
    except (OSError, ValueError):
        return None


def listing(folder: Path) -> list[Path]:
    """The entries of a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):  # a hint is not worth an error
        return []
