"""`run --record` and `--replay`: the checks before a stack is started that records or replays the answers of models
(docs/testing.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.runs.ps import UNFINISHED
from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from sleipnir.client.client import Client


def with_tape(
    options: GlobalOptions, record: Path | None, replay_from: Path | None, *, in_process: bool = False
) -> GlobalOptions:
    """The options of a run that is recorded into, or answered from, a folder. Both None: the same options. A run
    `in_process` has workers of its own.

    Raises UsageError when the workers are not private, when a recording would be mixed with another, or when there is
    none to replay; ConfigError if both are given.
    """
    if record is None and replay_from is None:
        return options
    from sleipnir.testing.tape import has_recordings

    changed = replace(options, record=record, replay=replay_from)
    settings = changed.settings()
    if settings.redis_url is not None and not in_process:
        raise UsageError(
            "--record and --replay need the private stack: the llm workers of a deployment have settings of their own. "
            "Start those with SLEIPNIR_RECORD or SLEIPNIR_REPLAY, or leave out --redis-url and SLEIPNIR_REDIS_URL."
        )
    if record is not None and has_recordings(record):
        raise UsageError(f"{str(record)!r} holds a recording already; delete it, or name another folder")
    if replay_from is not None and not has_recordings(replay_from):
        raise UsageError(f"there are no recorded model answers in {str(replay_from)!r}; make them with --record")
    return changed


def connected_to_run(options: GlobalOptions) -> AbstractContextManager[Client]:
    """A client for a run; of a private stack for this run alone if its models' answers are recorded or replayed. Raises
    UsageError."""
    settings = options.settings()
    has_tape = settings.record is not None or settings.replay is not None
    return _alone(options) if has_tape and options.is_embedded else options.connected(workers=True)


@contextmanager
def _alone(options: GlobalOptions) -> Iterator[Client]:
    """Another active run in this stack would be recorded too, or fail because its answers were not recorded."""
    with options.connected(workers=False) as looking:
        others = [info.id for info in looking.runs(limit=3, status=set(UNFINISHED))]
        if others:
            raise UsageError(
                f"runs in this home have not ended ({', '.join(others)}), and would be recorded or replayed as well. "
                f"Let them end (`sleipnir watch {others[0]}`), or choose another --home."
            )
        with options.connected(workers=True) as client:
            yield client
