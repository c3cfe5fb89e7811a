"""Complete stored runs, read in pages, for `export` and the archive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL
from sleipnir.runs.run import RunSpec
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys

FIRST = 16
"""Journal entries that are read with the record: most runs have no more and need one round trip."""

MOST = 64
"""Journal entries read at once."""

SPECS = 500
"""Specs read at once."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

MOST_BYTES = 1_000_000
"""After a larger page, the next one has fewer entries."""


@dataclass(frozen=True)
class StoredRun:
    """A run at one moment. `spec` is JSON text, `fields` are those of the run's hash, `entries` are the first ones of
    its journal, `children` the ids of its child runs, `output` the text of a completed run."""

    run: str
    spec: str
    fields: Mapping[str, str]
    entries: tuple[str, ...]
    children: tuple[str, ...]
    output: str | None

    @property
    def steps(self) -> int:
        """The number of journal entries at that moment."""
        return int(self.fields["step"]) + 1

    @property
    def is_final(self) -> bool:
        return self.fields["status"] in FINAL


@dataclass(frozen=True)
class PinnedDigests:
    """The digests that stored runs and waiting rows need: of bundles, including agents that they may still start, and
    of knowledge bases."""

    bundles: frozenset[str]
    bases: frozenset[str]

    @classmethod
    def of_spec(cls, text: str) -> PinnedDigests:
        """Those of a stored spec; of one that cannot be read every possible digest in it, because what it belongs to
        may continue."""
        try:
            spec = read_text(RunSpec, text, "spec")
        except RecordUnreadable:
            found = frozenset(_DIGEST.findall(text))
            return cls(found, found)
        return cls(frozenset((spec.bundle, *spec.agents.values())), frozenset(spec.knowledge.values()))

    def __or__(self, other: PinnedDigests) -> PinnedDigests:
        return PinnedDigests(self.bundles | other.bundles, self.bases | other.bases)


class Records:
    """Read-only; safe for concurrent readers."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def read(self, run_id: str) -> StoredRun | None:
        """None: there is no such run (any more)."""
        run = self._keys.of_run(run_id)
        pipe = self._client.pipeline(transaction=True)
        pipe.get(run.spec)
        pipe.hgetall(run.run)
        pipe.lrange(run.journal, 0, FIRST - 1)
        pipe.hkeys(run.children)
        pipe.get(run.output)
        spec, fields, entries, children, output = pipe.execute()
        if spec is None or not fields:
            return None
        completed = fields["status"] == "completed"
        runs = tuple(name for name in children if ":" not in name)
        return StoredRun(run_id, spec, fields, tuple(entries), runs, output if completed else None)

    def entries(self, record: StoredRun) -> Iterator[str]:
        """The journal as of the moment when the record was read. It ends early if the run expires meanwhile."""
        at = min(len(record.entries), record.steps)
        yield from record.entries[:at]
        count = FIRST
        journal = self._keys.of_run(record.run).journal
        while at < record.steps:
            page = self._client.lrange(journal, at, min(at + count, record.steps) - 1)
            if not page:
                return
            yield from page
            at += len(page)
            count = max(1, count // 2) if sum(map(len, page)) > MOST_BYTES else min(MOST, count * 2)

    def pinned(self) -> PinnedDigests:
        """The digests that all stored runs need. Reads every spec: some seconds for a million."""
        bundles: set[str] = set()
        bases: set[str] = set()
        for partition in range(self._keys.partitions):
            run_ids = self._client.zrange(self._keys.of_partition(partition).runs, 0, -1)
            for at in range(0, len(run_ids), SPECS):
                pipe = self._client.pipeline(transaction=False)
                for run_id in run_ids[at : at + SPECS]:
                    pipe.get(self._keys.of_run(run_id).spec)
                for text in filter(None, pipe.execute()):
                    of_run = PinnedDigests.of_spec(text)
                    bundles.update(of_run.bundles)
                    bases.update(of_run.bases)
        return PinnedDigests(frozenset(bundles), frozenset(bases))
