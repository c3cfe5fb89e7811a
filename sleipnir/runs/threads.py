"""Threads: runs of a graph agent that continue each other; each turn begins with the state at the end of the last one.

A thread is known by namespace, agent and name. One run at a time may be unfinished in it. The last run of a thread is
kept, with its state, until the next one has begun or the thread is removed. Agents with a config.yaml have sessions
instead, which keep what was said; a thread keeps the state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sleipnir.errors import UsageError
from sleipnir.graph.key_scopes import NOT_OF_THREAD
from sleipnir.runs.conversation_names import ConversationName

if TYPE_CHECKING:
    from sleipnir.runs.run import RunSpec

HELD_MS: Final = 2**53 - 1
"""When the last run of a thread expires, as the index of ended runs has it: never."""

NOT_KEPT: Final = ("_error", "last_error")
"""Keys of the state that tell of a failed visit of an earlier run."""

NO_THREADS = (
    "agent {agent!r} has a config.yaml: it continues conversations, which are sessions (--session), not threads"
)

MOST_QUEUED: Final = 100
"""Maximum number of turns of a thread that wait for the runs before them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


def is_kept(key: str) -> bool:
    """Whether the next turn of a thread begins with a key of the state, as lua/shared/turns.lua has it: values of one
    run, shared values, and what tells of its failures, it does not have."""
    return key not in NOT_KEPT and not key.startswith(NOT_OF_THREAD)


@dataclass(frozen=True)
class ThreadName(ConversationName):
    """A thread: names are unique per agent of a namespace."""

    @classmethod
    def of(cls, spec: RunSpec) -> ThreadName | None:
        """The thread of a run. None: it is in none."""
        return None if spec.thread is None else cls(spec.agent, spec.thread, spec.thread_namespace)


def checked(name: str) -> str:
    """The name of a thread. Raises UsageError."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot name a thread: a name has up to 128 letters, digits, '.', '_', ':', '@', '+' and '-', "
            "and begins with a letter or a digit"
        )
    return name
