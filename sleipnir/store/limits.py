"""The limits of models in Redis: permits for calls, their holders, and the callers that wait.

How it works:
1. Calls are counted in slices of a 120th of a window, and tokens with them. A call is granted if its own slice and the
   slices of the last window before it hold less than the bound. So no window ever holds more, regardless of its start.
   One slice is added for the time between the grant and the arrival at the provider: this costs 1.6 % of the rate.
2. A permit is a lease. The heartbeat of a worker renews it; the permit of a killed worker lapses and is free again.
3. A refused caller joins a line and learns when to come back: when the window will have room for it. Later callers are
   behind it. Its place blocks them as long as it comes back in time (3 s); after that it keeps its place without
   blocking, so a caller that is gone costs almost nothing.
4. All limits of a call are checked in one atomic script, and a call counts in all of them or in none.

Redis, its clock, and the bounds that the caller passes are authoritative. Each call may be repeated, delayed or lost:
a permit then lapses, and a place in line is skipped. Without limits nothing is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from sleipnir.access.audit import audit_text
from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.models.limits import GrantedPermit, HeldPermit, Limit, LimitChange, LimitReached, LimitUse
from sleipnir.store.connect import Client, time_ms
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript, run_batch

_TAKE = LuaScript("limit_take")
_RELEASE = LuaScript("limit_release")
_RENEW = LuaScript("limit_renew")
_COOL = LuaScript("limit_cool")
_CHANGE = LuaScript("limit_change")

WINDOW_MS = 60_000
SLICES = 120  # of a window; more slices would waste less of the rate and cost more to sum up
PATIENCE_MS = 3_000  # a visit comes back through a timer, a message and a free worker: usually in a tenth of this
LONGEST_PAUSE_MS = 3_600_000  # of a provider; after it the provider is called again, even if it asked for more


class Limiter:
    """The limits, for callers of models. `window_ms` is a minute except in tests; `now_ms` None is Redis' clock."""

    def __init__(self, client: Client, keys: Keys, *, lease_ms: int, window_ms: int = WINDOW_MS) -> None:
        self._client, self._keys, self._lease_ms = client, keys, lease_ms
        self._slice_ms = max(1, window_ms // SLICES)
        self._slices = -(-window_ms // self._slice_ms) + 1

    def take(
        self,
        limits: Sequence[Limit],
        holder: str,
        tokens: int = 0,
        *,
        caller: str | None = None,
        now_ms: int | None = None,
    ) -> GrantedPermit | LimitReached:
        """Ask for a permit in each of `limits`, for one call of a model that may use `tokens`. No limits: no round
        trip.

        `holder` names the call (`run/seq/attempt/turn`): while it holds its permit, a repetition is the same call;
        after its release, a new one. `caller` is the name in the line, by default the holder: pass it (`run/seq/turn`)
        if the attempt that comes back has another number.
        """
        if not limits:
            return GrantedPermit((), holder)
        args: dict[str, Arg] = {
            "holder": holder,
            "caller": caller or holder,
            "tokens": tokens,
            "lease_ms": self._lease_ms,
            "slice_ms": self._slice_ms,
            "slices": self._slices,
            "patience_ms": PATIENCE_MS,
            "now_ms": now_ms or 0,
        }
        keys = [key for limit in limits for key in self._keys.of_limit(limit.pattern).all()]
        keys.append(self._keys.limit_changes.changes)
        bounds: list[Arg] = []
        for limit in limits:
            numbers = (limit.requests_per_minute, limit.tokens_per_minute, limit.max_parallel)
            bounds += [limit.pattern, *(bound or 0 for bound in numbers)]
        reply = _TAKE(self._client, keys, args, bounds)
        if reply[0]:
            return GrantedPermit(tuple(limits), holder)
        _, retry_at_ms, number, cause, ahead, used, bound, *holders = reply
        return LimitReached(limits[number], cause, int(retry_at_ms), int(ahead), int(used), tuple(holders), int(bound))

    def release(self, granted: GrantedPermit, tokens: int | None = None, *, now_ms: int | None = None) -> None:
        """End a call that has used `tokens`, which replace the estimate (None: the estimate stays).

        Safe to repeat. Without it the permit lapses.
        """
        used = -1 if tokens is None else tokens
        vectors = [
            _RELEASE.vector(
                {"window": self._window(limit), "held": self._keys.of_limit(limit.pattern).held},
                {"holder": granted.holder, "tokens": used, "now_ms": now_ms or 0},
            )
            for limit in granted.limits
        ]
        _without_errors(run_batch(self._client, _RELEASE, vectors))

    def renew(self, held: Iterable[GrantedPermit], *, now_ms: int | None = None) -> set[str]:
        """Renew these permits for another lease: one round trip for all. Returns the holders that have lost one.

        Such a call may continue, because it was already sent. Its permit may belong to another call by now.
        """
        holders: dict[str, list[str]] = defaultdict(list)
        for granted in held:
            for limit in granted.limits:
                holders[limit.pattern].append(granted.holder)
        args: dict[str, Arg] = {"lease_ms": self._lease_ms, "now_ms": now_ms or 0}
        vectors = [
            _RENEW.vector({"held": self._keys.of_limit(pattern).held}, args, names)
            for pattern, names in holders.items()
        ]
        return {holder for lost in _without_errors(run_batch(self._client, _RENEW, vectors)) for holder in lost}

    def leave(self, limits: Sequence[Limit], caller: str) -> None:
        """Remove a cancelled caller from the line. Safe to repeat; if the call is lost, its place is skipped."""
        if not limits:
            return
        pipe = self._client.pipeline(transaction=False)
        for limit in limits:
            keys = self._keys.of_limit(limit.pattern)
            for key in (keys.line, keys.due, keys.late):
                pipe.zrem(key, caller)
        pipe.execute()

    def cool_down(self, limits: Sequence[Limit], for_ms: int, *, now_ms: int | None = None) -> int | None:
        """Pause after the provider refused a call of the model with these limits and asked to wait for `for_ms`.

        Only the most specific limit pauses: others may apply to models that the provider does not mean. Returns the
        end of the pause, at most an hour; None if there are no limits. A pause is never shortened.
        """
        if not limits:
            return None
        args: dict[str, Arg] = {"for_ms": for_ms, "most_ms": LONGEST_PAUSE_MS, "now_ms": now_ms or 0}
        return int(_COOL(self._client, {"window": self._window(limits[0])}, args))

    def in_use(self, limit: Limit, *, now_ms: int | None = None) -> LimitUse:
        """The current use of a limit. Read-only."""
        keys = self._keys.of_limit(limit.pattern)
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(keys.window)
        pipe.zrange(keys.held, 0, -1, withscores=True)
        pipe.zcard(keys.line)
        pipe.hget(self._keys.limit_changes.changes, limit.pattern)
        time, window, held, waiting, changed = pipe.execute()
        change = read_text(LimitChange, changed, "change", f"limit {limit.pattern!r}") if changed else None
        at_ms = now_ms or time_ms(time)
        first = at_ms // self._slice_ms - self._slices
        counted = [(name[0], int(count)) for name, count in window.items() if _slice_of(name) >= first]
        cool_ms = int(window.get("cool_ms", 0))
        return LimitUse(
            limit if change is None else change.applied(limit),
            at_ms,
            requests=sum(count for kind, count in counted if kind == "r"),
            tokens=sum(count for kind, count in counted if kind == "t"),
            slots=tuple(HeldPermit(holder, int(until_ms)) for holder, until_ms in held if until_ms > at_ms),
            waiting=int(waiting),
            cooling_until_ms=cool_ms if cool_ms > at_ms else None,
            change=change,
            written=None if change is None else limit,
        )

    def change(self, limit: Limit, change: LimitChange | None, *, by: str, reason: str, keep_ms: int) -> bool:
        """Give a limit the bounds of `change` in the place of those of limits.yaml; None takes that back. It holds for
        all calls that ask from now on. The audit keeps an entry for `keep_ms`. False: there is nothing to take
        back."""
        keys = {"changes": self._keys.limit_changes.changes, "audit": self._keys.limit_changes.audit}
        while True:
            before = self._client.hget(keys["changes"], limit.pattern) or ""
            if change is None and not before:
                return False
            what = "limit reset" if change is None else "limit changed"
            entry = audit_text(
                what, f"limit {limit.pattern}", by, before=_bounds_of(limit, before), reason=reason,
                after=_bounds_of(limit, "" if change is None else record(change)),
            )  # fmt: skip
            after = "" if change is None else record(change)
            args: dict[str, Arg] = {
                "pattern": limit.pattern, "before": before, "after": after, "entry": entry, "keep_ms": keep_ms,
            }  # fmt: skip
            if _CHANGE(self._client, keys, args):
                return True

    def _window(self, limit: Limit) -> str:
        return self._keys.of_limit(limit.pattern).window


def _bounds_of(limit: Limit, change: str) -> dict[str, int]:
    """The bounds that hold with a stored change, for the audit; one that cannot be read counts as none."""
    bounds = {name: value for name, value in vars(limit).items() if name != "pattern" and value is not None}
    try:
        return bounds | (read_text(LimitChange, change).bounds if change else {})
    except RecordUnreadable:
        return bounds


def _slice_of(name: str) -> int:
    """The slice of a field `r<slice>` or `t<slice>`; -1 for other fields."""
    return int(name[1:]) if name[0] in "rt" and name[1:].isdigit() else -1


def _without_errors(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, redis.exceptions.RedisError):
            raise reply
    return replies
