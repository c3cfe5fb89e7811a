"""Read what is left after the chaos, and say what is wrong: every journal, every effect, every index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sleipnir.client import Client, Run
from sleipnir.store.connect import Client as RedisClient


def wrongs(client: Client, run_ids: Sequence[str], effects: Path, redis: RedisClient) -> list[str]:
    """One line per broken promise; empty when all were kept."""
    done = Counter(effects.read_text().split()) if effects.exists() else Counter()
    found = [wrong for run_id in run_ids for wrong in of_run(client, client.run(run_id), done)]
    return [*found, *leaks(client, redis)]


def of_run(client: Client, run: Run, effects: Counter[str]) -> Iterator[str]:
    info = run.info()
    if not info.is_final:
        yield f"{run.id}: stuck as {info.status}: {[visit.reason for visit in info.visits]}"
        return
    steps = run.history()
    if [step.step for step in steps] != list(range(len(steps))):
        yield f"{run.id}: the journal has gaps or doubles: {[step.step for step in steps]}"
    seqs = [step.seq for step in steps if step.seq is not None]
    if len(set(seqs)) != len(seqs):
        yield f"{run.id}: a visit is committed twice: {seqs}"
    if client.store.runs.fold(run.id) != run.state():
        yield f"{run.id}: the state is not the fold of the journal"
    for step in steps:
        if step.kind == "script":
            count = effects[f"{run.id}/{step.seq}"]
            least = 0 if "WorkerLost" in (step.error or "") else 1
            if not least <= count <= step.attempt:
                yield f"{run.id}: visit {step.seq} ran {count} times in {step.attempt} attempts"


def leaks(client: Client, redis: RedisClient) -> Iterator[str]:
    """What should be empty once every run is over."""
    keys = client.store.keys
    for partition in range(keys.partitions):
        part = keys.of_partition(partition)
        if count := redis.xlen(part.inbox):
            yield f"{part.inbox}: {count} entries left"
        for key in (part.outbox, part.leases, part.timers, part.gates):
            if count := redis.zcard(key):
                yield f"{key}: {count} members left: {redis.zrange(key, 0, 3)}"
    for kind in ("frontier", "claims", "gates", "delta:*"):
        for key in redis.scan_iter(f"{keys.prefix}:*:run:*:{kind}", count=1000):
            yield f"{key}: left over"
