"""Read what is left after the chaos, and say what is wrong: every journal, every effect, every index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from sleipnir.client import Client, Run
from sleipnir.errors import RunNotFound
from sleipnir.store.connect import Client as RedisClient

Kind: TypeAlias = Literal["lost", "stuck", "double", "state", "effect", "leak"]

RunAgains: TypeAlias = Mapping[tuple[str, int], int]
"""How often the robot said `run again`, by run and visit."""


class Wrong(NamedTuple):
    """One broken promise."""

    kind: Kind
    text: str


def wrongs(
    client: Client, run_ids: Sequence[str], effects: Path, redis: RedisClient, run_agains: RunAgains | None = None
) -> list[Wrong]:
    """Empty when all promises were kept."""
    done = Counter(effects.read_text().split()) if effects.exists() else Counter()
    found: list[Wrong] = []
    for run_id in run_ids:
        try:
            found += of_run(client, client.run(run_id), done, run_agains or {})
        except RunNotFound:
            found.append(Wrong("lost", f"{run_id}: accepted, and not there"))
    return [*found, *leaks(client, redis)]


def of_run(client: Client, run: Run, effects: Counter[str], run_agains: RunAgains) -> Iterator[Wrong]:
    info = run.info()
    if not info.is_final:
        yield Wrong("stuck", f"{run.id}: {info.status}: {[visit.reason for visit in info.visits]}")
        return
    steps = run.history()
    if [step.step for step in steps] != list(range(len(steps))):
        yield Wrong("double", f"{run.id}: the journal has gaps or doubles: {[step.step for step in steps]}")
    seqs = [step.seq for step in steps if step.seq is not None]
    if len(set(seqs)) != len(seqs):
        yield Wrong("double", f"{run.id}: a visit is committed twice: {seqs}")
    if client.store.runs.fold(run.id) != run.state():
        yield Wrong("state", f"{run.id}: the state is not the fold of the journal")
    events = list(run.events(follow=False))
    lost = Counter(event.data["seq"] for event in events if event.type in ("worker_lost", "visit_handed_back"))
    failed = Counter(event.data["seq"] for event in events if event.type == "visit_retrying")
    for step in steps:
        if step.kind == "script" and step.seq is not None:
            count, most = effects[f"{run.id}/{step.seq}"], step.attempt
            if (step.node or "").startswith("once"):  # repeated only by a policy, or by a person's word
                most = min(most, 1 + failed[step.seq] + run_agains.get((run.id, step.seq), 0))
            if not step.attempt - lost[step.seq] <= count <= most:  # an attempt that was lost may not have run
                yield Wrong(
                    "effect", f"{run.id}: visit {step.seq} ({step.node}) ran {count} times in {step.attempt} attempts"
                )


def leaks(client: Client, redis: RedisClient) -> Iterator[Wrong]:
    """What should be empty once every run is over."""
    keys = client.store.keys
    for partition in range(keys.partitions):
        part = keys.of_partition(partition)
        if count := redis.xlen(part.inbox):
            yield Wrong("leak", f"{part.inbox}: {count} entries left")
        for key in (part.outbox, part.leases, part.timers, part.gates):
            if count := redis.zcard(key):
                yield Wrong("leak", f"{key}: {count} members left: {redis.zrange(key, 0, 3)}")
    for kind in ("frontier", "claims", "gates", "delta:*"):
        for key in redis.scan_iter(f"{keys.prefix}:*:run:*:{kind}", count=1000):
            yield Wrong("leak", f"{key}: left over")
