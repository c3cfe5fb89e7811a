"""Open questions and batches that are not listed by their namespace yet, or no longer to be: services/listing.py."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.store import namespaced
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import checked


@dataclass
class NamesPosition:
    """How far the comparison of an index with those of its namespaces is: the cursor of the index, and the namespaces
    whose own lists are compared with it afterwards, the last one with its cursor."""

    cursor: int = 0
    namespaces: list[str] = field(default_factory=list)
    behind: int = 0


class ListedNames(PartitionConnection):
    """Compare what is listed by namespace with the index of all."""

    def list_gates(self, partition: int, at: NamesPosition, count: int) -> bool:
        """Go on with about `count` open questions. Returns whether some may be missing in the lists of namespaces."""
        return self._list_some(self._of(partition).gates, at, count, partition)

    def list_batches(self, partition: int, at: NamesPosition, count: int) -> bool:
        """The same for batches."""
        return partition in self._keys.batch_partitions and self._list_some(
            self._of(partition).batches, at, count, None
        )

    def _list_some(self, index: str, at: NamesPosition, count: int, partition: int | None) -> bool:
        following, scored = self._client.zscan(index, at.cursor, count=count)
        at.cursor = int(following)
        names = [name for name, _ in scored]
        of_names = self._of_batches(names) if partition is None else self._of_gates(partition, names)
        for namespace, some in of_names.items():
            missing = namespaced.unlisted(self._client, index, namespace, some)
            namespaced.list_names(self._client, index, namespace, missing)
        [is_complete] = namespaced.is_complete(self._client, [index])
        if at.cursor == 0 and not is_complete:
            namespaced.note_complete(self._client, index)
        self._drop_some(index, at, count)
        return at.cursor != 0 and not is_complete

    def _drop_some(self, index: str, at: NamesPosition, count: int) -> None:
        """Go on with the names that a namespace lists and the index of all does not."""
        if not at.namespaces:
            known = self._client.smembers(namespaced.namespaces_of(index))
            at.namespaces, at.behind = sorted(known - {namespaced.COMPLETE}), 0
        if at.namespaces:
            namespace = at.namespaces[-1]
            key = namespaced.of_namespace(index, namespace)
            following, scored = self._client.zscan(key, at.behind, count=count)
            gone = namespaced.gone_among(self._client, index, [name for name, _ in scored])
            namespaced.list_names(self._client, index, namespace, gone)
            at.behind = int(following)
            if at.behind == 0:
                at.namespaces.pop()

    def _of_gates(self, partition: int, names: Sequence[str]) -> Mapping[str, list[str]]:
        """Questions by the namespaces of their runs. A run that is gone has none: `doctor` lists such questions."""
        runs = list(dict.fromkeys(name.rsplit("/", 1)[0] for name in names))
        return _by_namespace(names, self._specs([self._keys.of_run(run).spec for run in runs], runs), "/")

    def _of_batches(self, names: Sequence[str]) -> Mapping[str, list[str]]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hget(self._keys.of_batch(name).batch, "spec")
        return _by_namespace(names, dict(zip(names, pipe.execute(raise_on_error=False), strict=True)), None)

    def _specs(self, keys: Sequence[str], runs: Sequence[str]) -> dict[str, Any]:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.get(key)
        return dict(zip(runs, pipe.execute(raise_on_error=False), strict=True))


def _by_namespace(names: Sequence[str], specs: Mapping[str, Any], separator: str | None) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spec = checked(specs[name if separator is None else name.rsplit(separator, 1)[0]])
        if spec is not None:
            found[_namespace_in(spec)].append(name)
    return found


def _namespace_in(spec: str) -> str:
    """Of a record that cannot be read, `default`: an earlier release has written it, or a later one."""
    try:
        named = json.loads(spec).get("namespace", DEFAULT_NAMESPACE)
    except (ValueError, AttributeError):
        return DEFAULT_NAMESPACE
    return named if isinstance(named, str) else DEFAULT_NAMESPACE
