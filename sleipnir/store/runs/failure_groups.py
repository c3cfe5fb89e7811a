"""Failed runs in groups that failed alike.

Each partition counts its failed runs in a hash for each namespace (lua/shared/lists.lua): one JSON text for each
message, node and version, and one for each version whose messages are too many. A query has to read all of them to find
the latest, as a group is in many partitions; but of most it takes only the time from the text. It decodes those that it
returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sleipnir.decoding import decoded
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run_filters import FailureGroup
from sleipnir.store.fast_client import execute_all
from sleipnir.store.runs.run_lists import RunLists
from sleipnir.store.scripts import checked

_GROUP = "group of failures"
_LAST = re.compile(r'"last_ms":\s*([\d.eE+]+)')  # only as a key: within a string the quotes are escaped
_PLAIN = re.compile(r"[A-Za-z0-9_. -]+")
"""What JSON writes as it is."""


class FailureGroups(RunLists):
    """The query of groups."""

    def failure_groups(
        self,
        namespace: str,
        agent: str | None = None,
        node: str | None = None,
        since_ms: int | None = None,
        limit: int = 50,
        runs: int = 3,
        fingerprint: str | None = None,
    ) -> list[FailureGroup]:
        """The groups of failed runs with the latest ends, with the ids of some runs of each. Raises RecordUnreadable
        if one that it meets is damaged."""
        wanted = {"agent": agent, "node": node}
        chosen = dict(islice(self._newest_groups(namespace, wanted, since_ms or 0, fingerprint), limit))
        samples = self._some_runs(namespace, list(chosen), runs)
        return [
            FailureGroup(
                name.partition(":")[0], group["agent"], group["version"], group.get("node"), group["message"],
                int(group["count"]), int(group["first_ms"]), int(group["last_ms"]), samples[name],
            )
            for name, group in chosen.items()
        ]  # fmt: skip

    def _newest_groups(
        self, namespace: str, wanted: Mapping[str, str | None], since_ms: int, fingerprint: str | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The groups with these values, over all partitions, the latest first; decoded one by one."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hgetall(self._keys.of_partition(partition).failures(namespace))
        replies: list[dict[str, str]] = pipe.execute()
        if fingerprint is not None:
            begin = f"{fingerprint}:"
            replies = [{name: each for name, each in groups.items() if name.startswith(begin)} for groups in replies]
        for field, value in wanted.items():
            if value is not None:
                has_it = _test_of(field, value)
                replies = [{name: text for name, text in groups.items() if has_it(text)} for groups in replies]
        last_ms: dict[str, float] = {}
        for groups in replies:
            for name, text in groups.items():
                at_ms = _last_ms(text)
                if at_ms > last_ms.get(name, -1.0):
                    last_ms[name] = at_ms
        for name in sorted(last_ms, key=last_ms.__getitem__, reverse=True):
            if last_ms[name] < since_ms:
                return
            texts = [groups[name] for groups in replies if name in groups]
            yield name, _merged([decoded(text, _GROUP) for text in texts])

    def _some_runs(self, namespace: str, names: Sequence[str], most: int) -> dict[str, tuple[str, ...]]:
        """At most `most` of the newest runs of each group (`fingerprint:version`), in two round trips."""
        partitions = range(self._keys.partitions)
        prints = list(dict.fromkeys(name.partition(":")[0] for name in names))
        sets = list(self._sets_of([f"{namespace}:failure:{each}" for each in prints]))
        commands = [("ZREVRANGE", each.key, 0, most - 1) for each in sets]
        replies = iter(map(checked, execute_all(self._client, commands) if commands and most else ()))
        found = {each: [id_ for _ in partitions for id_ in next(replies, ())] for each in prints}
        cards = self._cards(list(dict.fromkeys(id_ for ids in found.values() for id_ in ids)))
        samples = {}
        for name in names:
            fingerprint, _, version = name.partition(":")
            of_group = [id_ for id_ in found[fingerprint] if id_ in cards and cards[id_]["d"] == version]
            samples[name] = tuple(sorted(of_group, key=lambda id_: -cards[id_]["c"])[:most])
        return samples


def _test_of(field: str, value: str) -> Callable[[str], Any]:
    """Whether a text has this value, true or false as a condition."""
    if _PLAIN.fullmatch(value):
        return re.compile(f'"{field}":\\s*"{re.escape(value)}"').search
    return lambda text: decoded(text, _GROUP).get(field) == value


def _last_ms(text: str) -> float:
    found = _LAST.search(text)
    if found is None:
        raise RecordUnreadable(_GROUP, "", "damaged: it has no time of the last failure")
    return float(found[1])


def _merged(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A group of failures over several partitions."""
    return {
        **groups[0],
        "count": sum(group["count"] for group in groups),
        "first_ms": min(group["first_ms"] for group in groups),
        "last_ms": max(group["last_ms"] for group in groups),
    }
