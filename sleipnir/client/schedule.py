"""Schedules: runs of an agent that start by themselves.

with Client() as client:
    report = client.schedule("report", "log-triage", "server.log", cron="0 7 * * 1-5", tz="Europe/Berlin")
    print(report.info().next)
    report.pause("the logs move to another host")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sleipnir.client import scheduled_rows
from sleipnir.client.batch import Batch
from sleipnir.client.run import Run
from sleipnir.client.schedule_audit import agent_values, entry_of, pause_values, plan_values
from sleipnir.errors import ScheduleNotFound, UsageError
from sleipnir.graph.duration import milliseconds
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.runs.budgets import Budget
from sleipnir.runs.shared_values import names_of
from sleipnir.schedules import firing
from sleipnir.schedules.firing import StartedRun
from sleipnir.schedules.records import (
    MOST_FIRES,
    MOST_REASON,
    Fire,
    Overlap,
    ScheduledRun,
    ScheduleInfo,
    ScheduleInputs,
    ScheduleOrigin,
    SchedulePause,
    SchedulePlan,
    ScheduleProgress,
    checked_name,
    checked_plan,
)
from sleipnir.schedules.times import moment_ms, zone
from sleipnir.store.schedules import ScheduledSpec, StoredSchedule, new_token

if TYPE_CHECKING:
    from sleipnir.client.options import RunOptions
    from sleipnir.client.preparation import Preparation, PreparedBatch
    from sleipnir.client.scheduled_rows import ScheduleRows
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

MOST_TRIES: Final = 50
"""A schedule that fires every second changes at most that often while a person edits it."""


@dataclass(frozen=True)
class WantedPlan:
    """What a caller says about the plan of a schedule; None: nothing."""

    cron: str | None = None
    every: float | str | None = None
    at: str | None = None
    tz: str | None = None
    overlap: Overlap | None = None
    catch_up: float | str | None = None
    jitter: float | str | None = None

    def applied(self, plan: SchedulePlan, now_ms: int) -> SchedulePlan:
        """The plan with these changes. Raises UsageError."""
        tz = plan.tz if self.tz is None else self.tz
        zone(tz)
        if any(each is not None for each in (self.cron, self.every, self.at)):
            every_ms = None if self.every is None else _duration_ms("every", self.every)
            at_ms = None if self.at is None else moment_ms(self.at, tz)
            plan = replace(plan, cron=self.cron, every_ms=every_ms, at_ms=at_ms, anchor_ms=now_ms)
        plan = replace(plan, tz=tz, overlap=self.overlap or plan.overlap)
        if self.catch_up is not None:
            latest = self.catch_up == LATEST
            plan = replace(plan, catch_up_ms=None if latest else _duration_ms("catch_up", self.catch_up))
        if self.jitter is not None:
            plan = replace(plan, jitter_ms=_duration_ms("jitter", self.jitter))
        return checked_plan(plan, now_ms)


LATEST: Final = "latest"
"""The catch-up window of a schedule that makes up for the last missed fire only."""


class Schedule:
    """One schedule of a deployment."""

    def __init__(self, store: Store, preparation: Callable[[], Preparation], settings: Settings, name: str, by: str):
        self._store, self._preparation, self._settings, self._by = store, preparation, settings, by
        self.name = name

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    def info(self) -> ScheduleInfo:
        """Its plan, its state and its next times. Raises ScheduleNotFound."""
        with self._store.errors():
            [info] = self._store.schedules.infos([self.name])
        if info is None:
            raise ScheduleNotFound(f"no schedule {self.name!r}")
        return info

    def fires(self, limit: int = MOST_FIRES) -> list[Fire]:
        """Its last fires, the newest first; at most 100 are kept."""
        with self._store.errors():
            return self._store.schedules.log(self.name, limit)

    def runs(self, limit: int = 10) -> list[ScheduledRun]:
        """The runs (or batches) of its last fires, the newest first, with their statuses."""
        started = [fire for fire in self.fires() if fire.outcome == "started" and fire.run is not None][:limit]
        if self.info().plan.batch is not None:
            with self._store.errors():
                batches = self._store.batches.infos([str(fire.run) for fire in started])
            return [
                ScheduledRun(str(fire.run), fire.at_ms, None, None if info is None else info.state)
                for fire, info in zip(started, batches, strict=True)
            ]
        with self._store.errors():
            statuses = self._store.schedules.statuses([str(fire.run) for fire in started])
        return [ScheduledRun(str(fire.run), fire.at_ms, status) for fire, status in zip(started, statuses, strict=True)]

    def pause(self, reason: str = "") -> None:
        """Let it fire no more until `resume`. Times that come meanwhile are not made up for."""
        if len(reason) > MOST_REASON:
            raise UsageError(f"a reason has at most {MOST_REASON} characters")

        def paused(stored: StoredSchedule, now_ms: int) -> ScheduleProgress:
            return replace(stored.progress, paused=SchedulePause(self._by, now_ms, reason))

        self._move(paused, reason)

    def resume(self) -> None:
        """Let a paused schedule fire again, from now on."""

        def resumed(stored: StoredSchedule, now_ms: int) -> ScheduleProgress:
            if stored.progress.paused is None:
                return stored.progress
            return firing.begun(stored.plan, replace(stored.progress, paused=None), now_ms)

        self._move(resumed)

    def remove(self, reason: str = "") -> None:
        """Remove it. Its runs go on. `reason` is for the audit. Raises ScheduleNotFound."""
        with self._store.errors():
            if not self._store.schedules.remove(self.name, entry=self._entry("removed", reason=reason)):
                raise ScheduleNotFound(f"no schedule {self.name!r}")

    def run_now(self) -> Run:
        """Start a run of it now, whatever its times, its pause and its overlap policy say. Raises UsageError for a
        schedule of batches."""
        started = self._fired_now("run")
        with self._store.errors():
            first = self._store.schedules.run_of(self.name, self._store.schedules.definition(self.name), started.at_ms)
            self._store.runs.create(started.run, *first)  # so that it is there: it is owed too
        return Run(self._store, started.run, self._settings)

    def batch_now(self) -> Batch:
        """The same for a schedule of batches. Raises UsageError for a schedule of runs."""
        started = self._fired_now("batch")
        with self._store.errors():
            token = self._store.schedules.get(self.name).origin.token
            self._store.scheduled_batches.start(self.name, token, started.run, started.at_ms)
        return Batch(self._store, started.run)

    def _fired_now(self, work: str) -> StartedRun:
        request = new_token()
        with self._store.errors():
            for _ in range(MOST_TRIES):
                stored, now_ms = self._read()
                if stored.plan.work != work:
                    works = {"run": "runs", "batch": "batches"}
                    raise UsageError(f"schedule {self.name!r} starts {works[stored.plan.work]}, not a {work}")
                decision = firing.decide_now(
                    self.name, stored.origin.token, stored.plan, stored.progress, now_ms, request=request, by=self._by
                )
                [started] = decision.starts
                entry = self._entry("fired", after={stored.plan.work: started.run})
                if self._store.schedules.apply(stored, decision, entry=entry):
                    return started
        raise self._busy()

    def edit(
        self,
        *,
        agent: str | Path | CompiledGraph | None = None,
        prompt: Any = None,
        state: Mapping[str, Any] | None = None,
        cron: str | None = None,
        every: float | str | None = None,
        at: str | None = None,
        tz: str | None = None,
        overlap: Overlap | None = None,
        catch_up: float | str | None = None,
        jitter: float | str | None = None,
        reason: str = "",
    ) -> None:
        """Change what is given; the parameters are those of Client.schedule. `reason` is for the audit.

        With `agent`, `prompt` or `state` the agent is read again, and later runs have its definition of now; `agent` is
        needed if it is not found here by its name. Variables, limits and the working directory stay. A fire that has
        been made, and whose run has not begun, starts with the new definition. Other times count from now on; a fire
        that waits stays.

        Raises like Client.schedule, and ScheduleNotFound; then nothing is changed.
        """
        wanted = WantedPlan(cron, every, at, tz, overlap, catch_up, jitter)
        definition = None
        if agent is not None or prompt is not None or state is not None:
            definition = self._redefined(agent, prompt, state)
        with self._store.errors():
            for _ in range(MOST_TRIES):
                stored, now_ms = self._read()
                plan = wanted.applied(stored.plan, now_ms) if wanted != WantedPlan() else stored.plan
                progress = stored.progress
                if plan.timing != stored.plan.timing:
                    progress = firing.begun(plan, progress, now_ms)
                origin = replace(stored.origin, edited_by=self._by, edited_ms=now_ms)
                before, after = plan_values(stored.plan), plan_values(plan)
                if definition is not None:
                    after |= agent_values(definition.spec)
                entry = self._entry("changed", before=before, after=after, reason=reason)
                if self._store.schedules.change(stored, plan, progress, origin, definition, entry=entry):
                    return
        raise self._busy()

    def _redefined(
        self, agent: str | Path | CompiledGraph | None, prompt: Any, state: Mapping[str, Any] | None
    ) -> ScheduledSpec:
        with self._store.errors():
            old = self._store.schedules.definition(self.name)
            if self._store.schedules.get(self.name).plan.batch is not None:
                raise UsageError(
                    f"schedule {self.name!r} has rows that were checked for its agent: remove it, and add it again"
                )
        return redefined(self._preparation(), self._store, old, agent, prompt, state)

    def _read(self) -> tuple[StoredSchedule, int]:
        return self._store.schedules.get(self.name), self._store.now_ms()

    def _entry(self, what: str, **fields: Any) -> str:
        return entry_of(what, self.name, self._by, **fields)

    def _move(self, change: Callable[[StoredSchedule, int], ScheduleProgress], reason: str = "") -> None:
        """Change its progress, however often it fires meanwhile."""
        with self._store.errors():
            for _ in range(MOST_TRIES):
                stored, now_ms = self._read()
                progress = change(stored, now_ms)
                if progress == stored.progress:
                    return
                origin = replace(stored.origin, edited_by=self._by, edited_ms=now_ms)
                what = "resumed" if progress.paused is None else "paused"
                before, after = pause_values(stored.progress), pause_values(progress)
                entry = self._entry(what, before=before, after=after, reason=reason)
                if self._store.schedules.change(stored, stored.plan, progress, origin, entry=entry):
                    return
        raise self._busy()

    def _busy(self) -> UsageError:
        return UsageError(f"schedule {self.name!r} changes all the time; try again")


def added(
    preparation: Preparation,
    store: Store,
    settings: Settings,
    name: str,
    agent: str | Path | CompiledGraph,
    prompt: Any,
    *,
    wanted: WantedPlan,
    state: Mapping[str, Any] | None,
    budget: Budget,
    options: RunOptions,
    by: str,
    rows: ScheduleRows | None = None,
) -> None:
    """Add a schedule. Raises like Client.schedule."""
    checked_name(name)
    with store.errors():
        now_ms = store.now_ms()
    plan = wanted.applied(SchedulePlan(), now_ms)
    if rows is not None:
        if prompt or state:
            raise UsageError("the rows of a schedule say what its runs begin with: leave out the prompt and the state")
        with store.errors():
            store.schedules.refuse_taken(name)
        of_batch = rows.plan(name, budget.max_cost_usd, budget.max_tokens)
        batch = preparation.batch(agent, None, of_batch, options).by(store.person)
        _add_of_rows(store, settings, name, plan, rows, batch, ScheduleOrigin(new_token(), by, now_ms))
        return
    run = preparation.run(agent, prompt, state=state, session=None, thread=None, budget=budget, options=options)
    if run.spec.thread is not None:
        raise UsageError("the runs of a schedule are in no thread: leave `thread_id` out of the configuration")
    origin = ScheduleOrigin(new_token(), by, now_ms)
    if isinstance(agent, CompiledGraph):
        inputs = _of_program(preparation, agent, prompt)
    else:
        inputs = ScheduleInputs(prompt, dict(state or {}), tuple(state or {}))
    with store.errors():
        preparation.offer(run.roster)
        entry = entry_of("added", name, by, after={**plan_values(plan), **agent_values(run.spec)})
        definition = ScheduledSpec(origin.token, run.spec.of_author(store.person.name), run.state, inputs)
        store.schedules.add(name, plan, origin, definition, now_ms, entry=entry)


def _add_of_rows(
    store: Store,
    settings: Settings,
    name: str,
    plan: SchedulePlan,
    given: ScheduleRows,
    batch: PreparedBatch,
    origin: ScheduleOrigin,
) -> None:
    plan = replace(plan, batch=scheduled_rows.stored(store, settings, batch, given, name, origin.token))
    entry = entry_of("added", name, origin.by, after={**plan_values(plan), **agent_values(batch.spec)})
    definition = ScheduledSpec(origin.token, batch.spec, {}, ScheduleInputs())
    try:
        with store.errors():
            store.schedules.add(name, plan, origin, definition, origin.at_ms, entry=entry)
    except UsageError:
        with store.errors():
            store.scheduled_batches.drop_staged(name, origin.token)
        raise


def redefined(
    preparation: Preparation,
    store: Store,
    old: ScheduledSpec,
    agent: str | Path | CompiledGraph | None,
    prompt: Any,
    state: Mapping[str, Any] | None,
) -> ScheduledSpec:
    """What later runs are submitted with; its bundles are offered."""
    from sleipnir.client.options import ForkChanges

    if isinstance(agent, CompiledGraph):
        if prompt is None:
            raise UsageError("give the input of the graph too: it is not kept")
        budget = Budget(old.spec.max_cost_usd, old.spec.max_tokens)
        cwd = None if old.spec.cwd is None else Path(old.spec.cwd)
        kept: RunOptions = {
            "strict": old.spec.strict, "cwd": cwd, "user": old.spec.user, "tags": old.spec.tags,
            "namespace": old.spec.namespace,
        }  # fmt: skip
        run = preparation.run(agent, prompt, state=state, session=None, thread=None, budget=budget, options=kept)
        spec, begin, roster, inputs = run.spec, run.state, run.roster, _of_program(preparation, agent, prompt)
    else:
        text = old.inputs.prompt if prompt is None else prompt
        given = old.inputs.state if state is None else state
        spec, _, found = preparation.fork(old.spec, ForkChanges(agent=old.spec.agent if agent is None else agent))
        assert found is not None, "it was named"
        with store.errors():
            shared = store.shared_values.for_state(names_of(spec)) if spec.scopes else {}
        begin, roster = preparation.agents.state_at_start(found.agent.sharing(shared), text, given), found
        inputs = ScheduleInputs(text, dict(given), tuple(given))
    with store.errors():
        preparation.offer(roster)
    return ScheduledSpec(old.token, spec.of_author(old.spec.author or ""), begin, inputs)


def _of_program(preparation: Preparation, graph: CompiledGraph, prompt: Any) -> ScheduleInputs:
    """The input of a graph that a program has built is not kept, only the names of the keys that it writes."""
    return ScheduleInputs(given=tuple(preparation.agents.written_by_input(graph, prompt)))


_DAYS: Final = re.compile(r"(\d{1,4})\s*d")


def _duration_ms(what: str, value: float | str) -> int:
    """`90s`, `5m`, `2h`, `1d`, or a number of seconds. Raises UsageError."""
    days = _DAYS.fullmatch(value.strip()) if isinstance(value, str) else None
    if days is not None:
        return int(days[1]) * 24 * 3_600_000
    try:
        return milliseconds(value)
    except ValueError:
        raise UsageError(f"{what}: {value!r:.40} is not a duration; write 90s, 5m, 2h or 1d") from None
