"""Shared values: read by submissions, written by clients and by effects of commits (share_values.lua).

1. The values of an agent, and those of each of its users, are in the partition that follows from the name.
2. The effects of a source partition are delivered in order, and each once: the last number of each source is kept as
   long as there are values, and an hour longer. So a run's later value is never replaced by an earlier one of its own.
   Of several runs the last delivery counts.
3. An effect has no values: the delivery reads those that its run has by then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sleipnir.errors import UsageError
from sleipnir.runs.shared_values import MOST_BYTES, MOST_KEYS, SharedInfo, SharedName, in_state, too_much
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, checked, run_in_order

_SHARE = LuaScript("share_values")

KNOWN_MS: Final = 3_600_000
LOOKED_AT: Final = 1_000
_KIND: Final = '"share_values"'
_TOO_MUCH: Final = -1


class SharedValues:
    """Read and write shared values; keys are without their scope."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def read(self, names: Sequence[SharedName]) -> list[dict[str, Any]]:
        """The values of each, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hgetall(self._keys.of_shared(name).values)
        return [{key: json.loads(text) for key, text in found.items()} for found in pipe.execute()]

    def for_state(self, names: Sequence[SharedName]) -> dict[str, Any]:
        """All of them as keys of a state. Without names Redis is not asked."""
        if not names:
            return {}
        found = zip(names, self.read(names), strict=True)
        return {key: value for name, values in found for key, value in in_state(name, values).items()}

    def is_owed_by(self, run_id: str) -> bool:
        """Whether values that a run has written are still on their way, as far as the oldest LOOKED_AT effects of its
        partition tell."""
        effects = self._keys.of_partition(self._keys.partition_of(run_id)).effects
        pipe = self._client.pipeline(transaction=False)
        pipe.xrange(effects, count=LOOKED_AT)
        [entries] = pipe.execute()
        return any(fields.get("run") == run_id and _KIND in fields.get("e", "") for _, fields in entries)

    def write(self, name: SharedName, texts: Mapping[str, str]) -> None:
        """Set values, given as JSON text. Raises UsageError if they are too many or too large."""
        self._run(name, self._command(name, texts))

    def remove(self, name: SharedName, keys: Collection[str] | None) -> int:
        """Remove values; None: all of them. Returns how many of these there were."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hkeys(self._keys.of_shared(name).values)
        [before] = pipe.execute()
        gone = before if keys is None else set(keys) & set(before)
        if gone or keys is None:
            self._run(name, self._command(name, {} if keys is None else dict.fromkeys(gone, ""), clear=keys is None))
        return len(gone)

    def share(self, fence: Fence, name: SharedName, texts: Mapping[str, str]) -> RedisCommand:
        """The command that writes what a run has written. `fence`: of a partition."""
        return self._command(name, texts, fence)

    def listed(self, agent: str | None = None) -> list[SharedInfo]:
        """Who has values, of all agents or of one: the agents first, then their users by name."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrange(self._keys.of_partition(partition).shared, 0, -1, withscores=True)
        found = [(SharedName.of_text(text), int(at_ms)) for reply in pipe.execute() for text, at_ms in reply]
        found = [(name, at_ms) for name, at_ms in found if agent in (None, name.agent)]
        pipe = self._client.pipeline(transaction=False)
        for name, _ in found:
            keys = self._keys.of_shared(name)
            pipe.hlen(keys.values)
            pipe.hget(keys.written, "bytes")
        counts = pipe.execute()
        infos = [
            SharedInfo(name.agent, name.user, counts[2 * number], int(counts[2 * number + 1] or 0), at_ms)
            for number, (name, at_ms) in enumerate(found)
        ]
        return sorted(infos, key=lambda info: (info.agent, info.user or ""))

    def _run(self, name: SharedName, command: RedisCommand) -> None:
        [reply] = run_in_order(self._client, [command])
        code, keys, size = checked(reply)
        if code == _TOO_MUCH:
            raise UsageError(too_much(str(name), keys, size))

    def _command(
        self, name: SharedName, texts: Mapping[str, str], fence: Fence = NO_FENCE, *, clear: bool = False
    ) -> RedisCommand:
        keys = self._keys.of_shared(name)
        args: dict[str, Arg] = {
            "name": str(name), "source": fence.source, "number": fence.number, "clear": int(clear),
            "most_keys": MOST_KEYS, "most_bytes": MOST_BYTES, "known_ms": KNOWN_MS,
        }  # fmt: skip
        pairs: list[Arg] = [part for pair in texts.items() for part in pair]
        listed = self._keys.of_partition(keys.partition).shared
        vector = _SHARE.vector({"values": keys.values, "written": keys.written, "listed": listed}, args, pairs)
        return RedisCommand(_SHARE, vector)
