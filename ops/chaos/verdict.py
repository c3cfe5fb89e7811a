"""Read what is left after the chaos, and report violations in every journal, effect and index.

A run of a graph that must end in one way (graphs.py) is compared with a run of the same graph without faults: its
status, state and output, and how often each node ended well, per item. Runs that a person cancelled and runs in which a
visit lost more workers than allowed are not compared. The point at which a `dag` stops after a failed visit depends on
time: only the status of such runs is compared. So it does in the super-step in which another run fails, if not all of
it has a slot at once: of a failed run, only the visits of super-steps that have closed are counted. Failed visits, and
their values under ERRORS, are not counted: a node that fails now and then may fail where its worker dies before it
reports that. The visits of a fork include those of its source up to the step that it goes on from.
A fork of a `dag` may fold in another order than its source, because what that has written comes first: it is compared
with the same fork without faults.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from ops.chaos.graphs import ERRORS, kind_of
from sleipnir.client.client import Client, Run
from sleipnir.errors import RunNotFound
from sleipnir.runs.run import RUN_AGAIN
from sleipnir.runs.transitions import Step
from sleipnir.runs.views import RunInfo, StepInfo
from sleipnir.store.connect import Client as RedisClient

Kind: TypeAlias = Literal[
    "lost", "stuck", "double", "state", "differs", "effect", "leak",
    "again", "forgotten", "unreported", "dead",  # of poison.py
]  # fmt: skip

RunAgains: TypeAlias = Mapping[tuple[str, int], int]
"""How often the robot answered `run again`, by run and visit."""

UPDATE = 1
"""The visit of a fork that stands for the node whose writing it updates: no node is executed."""

OF_FAILED_RUNS = ("frontier", "items", "windows")
"""The data from which `retry` continues; kept as long as the run, also of child runs that were cancelled because it
failed."""


class Wrong(NamedTuple):
    """One broken promise."""

    kind: Kind
    text: str


Place: TypeAlias = tuple[str, str, int | None]
"""The node of a visit, its role, and the number of its item."""


class Ending(NamedTuple):
    """The outcome of a run. `visits` counts those that ended well, by node, role and number of the item."""

    status: str
    state: Mapping[str, Any]
    output: str | None
    visits: Counter[Place]

    @classmethod
    def of_run(cls, run: Run, info: RunInfo, steps: Sequence[StepInfo]) -> Ending:
        state = {key: value for key, value in run.state().items() if key not in ERRORS}
        return cls(info.status, state, run.output, ended_visits(info.status, steps, lambda step: step.checkpoint))

    def differences(self, quiet: Ending) -> Iterator[str]:
        """In words."""
        if self.status != quiet.status:
            yield f"{self.status} instead of {quiet.status}"
        for key in sorted(self.state.keys() | quiet.state.keys()):
            mine, other = self.state.get(key), quiet.state.get(key)
            if mine != other:
                yield f"{key} is {_short(mine)} instead of {_short(other)}"
        if self.output != quiet.output:
            yield f"output {_short(self.output)} instead of {_short(quiet.output)}"
        for place in sorted(self.visits.keys() | quiet.visits.keys(), key=str):
            if self.visits[place] != quiet.visits[place]:
                yield f"{place} ended {self.visits[place]} times instead of {quiet.visits[place]}"


S = TypeVar("S", Step, StepInfo)


def ended_visits(status: str, steps: Sequence[S], is_checkpoint: Callable[[S], bool]) -> Counter[Place]:
    """The visits that ended well; of a failed run, up to its last checkpoint."""
    closed = max((at for at, step in enumerate(steps, 1) if is_checkpoint(step)), default=0)
    return Counter(
        (step.node, step.role, step.item[1] if step.item else None)
        for step in steps[: closed if status == "failed" else None]
        if step.ok and step.node is not None
    )


Endings: TypeAlias = Mapping[str, Ending]
"""The outcomes of runs without faults, by agent."""


def endings(client: Client, run_ids: Sequence[str]) -> dict[str, Ending]:
    runs = [(client.run(run_id), client.run(run_id).info()) for run_id in run_ids]
    return {info.agent: Ending.of_run(run, info, run.history()) for run, info in runs}


def ending_of(run: Run) -> Ending:
    """How a fork without faults has ended."""
    return Ending.of_run(run, run.info(), [*run.past_steps(), *run.history()])


def wrongs(
    client: Client,
    run_ids: Sequence[str],
    effects: Path,
    redis: RedisClient,
    run_agains: RunAgains | None = None,
    quiet: Endings | None = None,
    forgotten: Mapping[str, int] | None = None,
    repeated: Mapping[str, str] | None = None,
) -> list[Wrong]:
    """Empty when all promises were kept. `forgotten`: so many executions of a visit (`run/seq`) may belong to a past
    that Redis does not remember. `repeated`: the same fork without faults, by fork; others end as their agent does in
    `quiet`."""
    done = Counter(effects.read_text().split()) if effects.exists() else Counter()
    violations: list[Wrong] = []
    for run_id in run_ids:
        try:
            run = client.run(run_id)
            info, steps = run.info(), run.history()
        except RunNotFound:
            violations.append(Wrong("lost", f"{run_id}: accepted, and not there"))
            continue
        except ValueError as error:
            violations.append(Wrong("state", f"{run_id}: its journal cannot be read: {error}"))
            continue
        if not info.is_final:
            reasons = [visit.reason for visit in info.visits]
            violations.append(Wrong("stuck", f"{run_id}: {info.agent} {info.status}: {reasons}"))
            continue
        violations += of_journal(client, run, steps)
        violations += of_emissions(run)
        fork = client.store.runs.spec(run_id).fork
        written = steps if fork is None or fork.update is None else [step for step in steps if step.seq != UPDATE]
        violations += of_effects(run, written, done, run_agains or {}, forgotten or {})
        if (ending := (quiet or {}).get(info.agent)) is not None:
            steps = [*run.past_steps(), *steps]
            infos = [info]
            if (same := (repeated or {}).get(run_id)) is not None:
                ending = ending_of(client.run(same))
                infos.append(client.run(same).info())
            if is_comparable(infos, steps):
                violations += of_ending(run, info, steps, ending)
    return [*violations, *leaks(client, redis)]


def of_journal(client: Client, run: Run, steps: Sequence[StepInfo]) -> Iterator[Wrong]:
    if [step.step for step in steps] != list(range(len(steps))):
        yield Wrong("double", f"{run.id}: the journal has gaps or doubles: {[step.step for step in steps]}")
    seqs = [step.seq for step in steps if step.seq is not None]
    if len(set(seqs)) != len(seqs):
        yield Wrong("double", f"{run.id}: a visit is committed twice: {seqs}")
    if client.store.runs.fold(run.id) != run.state():
        yield Wrong("state", f"{run.id}: the state is not the fold of the journal")


def of_effects(
    run: Run,
    steps: Sequence[StepInfo],
    effects: Counter[str],
    run_agains: RunAgains,
    forgotten: Mapping[str, int] | None = None,
) -> Iterator[Wrong]:
    events = list(run.events(follow=False))
    taken = ("worker_lost", "visit_handed_back", "visit_stopped", "visit_put_off")
    lost = Counter(event.data["seq"] for event in events if event.type in taken)
    failed = Counter(event.data["seq"] for event in events if event.type == "visit_retrying")
    decided = Counter(
        event.data["seq"] for event in events if event.type == "gate_answered" and event.data["answer"] != RUN_AGAIN
    )
    for step in steps:
        leaves_a_line = step.kind == "script" or (step.part is not None and step.part.tool == "leave")
        if leaves_a_line and step.seq is not None:
            place = f"{run.id}/{step.seq}"
            count, most, gone = effects[place], step.attempt, (forgotten or {}).get(place, 0)
            agains = run_agains.get((run.id, step.seq), 0)
            if (step.node or "").startswith("once"):  # repeated only by a policy or by a person's answer
                most = min(most, 1 + failed[step.seq] + agains)
            # A lost attempt may not have run. Neither may an attempt about which a person was asked before it started:
            # the run failed for another node and was retried, or the attempt was queued when Redis went back. The
            # person may have decided its outcome.
            # An attempt whose result was in the cache has not run, nor one that was put off until it would be, nor one
            # in whose place a callback gave a result.
            instead = step.cached or any(each.startswith("skipped by") for each in step.callbacks)
            least = step.attempt - max(lost[step.seq], agains) - decided[step.seq] - instead
            if not least <= count <= most + gone:
                yield Wrong(
                    "effect", f"{run.id}: visit {step.seq} ({step.node}) ran {count} times in {step.attempt} attempts"
                )


def of_emissions(run: Run) -> Iterator[Wrong]:
    """What a node emits is a view, of which anything may be missing, but nothing is out of order or there twice."""
    last: dict[int, tuple[int, int]] = {}
    for event in run.stream(["custom"]):
        if event.type == "custom" and event.data.get("type") == "told":
            place = event.data["attempt"], event.data["payload"]
            if place <= last.get(event.data["seq"], (0, 0)) and event.data["seq"] in last:
                yield Wrong("double", f"{run.id}: visit {event.data['seq']} emits {place} after {last}")
            last[event.data["seq"]] = place


def is_comparable(infos: Sequence[RunInfo], steps: Sequence[StepInfo]) -> bool:
    """`infos`: of the run, and of the same fork without faults; `steps`: of the run."""
    if any(info.forked_from is not None and "(limits.max_steps)" in (info.error or "") for info in infos):
        return False  # a fork has the limit anew, and so comes further than its source, the further the more retries
    return infos[0].status != "cancelled" and not any("WorkerLost" in (step.error or "") for step in steps)


def of_ending(run: Run, info: RunInfo, steps: Sequence[StepInfo], quiet: Ending) -> Iterator[Wrong]:
    ending = Ending.of_run(run, info, steps)
    if kind_of(info.agent) == "dag" and ending.status == quiet.status == "failed":
        return
    if differences := "; ".join(ending.differences(quiet)):
        yield Wrong("differs", f"{run.id}: {info.agent}: {differences}")


def leaks(client: Client, redis: RedisClient) -> Iterator[Wrong]:
    """Keys that must be empty when all runs have ended."""
    keys = client.store.keys
    for partition in range(keys.partitions):
        part = keys.of_partition(partition)
        for stream in (part.inbox, part.effects):
            if count := redis.xlen(stream):
                yield Wrong("leak", f"{stream}: {count} entries left")
        for key in (part.outbox, part.leases, part.timers, part.gates, part.slots, part.waits, part.awaited):
            if count := redis.zcard(key):
                yield Wrong("leak", f"{key}: {count} members left: {redis.zrange(key, 0, 3)}")
        if count := redis.get(part.waiting):
            yield Wrong("leak", f"{part.waiting}: {count} visits wait for events")
    for kind in ("frontier", "claims", "gates", "items", "windows", "delta:*"):
        for key in redis.scan_iter(f"{keys.prefix}:*:run:*:{kind}", count=1000):
            run_id = key.rpartition(":run:")[2].partition(":")[0]
            if not (kind in OF_FAILED_RUNS and _may_go_on(client, run_id)):
                yield Wrong("leak", f"{key}: left over")


def _may_go_on(client: Client, run_id: str | None) -> bool:
    """Whether a run has failed, or is a child run that was cancelled when its parent failed, or was cancelled so."""
    [info] = client.store.runs.find([run_id]) if run_id is not None else [None]
    if info is None:
        return False
    return info.status == "failed" or (info.status == "cancelled" and _may_go_on(client, info.parent))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
