"""Measures how long this machine's disk takes to make a small write durable. PostgreSQL, SQLite and an append-only file
that is synced always wait for that at every commit, so it explains their figures."""

from __future__ import annotations

import os
import statistics
import time

from ops.bench.figures import Values
from ops.bench.processes import workspace

WRITES = 200
BLOCK = b"x" * 4096


def fsync() -> Values:
    """Median milliseconds of appending 4 kB and syncing them, in the temporary directory, where all stores are."""
    took_s = []
    with workspace() as folder, (folder / "file").open("wb", buffering=0) as file:
        for _ in range(WRITES):
            file.write(BLOCK)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - started)
    return {"fsync_ms": statistics.median(took_s) * 1000}
