"""Advice for an author whose script or tool writes to the agent's folder, which is read-only and shared by all runs.

The kernel refuses the write, and the program prints an error in its own words. We look for these and say where to
write. Root may write anywhere, and the worker's user after a chmod: a visit fails if the agent's files were changed
while it ran. Two visits that run from one folder at once both fail then, as it is unknown which of them it was.
"""

from __future__ import annotations

import os
from pathlib import Path

from sleipnir.agents.bundle import Unpacked
from sleipnir.errors import NodeFailed

KIND = "agent_folder"
SHOWN = 3

_REFUSED = ("Permission denied", "permission denied", "Read-only file system", "read-only file system")
_QUOTES = {"'": "'", '"': '"', "‘": "’"}


def advice(text: str, folder: Path, cwd: Path | None) -> str:
    """A line for an error message, if `text` (a program's stderr, or an exception) reports a failed write to a file of
    the agent's tree, of the working directory, or with a relative path; else an empty text."""
    tree = folder.parent.parent if folder.parent.name == "agents" else folder
    for line in text.splitlines():
        for phrase in _REFUSED:
            before, separator, after = line.partition(phrase)
            path = _path(before, after) if separator else ""
            if not path:
                continue
            if path.startswith("/") and Path(path).is_relative_to(tree):
                return f"\n{_rule(folder, cwd)}"
            if cwd is not None and Path(cwd, path).is_relative_to(cwd) and _is_read_only(cwd):
                return (
                    f"\nThe worker's user may not write to the working directory, {str(cwd)!r}: give it permission, "
                    "run workers as the directory's owner, or submit with --cwd"
                )
            if not path.startswith("/"):
                return f"\n{_rule(folder, cwd)}"
    return ""


def _is_read_only(cwd: Path) -> bool:
    return cwd.is_dir() and not os.access(cwd, os.W_OK)


def _path(before: str, after: str) -> str:
    """The path in `tool: PATH: Permission denied` or `Permission denied: 'PATH'`; empty if there is none."""
    opening = min((after.find(quote) for quote in _QUOTES if quote in after), default=-1)
    if opening >= 0:
        return after[opening + 1 :].partition(_QUOTES[after[opening]])[0]
    if after.strip() or not before.endswith(": "):
        return ""
    before = before[:-2]
    for quote, closing in _QUOTES.items():
        if before.endswith(closing) and quote in before[:-1]:
            return before[before.rindex(quote, 0, -1) + 1 : -1]
    return before.rpartition(" ")[2]


def refuse_changes(unpacked: Unpacked, cwd: Path | None) -> None:
    """Raise NodeFailed if files of the folder were changed since it was loaded. The next visit unpacks them again."""
    if unpacked.is_intact():
        return
    changed = unpacked.changed()
    if not changed:
        return
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    names = ", ".join(repr(name) for name in changed[:SHOWN])
    raise NodeFailed(
        f"files of the agent's folder were written or removed while the visit ran: {names}{more}. "
        f"{_rule(unpacked.folder, cwd)}",
        KIND,
    )


def _rule(folder: Path, cwd: Path | None) -> str:
    instead = f"below the working directory, {str(cwd)!r}" if cwd is not None else "to a temporary directory"
    return f"The agent's folder, {str(folder)!r}, is read-only: write {instead}, or print the data to keep"
