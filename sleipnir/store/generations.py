"""Generations: the life of Redis' data set between restarts, fail-overs, restores and steps of its clock.

What is authoritative: one hash in Redis. Every scheduler pulses, a few times per lease; the script compares what it
finds with the server that it runs on, and with what the scheduler remembers. A difference begins a new generation, for
all schedulers. So does a person, after a restore that nothing can notice (`sleipnir doctor --after-restore`).

What follows from it: views of runs and cursors from before are dropped, nothing is taken back from a worker before
`steady_ms`, and a visit with `effect: once` that was queued under another `data` asks a person before it runs.
"""

from __future__ import annotations

import secrets

from sleipnir.runs.views import Generation
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import Arg, LuaScript

_PULSE = LuaScript("pulse")


class Generations:
    """The hash of the deployment's generation."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def pulse(
        self,
        seen: Generation | None,
        *,
        lease_ms: int,
        gap_ms: int,
        stepped: bool = False,
        restored: bool = False,
    ) -> Generation:
        """The generation as it is now: a new one when Redis is not what it was. `seen` is what the caller got last.

        A time of more than `gap_ms` without a pulse of any scheduler means that workers may have been cut off as well.
        Raises as any write does while Redis refuses to write.
        """
        args: dict[str, Arg] = {
            "seen_id": seen.id if seen else "",
            "seen_pulse": seen.pulse if seen else 0,
            "fresh_id": secrets.token_hex(8),
            "lease_ms": lease_ms,
            "gap_ms": gap_ms,
            "stepped": int(stepped),
            "restored": int(restored),
        }
        reply = _PULSE(self._client, {"generation": self._keys.generation}, args)
        id_, data, since_ms, why, *numbers = reply
        return Generation(id_, data, int(since_ms), why, *map(int, numbers))

    def current(self) -> Generation | None:
        """The generation, for people. None: no scheduler of a release that has generations has run yet."""
        stored = self._client.hgetall(self._keys.generation)
        if "id" not in stored:
            return None
        seconds, micros = self._client.time()
        numbers = (int(stored.get(name, 0)) for name in ("since_ms", "pulse", "steady_ms", "pulse_ms"))
        since_ms, pulse, steady_ms, pulse_ms = numbers
        id_, data, why = (stored.get(name, "") for name in ("id", "data", "why"))
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return Generation(id_, data, since_ms, why, pulse, steady_ms, now_ms, pulse_ms)

    def stopped(self) -> None:
        """Note that all services have stopped and Redis is stopped next: a stop that loses nothing. The next pulse
        forgets it."""
        if self._client.exists(self._keys.generation):
            self._client.hset(self._keys.generation, "stopped", 1)


def gap_ms(lease_s: float, heartbeat_s: float) -> int:
    """How long nobody may have reached Redis without a lease in danger: half of what a lease lasts beyond a heartbeat.

    The other half is for workers to find Redis again. Below a second, a busy machine looks like an outage.
    """
    return int(max(1000.0, (lease_s - heartbeat_s) * 500))
