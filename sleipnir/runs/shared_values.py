"""Shared values: JSON values that all runs of an agent have (`app:KEY`), or all runs of a user of it (`user:KEY`).

A run gets them as keys of its first state. What its nodes write to such keys goes back by an effect of the commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sleipnir.errors import UsageError
from sleipnir.graph.key_scopes import OF_AGENT, OF_USER
from sleipnir.graph.plain import compact_json, first_not_json

if TYPE_CHECKING:
    from sleipnir.graph.model import Json
    from sleipnir.runs.run import RunSpec

MOST_KEYS: Final = 1_000
MOST_BYTES: Final = 2**20
"""Maximum of the values of an agent, and of those of a user: they are copied into each run. Bytes of keys and JSON."""

LONGEST_KEY: Final = 200

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")

NO_SHARED_VALUES: Final = (
    "agent {agent!r} has a config.yaml: it continues conversations (--session), and has no values of a user; leave out "
    "--user"
)


@dataclass(frozen=True)
class SharedName:
    """Who has shared values: an agent (`user` None), or a user of it."""

    agent: str
    user: str | None = None

    def __str__(self) -> str:
        return self.agent if self.user is None else f"{self.agent}/{self.user}"

    @property
    def scope(self) -> str:
        """What the state keys of the values begin with."""
        return OF_AGENT if self.user is None else OF_USER

    @classmethod
    def of_text(cls, text: str) -> SharedName:
        """The name that is written so."""
        agent, slash, user = text.partition("/")
        return cls(agent, user if slash else None)


@dataclass(frozen=True)
class SharedInfo:
    """How many values an agent, or a user of it, has, with their bytes, and when one was last written."""

    agent: str
    user: str | None
    values: int
    bytes_: int
    written_ms: int


def names_of(spec: RunSpec) -> tuple[SharedName, ...]:
    """Who has the shared values of a run, one for each of its scopes."""
    return tuple(SharedName(spec.agent, spec.user if scope == OF_USER else None) for scope in spec.scopes)


def checked_user(user: str) -> str:
    """The name of a user. Raises UsageError."""
    if not isinstance(user, str) or _USER.fullmatch(user) is None:
        raise UsageError(
            f"{user!r:.80} cannot name a user: a name has up to 128 letters, digits, '.', '_', ':', '@', '+' and '-', "
            "and begins with a letter or a digit"
        )
    return user


def shared_name(agent: str, user: str | None) -> SharedName:
    """Raises UsageError for what cannot name a user, or an agent."""
    if not agent or "/" in agent:
        raise UsageError(f"{agent!r} is no name of an agent")
    return SharedName(agent, None if user is None else checked_user(user))


def texts_of(values: Mapping[str, Json]) -> dict[str, str]:
    """Values by key, without their scope, as JSON texts. Raises UsageError."""
    for key in values:
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
            raise UsageError(f"{key!r:.80} cannot name a value: a key has 1 to {LONGEST_KEY} printable characters")
    if problem := first_not_json(dict(values)):
        raise UsageError(f"a shared value must be JSON: {problem}")
    return {key: compact_json(value) for key, value in values.items()}


def too_much(name: str, keys: int, size: int) -> str:
    """Why values are not stored: there would be so many, with so many bytes."""
    return (
        f"the values of {name!r} would be {keys:,} with {size:,} bytes: at most {MOST_KEYS:,} with {MOST_BYTES:,} "
        "bytes fit. Remove some, or store them elsewhere"
    )


def in_state(name: SharedName, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the keys of a state."""
    return {f"{name.scope}{key}": value for key, value in values.items()}
