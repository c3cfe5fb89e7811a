"""CPU time of processes, from /proc. Imports nothing of Sleipnir: the peers' scripts use it too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def tree_s(roots: Iterable[int]) -> float:
    """User and system time so far of these processes and of all below them, also of those that have ended."""
    times, children = {}, dict[int, list[int]]()
    for pid, parent, seconds in _processes():
        times[pid] = seconds
        children.setdefault(parent, []).append(pid)
    total, left = 0.0, list(roots)
    while left:
        pid = left.pop()
        total += times.get(pid, 0.0)
        left += children.get(pid, [])
    return total


def _processes() -> Iterator[tuple[int, int, float]]:
    """Process, parent, and seconds of CPU, those of its children that were waited for included."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()  # the name before it, in parentheses, may hold blanks
        yield int(folder.name), int(fields[1]), sum(map(int, fields[11:15])) * tick_s
