"""The actor of a request on a run or a batch, and its origin, for journals and records.

It is stored as readable text, `ann@desk (cli)`. A record of an older release has none, or no `via`.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sleipnir.decoding import decoded_object, read
from sleipnir.graph.plain import compact_json

MOST = 200
"""Characters of the whole text."""


@dataclass(frozen=True)
class Actor:
    """`via` is the interface: `cli`, `python`, `api`, `mcp`. The user is the one that the operating system reports: no
    proof of identity. `role` is the access role that the HTTP API has found; None: the actor has the password of Redis,
    and the role of the user of that name, or that of an operator."""

    user: str
    host: str
    via: str
    role: str | None = None

    def __str__(self) -> str:
        text = f"{self.user}@{self.host} ({self.via})" if self.host else f"{self.user} ({self.via})"
        if not text.isprintable():
            text = "".join(letter if letter.isprintable() else "?" for letter in text)
        return text[:MOST]

    @property
    def person(self) -> Person:
        """Who it is, whatever token or host a request comes from."""
        return Person(self.user.partition("/")[0], self.role)

    def named(self, person: str) -> Actor:
        """The same in the name of another person, which the text says: this one has named it."""
        return replace(self, user=person, via=f"{self.via}, named by {self.user}")

    @classmethod
    def here(cls, via: str) -> Actor:
        """The user of this process, on this host."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # a container's user may have no name
            user = f"uid {os.getuid()}"
        return cls(user, socket.gethostname(), via)


@dataclass(frozen=True)
class Person:
    """Who answers a gate: an actor without its place. `role` as in Actor."""

    name: str = ""
    role: str | None = None


NOBODY: Final = Person()


def is_actor(by: str) -> bool:
    """Whether this is the text of an actor: not a breakpoint, a model, or a run that passes on what it was asked."""
    return by.endswith(")") and not by.startswith("run ")


@dataclass(frozen=True)
class Change:
    """The last change of a kind by a person to a run or a batch: `paused`, `resumed`, `retried`, `cancelled`,
    `answered` or `commented` (a run's question), `skipped` (a visit of `node`) or `replanned` (a batch's limits). `by`
    is Actor as text; `reason` (of a comment its text) and `answer` if there is one."""

    what: str
    by: str
    at_ms: int
    reason: str | None = None
    answer: str | None = None
    node: str | None = None


def change_text(change: Change) -> str:
    """The stored form, under the name `by:<what>`."""
    fields = {name: value for name, value in vars(change).items() if value is not None and name != "what"}
    return compact_json(fields)


def changes_of(texts: Mapping[str, str | None]) -> tuple[Change, ...]:
    """The changes among stored fields, in order of time. Raises RecordUnreadable."""
    stored = ((name.removeprefix("by:"), text) for name, text in texts.items() if name.startswith("by:") and text)
    changes = [read(Change, {**decoded_object(text, "change"), "what": what}, "change") for what, text in stored]
    return tuple(sorted(changes, key=lambda change: change.at_ms))
