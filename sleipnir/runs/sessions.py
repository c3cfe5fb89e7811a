"""Names of sessions, the stored conversations of agents (spec 2.14, 3.6).

A session is a list of messages, kept by namespace, agent and name. One run at a time may use it; a run that completes
adds its messages, one that fails or is cancelled adds nothing. Agents with a config.yaml have sessions; graphs have
none: they manage their own state.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sleipnir.errors import UsageError
from sleipnir.runs.conversation_names import ConversationName

if TYPE_CHECKING:
    from sleipnir.runs.run import RunSpec

TEMP: Final = "temp"
"""Requests a new session that is kept only while it is in use."""

TEMPORARY_MS: Final = 24 * 3600 * 1000
"""A temporary session is kept this long after its last run, so that a disconnected user can continue it."""

_TEMPORARY = f"{TEMP}-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

NO_SESSIONS = (
    "Graph-based agent '{agent}' does not support sessions. The graph manages its own state; re-run without a session."
)
NO_SESSION_HERE = "Graph-based agent '{agent}' does not support sessions. The graph manages its own state."


@dataclass(frozen=True)
class SessionName(ConversationName):
    """A session: names are unique per agent of a namespace."""

    @classmethod
    def of(cls, spec: RunSpec) -> SessionName | None:
        """The session of a run. None: it is in none."""
        return None if spec.session is None else cls(spec.agent, spec.session, spec.thread_namespace)

    @classmethod
    def of_child(cls, spec: RunSpec, agent: str) -> SessionName | None:
        """The session of the runs of an agent that a run starts. None: they are in none."""
        name = spec.sessions.get(agent)
        return None if name is None else cls(agent, name, spec.thread_namespace)

    @property
    def expire_ms(self) -> int | None:
        """How long it is kept after its last run; None: until it is removed."""
        return TEMPORARY_MS if self.name.startswith(_TEMPORARY) else None


def instructions_of(bundle: str, variables: Mapping[str, str]) -> str:
    """A digest of the inputs of dynamic instructions: a session keeps them while it is unchanged (spec 3.4)."""
    return hashlib.sha256(json.dumps([bundle, dict(variables)], sort_keys=True).encode()).hexdigest()


def checked(name: str) -> str:
    """The session of a given name; TEMP becomes an unused name. Raises UsageError."""
    if name == TEMP:
        return _TEMPORARY + secrets.token_hex(6)
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot name a session: a name has up to 64 letters, digits, '.', '_' and '-', and begins with a "
            f"letter or a digit; {TEMP!r} means a new one that is not kept"
        )
    return name
