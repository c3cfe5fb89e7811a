"""Leases of visits that have lapsed: services/reaper.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sleipnir.store.keys import parse_member
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_TAKE_BACK = LuaScript("take_back")


class Leases(PartitionConnection):
    """End the leases that have lapsed."""

    def with_lapsed(self, partitions: Iterable[int], clocks_ms: Mapping[int, int]) -> list[int]:
        """Those of the partitions that have a lease which lapsed, by the clock of each."""
        numbers = [number for number in partitions if number in clocks_ms]
        firsts = self._first_ms([self._of(number).leases for number in numbers])
        return [number for number, first_ms in zip(numbers, firsts, strict=True) if first_ms <= clocks_ms[number]]

    def take_back(self, partition: int, now_ms: int, until_ms: int, limit: int) -> int:
        """End the leases that lapsed before `now_ms` and report each to the inbox; does nothing after `until_ms`.
        Returns how many. Both times are by Redis' clock."""
        part = self._of(partition)
        vectors = []
        lapsed = self._client.zrangebyscore(part.leases, "-inf", now_ms, start=0, num=limit)
        for name in self._members(part.leases, lapsed):
            run_id, seq, attempt = parse_member(name)
            keys = {"claims": self._keys.of_run(run_id).claims, "leases": part.leases, "inbox": part.inbox}
            args: dict[str, Arg] = {"run_id": run_id, "member": name, "seq": seq, "attempt": attempt}
            args["until_ms"] = until_ms
            vectors.append(_TAKE_BACK.vector(keys, args))
        return sum(int(checked(reply)) for reply in run_batch(self._client, _TAKE_BACK, vectors))

    def shorten_leases(self, partitions: Iterable[int], most_ms: int, limit: int) -> int:
        """Let no lease end after `most_ms`: after Redis' clock was set back, a dead worker's lease would last until the
        old time is reached again. Living workers renew their leases. Returns how many were shortened, up to `limit` of
        each partition."""
        indexes = [self._of(partition).leases for partition in partitions]
        pipe = self._client.pipeline(transaction=False)
        for leases in indexes:
            pipe.zrangebyscore(leases, f"({most_ms}", "+inf", start=0, num=limit)
        long = {leases: names for leases, names in zip(indexes, pipe.execute(), strict=True) if names}
        for leases, names in long.items():
            self._client.zadd(leases, dict.fromkeys(names, most_ms), xx=True, lt=True)
        return sum(map(len, long.values()))
