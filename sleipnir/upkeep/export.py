"""A run as lines of JSON, for other programs: its specification, every step with its writes, its outcome.

Each line is one object with `type` and `run`:

    {"type": "run", "format": "sleipnir-run", "v": 1, "run": ..., "created_ms": ..., "spec": {...}}
    {"type": "step", "run": ..., the fields of transitions.Step, "writes": {key: value, ...}}
    {"type": "outcome", "run": ..., "final": true, "status": ..., "error": ..., "output": ..., "steps": ..., ...}

Rules. The lines of a run are contiguous, its steps from 0 on; journal.py computes the state after a step from the lines
up to it. `outcome` is the last one: a run without it is truncated and ignored. An unfinished run has `"final": false`,
and its lines are as of the time the first one was read. Readers ignore unknown fields; `v` increases when the meaning
of a field changes. Values are passed on as stored, so a line is as long as the writes of its step. Redis has no
secrets; values of variables with secret-like names are still masked, and those that name a secret of the worker
(`{{NAME}}`) are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sleipnir.errors import RunNotFound
from sleipnir.redaction import is_secret_name
from sleipnir.store.record_text import dumps
from sleipnir.store.records import Records, StoredRun

FORMAT: Final = "sleipnir-run"
VERSION: Final = 1

_COUNTS = ("tokens_in", "tokens_out", "model_calls", "unpriced_calls")
_TIMES = ("started_ms", "ended_ms")


def lines_of(records: Records, run_id: str, *, children: bool = False) -> Iterator[str]:
    """A run as lines, each with its end of line; with `children` also all descendants, each after its parent.

    Raises RunNotFound for a run that does not exist, or expires while it is read; an expired child is left out.
    """
    record = records.read(run_id)
    if record is None:
        raise RunNotFound(f"no run {run_id!r}: never submitted here, or finished longer ago than the retention")
    waiting = [record]
    while waiting:
        record = waiting.pop()
        yield from lines_of_record(records, record)
        if children:
            below = map(records.read, sorted(record.children, reverse=True))
            waiting += [child for child in below if child is not None]


def lines_of_record(records: Records, record: StoredRun) -> Iterator[str]:
    """The lines of one run that was read. Raises RunNotFound when it expires meanwhile."""
    yield dumps(_head(record)) + "\n"
    steps = 0
    for entry in records.entries(record):
        yield _step(record.run, entry)
        steps += 1
    if steps < record.steps:
        raise RunNotFound(f"run {record.run!r} has expired while it was read")
    yield dumps(_outcome(record)) + "\n"


def _head(record: StoredRun) -> dict[str, Any]:
    spec = json.loads(record.spec)
    spec["variables"] = _masked(spec.get("variables") or {})
    spec["presets"] = {agent: _masked(values) for agent, values in (spec.get("presets") or {}).items()}
    return {
        "type": "run",
        "run": record.run,
        "format": FORMAT,
        "v": VERSION,
        "created_ms": int(record.fields["created_ms"]),
        "spec": spec,
    }


def _masked(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: "***" if is_secret_name(name) and not (value.startswith("{{") and value.endswith("}}")) else value
        for name, value in variables.items()
    }


def _step(run_id: str, entry: str) -> str:
    """Built as text, because the values may be large and are already JSON."""
    header, *written = entry.split("\n")
    writes = ",".join(f"{key}:{value}" for key, value in zip(written[::2], written[1::2], strict=True))
    return f'{{"type":"step","run":{dumps(run_id)},{header.strip()[1:-1]},"writes":{{{writes}}}}}\n'


def _outcome(record: StoredRun) -> dict[str, Any]:
    fields = record.fields
    return {
        "type": "outcome",
        "run": record.run,
        "final": record.is_final,
        "status": fields["status"],
        "error": fields.get("error"),
        "failed_at": fields.get("failed_at"),
        **{name: int(fields[name]) if name in fields else None for name in _TIMES},
        "steps": record.steps - 1,
        **{name: int(float(fields.get(name, 0))) for name in _COUNTS},
        "cost_usd": float(fields.get("cost_usd", 0)),
        "children": sorted(record.children),
        "output": record.output,
    }
