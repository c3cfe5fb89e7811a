"""Finds runs by what their cards say: lists of each partition, walked by time, newest first.

Each run is in a few sorted sets (lua/shared/lists.lua), with the time of its submission as the score: one of its
namespace by kind and standing, one of its agent by status, one of its version, and one for each tag, its batch, its
thread, its parent, its failure and its failed node. Whatever is asked, the smallest of the sets that hold all fitting
runs are walked, over all partitions at once, and the cards of the runs in them decide. As all sets are ordered by the
same time, one position is a cursor for every partition and for any choice of sets.

A query reads at most `look` cards, a bounded number per command: one that finds little says how far it came, and its
cursor goes on there. The sets of a status and a reason, an agent, a version or a tag are what makes most queries exact;
text, cost and the time of the end are compared on cards.

A partition in which some runs may have no card yet (services/listing.py, after an upgrade) is walked through the index
of all its runs; a missing card is then made of the run's record, which is slower, and counts are not exact.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import STATUSES
from sleipnir.runs.cards import STANDINGS, VERSION_CHARS, card_text, failure_fields
from sleipnir.runs.run import RunSpec
from sleipnir.runs.run_filters import (
    ANY_NAMESPACE,
    ListPosition,
    RunCount,
    RunCounts,
    RunFilter,
)
from sleipnir.store.connect import Client
from sleipnir.store.fast_client import execute_all
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_NEWEST_LISTED = LuaScript("newest_listed")
_LIST_SIZES = LuaScript("list_sizes")

LOOK = 2_000
"""Runs that one call looks at: some 20 ms."""
COUNTED = 10_000
"""Runs that one call counts by looking at them."""
FEW = 5_000
"""If the sets of something that is asked for besides a standing have no more runs, they are walked."""
MOST_OF_SET = 500
"""Members that are read of one set with one command."""
MOST_OF_SETS = 2_000
"""Members that are read of all sets of a partition with one script."""
MOST_OF_PAGE = 1_000
"""Cards that are read in one round trip."""
FIRST, _END = ListPosition(2**53, "~"), ListPosition(-1, "")


@dataclass(frozen=True)
class ListKey:
    """One sorted set to walk, and its partition."""

    partition: int
    key: str


@dataclass(frozen=True)
class FoundRuns:
    """Ids, newest first; `after`: where to go on, None: nothing is left; `looked`: how many were looked at."""

    ids: list[str]
    after: ListPosition | None
    looked: int


class ListWalk:
    """Walks sets together, newest first, after a position; those of a partition as one, with a script, because there
    may be dozens of each of hundreds of partitions. What was read of a partition is kept until it is its turn, and it
    is read again, more of it each time, when little of that is left."""

    def __init__(
        self, client: Client, sets: Sequence[ListKey], after: ListPosition, since_ms: int | None, limit: int
    ) -> None:
        keys: dict[int, list[str]] = defaultdict(list)
        for each in sets:
            keys[each.partition].append(each.key)
        self._client, self._keys, self._since_ms = client, list(keys.values()), since_ms
        self._after = [after] * len(keys)
        self._most = [max(4, min(MOST_OF_SET, MOST_OF_SETS // len(of))) for of in self._keys]
        self._sizes = [min(max(4, 2 * limit // len(keys) + 1), most) for most in self._most]
        self._read: list[list[ListPosition]] = [[] for _ in keys]  # the newest one last
        self._has_more = [True] * len(keys)

    @property
    def is_over(self) -> bool:
        """Whether all members were returned."""
        return not any(self._has_more) and not any(self._read)

    def next_page(self, most: int) -> list[ListPosition]:
        """The next members, each once, at most `most`; none: there are no more."""
        page: list[ListPosition] = []
        while not page and not self.is_over:
            self._read_more()
            # In a set that may have more members, all that are newer than the last one read are known.
            bounds = [last for last, has_more in zip(self._after, self._has_more, strict=True) if has_more]
            bound = max(bounds, default=_END)
            known: list[ListPosition] = []
            for read in self._read:
                first = bisect_left(read, bound)
                known += read[first:]
                del read[first:]
            known.sort(reverse=True)
            page = list(dict.fromkeys(known[:most]))
            self._give_back(known[most:])
        return page

    def _give_back(self, known: Sequence[ListPosition]) -> None:
        """What was read and is not part of the page: as if one set had it."""
        if known:
            self._read[0] += reversed(known)
            self._read[0].sort()

    def _read_more(self) -> None:
        low = [
            number
            for number, read in enumerate(self._read)
            if self._has_more[number] and len(read) <= self._sizes[number] // 8
        ]
        least = "-inf" if self._since_ms is None else self._since_ms
        vectors = []
        for number in low:
            first, *others = self._keys[number]
            args: dict[str, Arg] = {"most_ms": self._after[number].at_ms, "least_ms": least}
            vectors.append(_NEWEST_LISTED.vector({"first": first}, args | {"limit": self._sizes[number]}, others))
        for number, reply in zip(low, run_batch(self._client, _NEWEST_LISTED, vectors), strict=True):
            members = _positions(checked(reply))
            fresh = [member for member in members if member < self._after[number]]
            self._has_more[number] = len(members) == self._sizes[number]
            self._sizes[number] = min(4 * self._sizes[number], self._most[number])
            if fresh:
                self._after[number] = fresh[-1]
                self._read[number] = [*reversed(fresh), *self._read[number]]
            elif self._has_more[number]:
                self._sizes[number] = 8 * len(members)  # more runs than that were submitted in one ms


def _positions(reply: Sequence[Any]) -> list[ListPosition]:
    """Members with their scores, as either version of the protocol has them."""
    if reply and isinstance(reply[0], list | tuple):
        return [ListPosition(int(at_ms), run_id) for run_id, at_ms in reply]
    return [ListPosition(int(float(at_ms)), run_id) for run_id, at_ms in zip(reply[::2], reply[1::2], strict=True)]


class RunLists(RunConnection):
    """Queries of runs."""

    def found(self, wanted: RunFilter, limit: int, after: ListPosition | None = None, look: int = LOOK) -> FoundRuns:
        """The newest `limit` runs that fit, after a position. Some ms and one round trip per thousand runs looked at;
        another number of round trips to choose the sets."""
        position = after or FIRST
        for before_ms in (wanted.before_ms, wanted.ended_before_ms):  # what ended then was submitted before
            if before_ms is not None:
                position = min(position, ListPosition(before_ms, ""))
        sets = self._smallest(wanted)
        walk = ListWalk(self._client, sets, position, wanted.since_ms, limit)
        ids: list[str] = []
        looked = 0
        while page := walk.next_page(min(MOST_OF_PAGE, look - looked)):
            cards = self._cards([run_id for _, run_id in page])
            for position in page:
                looked += 1
                card = cards.get(position.run)
                if card is not None and wanted.fits(card):
                    ids.append(position.run)
                    if len(ids) == limit:
                        is_over = walk.is_over and position == page[-1]
                        return FoundRuns(ids, None if is_over else position, looked)
            if looked >= look:
                break
        return FoundRuns(ids, None if walk.is_over else position, looked)

    def found_all(self, wanted: RunFilter, after: ListPosition | None = None, page: int = 500) -> Iterator[str]:
        """All runs that fit, read lazily."""
        position = after
        while True:
            part = self.found(wanted, page, position)
            yield from part.ids
            if part.after is None:
                return
            position = part.after

    def count_found(self, wanted: RunFilter, look: int = COUNTED) -> RunCount:
        """How many runs fit. Exact and of the same cost for any number of runs if the sets say it: of a namespace by
        kinds, statuses and reasons, or of one agent (by statuses), version, tag, batch, thread, parent, failure or
        failed node, and for times of submission. Else at most `look` runs are looked at."""
        complete = self._complete()
        if all(complete) and wanted.namespace != ANY_NAMESPACE and (names := _exact(wanted)) is not None:
            pipe = self._client.pipeline(transaction=False)
            for each in self._sets_of(names):
                pipe.zcount(each.key, *_scores(wanted))
            return RunCount(sum(pipe.execute()), is_exact=True)
        position, count, looked = None, 0, 0
        while looked < look:
            part = self.found(wanted, look, position, look - looked)
            count, looked, position = count + len(part.ids), looked + part.looked, part.after
            if position is None:
                return RunCount(count, is_exact=True)
        return RunCount(count, is_exact=False)

    def count_standings(self, namespace: str, kinds: Sequence[str]) -> RunCounts:
        """How many runs have each standing, and the time of the oldest: sizes of sets, of the same cost for any
        number of runs."""
        names = [(standing, f"{namespace}:is:{kind}:{standing}") for standing in STANDINGS for kind in kinds]
        vectors = []
        for part in map(self._keys.of_partition, range(self._keys.partitions)):
            first, *others = [part.listed(name) for _, name in names]
            vectors.append(_LIST_SIZES.vector({"first": first}, {}, others))
        counts: dict[str, int] = {}
        oldest_ms: dict[str, int] = {}
        for reply in map(checked, run_batch(self._client, _LIST_SIZES, vectors)):
            for (standing, _), size, oldest in zip(names, reply[::2], reply[1::2], strict=True):
                if size:
                    counts[standing] = counts.get(standing, 0) + size
                    oldest_ms[standing] = min(oldest_ms.get(standing, 2**53), int(float(oldest)))
        return RunCounts(counts, oldest_ms, all(self._complete()))

    def known_tags(self, namespace: str, look: int = 200) -> list[str]:
        """`key=value` of the tags that the newest runs have, to complete what a person types."""
        walk = ListWalk(self._client, self._smallest(RunFilter(namespace)), FIRST, None, look)
        cards = self._cards([run_id for _, run_id in walk.next_page(look)]).values()
        return sorted({f"{key}={value}" for card in cards for key, value in card.get("t", {}).items()})

    # Choosing the sets

    def _complete(self) -> list[bool]:
        """Of each partition, whether all of its runs have cards."""
        keys = [self._keys.of_partition(partition).all_listed for partition in range(self._keys.partitions)]
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.exists(key)
        return [bool(reply) for reply in pipe.execute()]

    def _smallest(self, wanted: RunFilter) -> list[ListKey]:
        """The sets to walk: of several choices the one with the fewest runs in the wanted time."""
        complete = self._complete()
        if wanted.namespace == ANY_NAMESPACE:
            complete = [False] * len(complete)
        walked = [
            ListKey(partition, self._keys.of_partition(partition).runs)
            for partition, is_complete in enumerate(complete)
            if not is_complete
        ]
        if not any(complete):
            return walked
        choices = [list(self._sets_of(names, complete)) for names in _narrow(wanted)]
        sizes = self._sizes(choices, wanted)
        if not choices or min(sizes) > FEW:
            choices.append(list(self._sets_of(_by_standing(wanted), complete)))
            sizes += self._sizes(choices[-1:], wanted) if sizes else [0]
        return [*walked, *choices[sizes.index(min(sizes))]]

    def _sizes(self, choices: Sequence[Sequence[ListKey]], wanted: RunFilter) -> list[int]:
        """How many runs of the wanted time the sets of each choice have."""
        scores = _scores(wanted)
        commands = [("ZCOUNT", each.key, *scores) for choice in choices for each in choice]
        sizes = iter(map(checked, execute_all(self._client, commands) if commands else ()))
        return [sum(next(sizes) for _ in choice) for choice in choices]

    def _sets_of(self, names: Iterable[str], complete: Sequence[bool] | None = None) -> Iterator[ListKey]:
        parts = list(map(self._keys.of_partition, range(self._keys.partitions)))
        for name in names:
            for partition, part in enumerate(parts):
                if complete is None or complete[partition]:
                    yield ListKey(partition, part.listed(name))

    # Their cards

    def _cards(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The cards of these runs; of a run without one, a card that its record gives; none of a run that is gone."""
        by_partition: dict[int, list[str]] = defaultdict(list)
        for run_id in run_ids:
            by_partition[self._keys.partition_of(run_id)].append(run_id)
        pipe = self._client.pipeline(transaction=False)
        for partition, run_ids in by_partition.items():
            pipe.hmget(self._keys.of_partition(partition).cards, run_ids)
        texts = [
            (run_id, text)
            for run_ids, reply in zip(by_partition.values(), pipe.execute(), strict=True)
            for run_id, text in zip(run_ids, reply, strict=True)
        ]
        cards = {run_id: card for run_id, text in texts if (card := _read(text)) is not None}
        without = [run_id for run_id, _ in texts if run_id not in cards]
        return cards | (self.cards_of_records(without) if without else {})

    def cards_of_records(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Cards for runs that have none, by their records: exact, but for the reason of waiting."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            run = self._keys.of_run(run_id)
            pipe.get(run.spec)
            pipe.hmget(run.run, "status", "created_ms", "batch", "ended_ms", "error", "cost_usd")
        replies = pipe.execute(raise_on_error=False)
        found = {}
        for run_id, spec, fields in zip(run_ids, replies[::2], replies[1::2], strict=True):
            card = _card_of_record(spec, fields)
            if card is not None:
                found[run_id] = card
        return found


def _scores(wanted: RunFilter) -> tuple[float | str, float | str]:
    """The range of scores of the wanted times of submission."""
    least: float | str = "-inf" if wanted.since_ms is None else wanted.since_ms
    return least, "+inf" if wanted.before_ms is None else f"({wanted.before_ms}"


def _narrow(wanted: RunFilter) -> list[list[str]]:
    """The names of the sets for each thing that is asked for besides kinds and standings."""
    of, found = wanted.namespace, []
    if wanted.fingerprint is not None:
        found.append([f"{of}:failure:{wanted.fingerprint}"])
    if wanted.node is not None:
        found.append([f"{of}:node:{wanted.node}"])
    if wanted.parent is not None:
        found.append([f"{of}:parent:{wanted.parent}"])
    if wanted.thread is not None:
        found.append([f"{of}:thread:{wanted.thread}"])
    if wanted.batch is not None:
        found.append([f"{of}:batch:{wanted.batch}"])
    found += [[f"{of}:tag:{key}={value}"] for key, value in wanted.tags.items()]
    if wanted.version is not None and len(wanted.version) >= VERSION_CHARS:
        found.append([f"{of}:version:{wanted.version[:VERSION_CHARS]}"])
    if wanted.agents:
        statuses = sorted({standing.partition(":")[0] for standing in wanted.standings})
        found.append([f"{of}:agent:{status}:{agent}" for agent in sorted(wanted.agents) for status in statuses])
    return found


def _by_standing(wanted: RunFilter) -> list[str]:
    return [f"{wanted.namespace}:is:{kind}:{place}" for kind in wanted.kinds for place in wanted.standings]


def _exact(wanted: RunFilter) -> list[str] | None:
    """The sets that hold exactly the fitting runs. None: cards have to be compared."""
    on_cards = (
        wanted.text, wanted.cost_min, wanted.cost_max, wanted.ended_since_ms, wanted.ended_before_ms,
    )  # fmt: skip
    if any(each is not None for each in on_cards):
        return None
    if wanted.version is not None and len(wanted.version) < VERSION_CHARS:
        return None
    narrow = _narrow(wanted)
    if not narrow:
        return _by_standing(wanted)
    every_kind = (wanted.with_children and wanted.with_rows) or wanted.parent is not None or wanted.batch is not None
    every_standing = not wanted.reasons and (not wanted.statuses or bool(wanted.agents))
    return narrow[0] if len(narrow) == 1 and every_kind and every_standing else None


def _read(text: str | None) -> dict[str, Any] | None:
    """A stored card. None: there is none, or this release cannot use it."""
    try:
        card = None if text is None else json.loads(text)
    except ValueError:
        return None
    if not isinstance(card, dict) or not all(isinstance(card.get(name), str) for name in "asd"):
        return None
    return card if isinstance(card.get("c"), int | float) and isinstance(card.get("t", {}), dict) else None


def _card_of_record(spec: Any, fields: Any) -> dict[str, Any] | None:
    """A card from the replies of Redis. None: the run is gone. One whose spec cannot be read is of the agent `?`."""
    if not isinstance(fields, list) or fields[0] not in STATUSES:
        return None
    status, created_ms, batch, ended_ms, error, cost = fields
    try:
        submitted = read_text(RunSpec, spec or "", "spec")
    except RecordUnreadable:
        submitted = RunSpec("?", "?")
    more: dict[str, Any] = {"c": int(created_ms or 0)}
    if cost:
        more["u"] = float(cost)
    if ended_ms:
        more["e"] = int(ended_ms)
        if status == "failed":
            more |= failure_fields(submitted.agent, error or "", None)
    card: dict[str, Any] = json.loads(card_text(submitted, status, batch, **more))
    return card
