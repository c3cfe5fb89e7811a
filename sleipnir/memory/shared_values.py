"""Shared values in memory: those of agents and of their users, for runs in one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sleipnir.errors import UsageError
from sleipnir.runs.shared_values import MOST_BYTES, MOST_KEYS, SharedName, in_state, shared_name, texts_of, too_much


class MemoryValues:
    """Values of agents and of their users, by key without its scope. Threads may share one.

    values = MemoryValues()
    values.set("librarian", {"tier": "gold"}, "ann")
    """

    def __init__(self) -> None:
        self._values: dict[SharedName, dict[str, str]] = {}
        self._lock = threading.Lock()

    def get(self, agent: str, user: str | None = None) -> dict[str, Any]:
        """The values of an agent, or of a user of it."""
        with self._lock:
            return {key: json.loads(text) for key, text in self._values.get(shared_name(agent, user), {}).items()}

    def set(self, agent: str, values: Mapping[str, Any], user: str | None = None) -> None:
        """Set some of them. Raises UsageError."""
        self.write(shared_name(agent, user), texts_of(values))

    def for_state(self, names: Sequence[SharedName]) -> dict[str, Any]:
        """The values of these as keys of a state."""
        with self._lock:
            found = {name: dict(self._values.get(name, {})) for name in names}
        return {
            key: value
            for name, texts in found.items()
            for key, value in in_state(name, {key: json.loads(text) for key, text in texts.items()}).items()
        }

    def write(self, name: SharedName, texts: Mapping[str, str]) -> None:
        """Raises UsageError if they are too many or too large."""
        with self._lock:
            values = {**self._values.get(name, {}), **texts}
            size = sum(len(key.encode()) + len(text.encode()) for key, text in values.items())
            if len(values) > MOST_KEYS or size > MOST_BYTES:
                raise UsageError(too_much(str(name), len(values), size))
            self._values[name] = values


OF_PROCESS: Final = MemoryValues()
"""Those of all runs in this process that are given no others."""
