"""Submit, watch, answer and cancel runs from Python. The command line is built on this module alone.

    from sleipnir import Client

    with Client() as client:
        run = client.submit("log-triage", "server.log")
        run.wait()
        print(run.output)

A client needs a running deployment (SLEIPNIR_REDIS_URL, or `settings`); `sleipnir.local.stack` starts a
private one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from sleipnir import tracing
from sleipnir.batches.records import DEFAULT_PRIORITY, BatchPlan
from sleipnir.client import replicas, run_queries
from sleipnir.client.conversations import Conversations
from sleipnir.client.run import Run, missing_for, pause_ms, wait_all
from sleipnir.errors import (
    AgentNotFound,
    BatchNotFound,
    Problem,
    RunNotFound,
    ScheduleNotFound,
    SessionBusy,
    ThreadBusy,
    UsageError,
)
from sleipnir.messages import FINAL, STATUSES
from sleipnir.runs.actor import Actor, Change
from sleipnir.runs.budgets import Budget
from sleipnir.runs.cards import checked_namespace
from sleipnir.runs.deployment_holds import DEPLOYMENT, ScopeHold
from sleipnir.runs.run import ID_LENGTH, Hold
from sleipnir.runs.run_filters import ANY_NAMESPACE, FailureGroup, PageOfRuns, RunCount, RunCounts, RunFilter
from sleipnir.runs.views import (
    DEFAULT_MODES,
    AgentInfo,
    GateInfo,
    Health,
    MissingProcesses,
    RunEvent,
    RunInfo,
    SessionInfo,
    StepInfo,
    StreamEvent,
    StreamMode,
)
from sleipnir.settings import Settings
from sleipnir.store.store import Store

MOST_TRIES: Final = 20  # of a submission to a thread that goes on with other turns meanwhile

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo
    from sleipnir.batches.rows import Row
    from sleipnir.client.access import Access
    from sleipnir.client.agent_judge import OnJudging
    from sleipnir.client.batch import Batch, Given, OnBad, OnProgress
    from sleipnir.client.gate_inbox import GateInbox
    from sleipnir.client.gate_links import GateLinks
    from sleipnir.client.hooks import Hooks
    from sleipnir.client.jobs import Jobs
    from sleipnir.client.mass_requests import OnSteered, SteeredRuns
    from sleipnir.client.options import RunOptions
    from sleipnir.client.preparation import Preparation, PreparedRun
    from sleipnir.client.run_queries import RunQuery
    from sleipnir.client.schedule import Schedule
    from sleipnir.client.schedule_pages import PageOfSchedules
    from sleipnir.client.scheduled_rows import ScheduleRows
    from sleipnir.client.webhooks import Webhooks
    from sleipnir.graph.model import Graph
    from sleipnir.graph.structure import Structure
    from sleipnir.knowledge import preparing as knowledge
    from sleipnir.models.limits import Limit as ModelLimit
    from sleipnir.models.limits import LimitChange, LimitUse
    from sleipnir.python_graph.compiled import CompiledGraph
    from sleipnir.python_graph.objects import GraphObjects
    from sleipnir.python_graph.snapshots import StateSnapshot, UpdateMode
    from sleipnir.runs.cached_results import CacheUse
    from sleipnir.runs.comparison import Comparison
    from sleipnir.runs.signals import SignalInfo, SignalReceipt
    from sleipnir.runs.throughput import Throughput
    from sleipnir.schedules.records import Overlap

PREFIX_LENGTH = 6
UNFINISHED = STATUSES - FINAL
MOST_COUNTED = 10_000  # runs that are counted one by one
AMONG = 2_000  # runs that a list looks at by default: there may be millions, and few that fit


class Client(Conversations):
    """A connection to a deployment: to its Redis, or with a URL to its HTTP API (sleipnir.client.http says what that
    has). Thread-safe. Opening it raises StoreUnavailable or ConfigError."""

    def __new__(cls, settings: Settings | str | None = None, **given: Any) -> Self:
        if isinstance(settings, str) and settings.startswith(("http://", "https://")):
            from sleipnir.client.http.client import client_class

            over_http: Any = client_class
            made: Self = object.__new__(over_http(cls))
            return made
        return super().__new__(cls)

    def __init__(
        self,
        settings: Settings | str | None = None,
        *,
        by: Actor | None = None,
        token: str | None = None,
        ca_file: Path | str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`by` is the actor for journals and records. None: the user of this process.

        With the URL of an HTTP API, `token` is the access token (None: that of SLEIPNIR_TOKEN or SLEIPNIR_TOKEN_FILE),
        which also says who acts, `ca_file` has the certificates of its authority (None: SLEIPNIR_CA_FILE, or those of
        the system), and a request fails after `timeout_s` without an answer (None: 60).
        """
        if settings is not None and not isinstance(settings, Settings):
            raise TypeError(
                f"Client takes Settings or the URL of an HTTP API, not {type(settings).__name__}; write "
                "Client(Settings(redis_url=...)), or set SLEIPNIR_REDIS_URL and write Client()"
            )
        if (token, ca_file, timeout_s) != (None, None, None):
            raise TypeError("token, ca_file and timeout_s are for the URL of an HTTP API")
        self.settings = settings or Settings.from_env()
        self.actor = by or Actor.here("python")
        self.by = str(self.actor)
        self.store = self._open_store()

    def _open_store(self) -> Store:
        return Store.open(self.settings, client_name="sleipnir-client", by=self.by, person=self.actor.person)

    def acting_as(self, by: Actor) -> Client:
        """This client, for requests of another actor, as a server makes them for its callers. It has the same
        connections: close this one only."""
        other = copy.copy(self)
        other.__dict__["_preparation"] = self._preparation
        other.actor, other.by = by, str(by)
        other.store = self.store.acting_as(other.by, by.person)
        return other

    @cached_property
    def _preparation(self) -> Preparation:
        """Prepares submissions. Imported lazily: programs that only read runs do not need it."""
        from sleipnir.client.preparation import Preparation

        return Preparation(self.settings, self.store)

    @property
    def access(self) -> Access:
        """Users, access tokens, logins and the audit. Imported lazily, as few programs need it."""
        from sleipnir.client.access import Access

        return Access(self.store, self.by)

    @property
    def gate_inbox(self) -> GateInbox:
        """The open questions of this person: claim, assign and snooze them."""
        from sleipnir.client.gate_inbox import GateInbox

        return GateInbox(self.store, self.settings)

    @property
    def gate_links(self) -> GateLinks:
        """Signed links, each for one question and one person."""
        from sleipnir.client.gate_links import GateLinks

        return GateLinks(self.store, self.settings, self.by)

    @property
    def webhooks(self) -> Webhooks:
        """Webhooks and their deliveries."""
        from sleipnir.client.webhooks import Webhooks

        return Webhooks(self.store, self.settings, self.by)

    @property
    def jobs(self) -> Jobs:
        """Requests to many runs, which a scheduler carries out."""
        from sleipnir.client.jobs import Jobs

        return Jobs(self.store, self.settings, self.actor, lambda: self._preparation)

    @property
    def hooks(self) -> Hooks:
        """What requests of other programs start."""
        from sleipnir.client.hooks import Hooks

        return Hooks(self.store, self.settings, self.by, self.submit, self.signal)

    def submit(
        self,
        agent: str | Path | CompiledGraph,
        prompt: Any = "",
        *,
        state: Mapping[str, Any] | None = None,
        session: str | None = None,
        thread: str | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        request_id: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Run:
        """Submit a run of `agent` (a name, the path of its folder, or a compiled graph).

        For a graph, `prompt` is the input of `graph.invoke`: a dict, or an instance of its state class. Workers get the
        Python files that its functions are in, and what these import from the same folder; submitting fails with
        GraphError, before anything is stored, for functions that they could not find there: lambdas, functions inside
        functions, those of notebooks. A program is imported by workers, so it submits below
        `if __name__ == "__main__":`.

        `prompt` becomes `{{initial_prompt}}`. `state` has initial values, which override the graph's `initial_state`:
        JSON, or datetime and bytes objects for keys declared so. `session` names a conversation: the run of a
        config.yaml agent continues it, and adds its messages to it if it completes. When the run, with the runs below
        that have ended, has cost `max_cost_usd` (without calls of unknown price) or used `max_tokens` (of prompts and
        answers), it is paused and asks whether it may continue: a gate of the kind `budget`, answered with `yes` (the
        same amount again), `no` (it fails) or a number (the new total limit).

        `options` are the keywords of sleipnir.RunOptions, which describes them: `variables`, `cwd`, `strict` and more.

        `thread` names a series of runs of a graph agent: this one begins with the state at the end of the last one,
        also of one that failed or was cancelled. If that is not over, it is refused, or with the key `session:
        {concurrent: queue}` of the agent accepted, and begins after it. `prompt` and `state` replace what the state
        has, and the input of a graph that is written in Python goes through its reducers. For such a graph with a
        checkpointer, `thread_id` of its `config` means the same.

        `request_id` names the submission: the same one again, after a lost reply or from another process, returns the
        run that it has, as long as that is kept. One that belongs to another agent, prompt or state is refused.

        Nothing is stored if this raises: AgentNotFound, GraphError (with all problems), BundleError, SessionBusy,
        ThreadBusy (the last run of the thread is not over, or another one has begun meanwhile), TooManyQueued,
        KnowledgeError, UsageError (prompt or state too large, variable missing, state missing or of the wrong type, a
        session of a graph, a base that cannot be built as the agent stands), StoreUnavailable. But the run is accepted
        if it raises NotReplicated: with the setting ack_wait_replicas, when a fail-over of Redis could still lose it.
        """
        budget = Budget(max_cost_usd, max_tokens)
        given: dict[str, Any] = {"state": state, "session": session, "thread": thread, "options": options}
        if request_id is None:
            return self._replicated(self._submitted(agent, prompt, budget=budget, **given))
        run_id, is_known = self._preparation.requested(request_id, agent, prompt, **given)
        if not is_known:
            try:
                return self._replicated(self._submitted(agent, prompt, budget=budget, run_id=run_id, **given))
            except (SessionBusy, ThreadBusy):  # perhaps with the same request, which another process submits
                if not self._preparation.requested(request_id, agent, prompt, **given)[1]:
                    raise
        return self._replicated(Run(self.store, run_id, self.settings))

    def _replicated(self, run: Run) -> Run:
        """The same run, once as many replicas have it as the settings ask for."""
        replicas.confirm(self.store, self.settings, run.id, "accepted", with_agent=True)
        return run

    def _submitted(self, agent: str | Path | CompiledGraph, prompt: Any, **given: Any) -> Run:
        """`given` are the other parameters of Preparation.run."""
        for tries_left in reversed(range(MOST_TRIES)):
            run = self._preparation.run(agent, prompt, **given).by(self.actor.person)
            try:
                self._create(run)
            except ThreadBusy:
                if not (tries_left and run.may_be_queued):
                    raise
            else:
                break
        return Run(self.store, run.id, self.settings)

    def _create(self, run: PreparedRun) -> None:
        with tracing.submitting(run.spec.agent, run.id), self.store.errors():
            self._preparation.offer(run.roster)
            if run.spec.thread is None:
                self.store.runs.create(run.id, run.spec, run.state)
            elif run.queued is None:
                self.store.threads.start(run.id, run.spec, run.state, run.last)
            else:
                self.store.threads.queue(run.id, run.spec, run.state, run.queued)

    def batch(
        self,
        agent: str | Path | CompiledGraph,
        rows: Iterable[Given],
        *,
        id: str | None = None,  # as everywhere, it is what a thing is known by
        key: str | None = None,
        name: str = "",
        priority: int = DEFAULT_PRIORITY,
        parallel: int | None = None,
        canary: int | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        on_bad: OnBad | None = None,
        on_progress: OnProgress | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch:
        """Submit a run of `agent` for each row; the batch starts while rows are added.

        A row is a mapping of columns: `prompt`, and initial values of state keys; `sleipnir.rows.read` reads rows from
        files. A row of a graph that a program has built is an input, as for `submit`. `rows` is iterated once and never
        held as a whole. `key` names the column that identifies rows; default: their numbers (the first one is 1).

        `id` names the batch (None: by a new id). If a batch of that id exists, this continues it: rows whose keys it
        has are not added again, and the others run with the agent and the plan of the first submission. So an
        interrupted submission can be repeated. `name` is for people. Batches with waiting rows share the workers in
        proportion to their `priority` (1 to 5). At most `parallel` rows are active at once (None: 1,000), including
        rows that wait for people. `canary` rows run first, then the batch waits for `resume`; the same happens when
        ended rows have cost `max_cost_usd` or used `max_tokens`. `options` are as for `submit`; rows, and the runs that
        they start, are in no session.

        A row that cannot run is left out and passed to `on_bad`; `on_progress` is called after each few hundred rows.

        Raises like `submit`, and then nothing is stored; also UsageError if no row is valid. Exceptions of the iterable
        are passed on, and earlier rows stay in the batch, as do all rows if it raises NotReplicated.
        """
        from sleipnir.client.batch import Batch, RowSubmission

        plan = BatchPlan(name, priority, parallel, canary, max_cost_usd, max_tokens)
        batch = self._preparation.batch(agent, id, plan, options).by(self.actor.person)
        submission = RowSubmission(self.store, self.settings, batch, on_bad=on_bad, on_progress=on_progress)
        submission.add_all(rows, key)
        return Batch(self.store, batch.id, submission.so_far)

    def fork_batch(
        self,
        batch: Batch | str,
        *,
        at: int | None = None,
        before: str | None = None,
        failed: bool = False,
        where: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        patches: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        id: str | None = None,
        name: str = "",
        priority: int = DEFAULT_PRIORITY,
        parallel: int | None = None,
        canary: int | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        on_bad: OnBad | None = None,
        on_progress: OnProgress | None = None,
    ) -> Batch:
        """Submit a batch whose rows are forks of the runs of the rows of `batch`, with the same keys.

        Each goes on as with Run.fork: `at`, `before`, `state`, `agent`, `model`, `overrides`, `patches` and `tags`
        are as there. Rows that have not started are left out; `failed` takes only failed ones, `where` those for which
        a CEL expression is true, over `key`, `row` (from 1), `status`, `output`, `error`, `tokens`, `cost`, `seconds`,
        `path`, `state` and `variables`. The fork of a row is made when the row is admitted; one that is refused is a
        failed row.

        The other parameters are as for `batch`. With an `id` this can be repeated: rows that the batch has are not
        added again. Rows that are left out because they have no run, or because the expression fails, are passed to
        `on_bad`. Raises BatchNotFound, UsageError (also if no row is chosen), and like Run.fork for what concerns all
        rows.
        """
        from sleipnir.client.batch import Batch
        from sleipnir.client.batch_forks import BatchForking, row_choice
        from sleipnir.client.options import ForkChanges

        source = (self.open_batch(batch) if isinstance(batch, str) else batch).id
        plan = BatchPlan(name, priority, parallel, canary, max_cost_usd, max_tokens)
        forking = BatchForking(self.store, source, row_choice(failed, where), on_bad=on_bad, on_progress=on_progress)
        changes = ForkChanges(state or {}, agent, model, overrides, patches, tags=tags)
        made = forking.submit(self._preparation, id, plan, at=at, before=before, changes=changes)
        return Batch(self.store, made, forking.so_far)

    def open_batch(self, batch_id: str, *, namespace: str = ANY_NAMESPACE) -> Batch:
        """The batch of that id, of that name (among the newest 1,000), or of that unique prefix of an id, of at least 6
        characters. `namespace`: no others are there. Raises BatchNotFound."""
        from sleipnir.client.batch import Batch

        of = run_queries.one_namespace(namespace, namespace)
        with self.store.errors():
            spec = self.store.batches.spec(batch_id)
            if spec is not None and of in (None, spec.namespace):
                return Batch(self.store, batch_id)
            found = [info.id for info in self.store.batches.recent(1_000, of) if info.name == batch_id]
            if not found and len(batch_id) >= PREFIX_LENGTH:
                found = self.store.batches.ids_starting_with(batch_id, namespace=of)
        if len(found) != 1:
            several = f"{len(found)} batches are called {batch_id!r}, or start with it: {', '.join(found)}"
            raise BatchNotFound(several if found else f"no batch {batch_id!r}")
        return Batch(self.store, found[0])

    def batches(self, limit: int = 50, *, namespace: str | None = None, after: str | None = None) -> list[BatchInfo]:
        """Batches, the newest first. `namespace` as that of `runs`. `after` is the id of a batch, the last one of the
        page before: those that began before it. Raises BatchNotFound if that one has expired."""
        with self.store.errors():
            of = run_queries.one_namespace(namespace, self.settings.namespace)
            return self.store.batches.recent(limit, of, after)

    def schedule(
        self,
        name: str,
        agent: str | Path | CompiledGraph,
        prompt: Any = "",
        *,
        cron: str | None = None,
        every: float | str | None = None,
        at: str | None = None,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: float | str | None = None,
        jitter: float | str = 0,
        state: Mapping[str, Any] | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        rows: ScheduleRows | None = None,
        **options: Unpack[RunOptions],
    ) -> Schedule:
        """Add a schedule: runs of `agent` start by themselves, with the definition that it has now.

        The times are those of one of: `cron`, an expression with five fields, read in the time zone `tz`; `every`, an
        interval from now on (seconds, or a text such as `90s`, `2h`, `1d`); `at`, one date and time
        (`2026-12-01T07:00`) in `tz`. A scheduler fires each once, whatever dies.

        `overlap` says what happens if the run of the fire before is not over: `skip` the new one, `queue` it (one at
        most), `allow` both, `cancel` the old one. Fires that no scheduler made for more than a minute are missed: only
        the last one is made up for; with a window `catch_up`, all in that. Each fire is put off by a part of `jitter`,
        which depends on the name and the time only.

        With `rows` each fire submits a batch of them, once; the budget is that of a batch. The rows are checked and
        stored now; there are at most 10,000, and one that cannot be run refuses the schedule.

        The other parameters are those of `submit`. Raises like that, and UsageError for a name that is taken and for
        times that are wrong or never come; nothing is stored then.
        """
        from sleipnir.client.schedule import WantedPlan, added

        wanted = WantedPlan(cron, every, at, tz, overlap, catch_up, jitter)
        budget = Budget(max_cost_usd, max_tokens)
        given: dict[str, Any] = {"state": state, "options": options, "by": self.by, "rows": rows}
        added(self._preparation, self.store, self.settings, name, agent, prompt, wanted=wanted, budget=budget, **given)
        return self._schedule(name)

    def open_schedule(self, name: str) -> Schedule:
        """The schedule of that name. Raises ScheduleNotFound."""
        with self.store.errors():
            [info] = self.store.schedules.infos([name])
        if info is None:
            raise ScheduleNotFound(f"no schedule {name!r:.80}; `sleipnir schedule ls` lists them")
        return self._schedule(name)

    def schedules(
        self, limit: int | None = None, *, after: str | None = None, namespace: str | None = None
    ) -> PageOfSchedules:
        """Schedules by name: all, or a page of at most `limit` after the cursor `after`, which is that of the page
        before. `namespace`: only those whose runs are in it."""
        from sleipnir.client.schedule_pages import page_of

        with self.store.errors():
            return page_of(self.store, limit, after, namespace)

    def _schedule(self, name: str) -> Schedule:
        from sleipnir.client.schedule import Schedule

        return Schedule(self.store, lambda: self._preparation, self.settings, name, self.by)

    def prepare_knowledge(
        self,
        agent: str | Path,
        *,
        ask_knowledge: knowledge.Asker | None = None,
        tell_knowledge: knowledge.Report | None = None,
    ) -> None:
        """Build the missing knowledge bases of `agent`, like `submit`, and with its errors, so that a later submission
        does not wait."""
        self._preparation.knowledge(self._preparation.agents.roster(agent), ask_knowledge, tell_knowledge)

    def definition(self, agent: str | Path) -> Graph:
        """The agent's current definition from its folder and the environment, checked. Raises AgentNotFound, GraphError
        and BundleError."""
        return self._preparation.agents.agent(agent).graph

    def structure(self, agent: str | Path | CompiledGraph) -> Structure:
        """The nodes, edges and surfaces of an agent, with those of the agents that its nodes name. Raises as
        `definition` does."""
        return self._preparation.agents.structure(agent)

    def nodes(self, agent: str | Path) -> set[str]:
        """The names of the nodes of the agent and of all that its runs may start, as the folders are now. Raises as
        `definition` does."""
        roster = self._preparation.agents.roster(agent)
        whole = [each.graph for each in (roster.agent, *roster.children.values())]
        return {node for graph in whole for each in (graph, *graph.graphs.values()) for node in each.nodes}

    def warnings(self, agent: str | Path) -> list[Problem]:
        """The warnings for an agent that can run, and for agents that its nodes name. Raises like `submit` for an agent
        that cannot."""
        roster = self._preparation.agents.roster(agent)
        return [problem for each in (roster.agent, *roster.named.values()) for problem in each.warnings]

    def get_state(
        self, agent: str | Path | CompiledGraph, config: Mapping[str, Any] | str, *, namespace: str | None = None
    ) -> StateSnapshot:
        """The newest checkpoint of a thread of `agent`, or the one that `config` names. `config` is that of LangGraph,
        `{"configurable": {"thread_id": "ann"}}`, with a `checkpoint_id` as snapshots have it (`RUN:STEP`), or the name
        of the thread, in a `namespace` (None: that of SLEIPNIR_NAMESPACE, or `default`).

        `values` are in their JSON form; for a compiled graph those that its nodes see. A visit that has ended, in a
        super-step that has not, has its writes as the `result` of its task; they count in `values` when that closes. A
        thread that does not exist has an empty snapshot. Raises UsageError for another configuration, a checkpoint that
        does not exist, and runs of the engine `dag`; RunNotFound for one that has expired.
        """
        from sleipnir.client.state_snapshots import ThreadSnapshots, place_of

        name, objects = self._states_of(agent)
        with self.store.errors():
            return ThreadSnapshots(self.store, objects).one(
                place_of(name, config, checked_namespace(namespace or self.settings.namespace))
            )

    def get_state_history(
        self,
        agent: str | Path | CompiledGraph,
        config: Mapping[str, Any] | str,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        limit: int | None = None,
        namespace: str | None = None,
    ) -> Iterator[StateSnapshot]:
        """The checkpoints of a thread, newest first, as far back as its runs are stored: those whose metadata has the
        values of `filter`, older than that of the configuration `before`, at most `limit`. They are read in pages.
        Raises as `get_state`."""
        from sleipnir.client.state_snapshots import ThreadSnapshots, chosen, place_of

        name, objects = self._states_of(agent)
        of = checked_namespace(namespace or self.settings.namespace)
        place, older = place_of(name, config, of), None if before is None else place_of(name, before, of)
        snapshots = ThreadSnapshots(self.store, objects).newest_first(place, older)
        with self.store.errors():
            yield from chosen(snapshots, filter, limit)

    def update_state(
        self,
        agent: str | Path | CompiledGraph,
        config: Mapping[str, Any] | str,
        values: Mapping[str, Any],
        as_node: str | None = None,
        *,
        mode: UpdateMode = "reduce",
        namespace: str | None = None,
    ) -> Run:
        """Begin the next turn of a thread as if the node `as_node` had written `values`, after its last checkpoint or
        the one that `config` names; see Run.update_state. Raises as that does; ThreadBusy if the last run of the thread
        is not over: cancel it, or update that run; and UsageError if there is no such thread."""
        from sleipnir.client.state_snapshots import ThreadSnapshots, place_of

        name, objects = self._states_of(agent)
        place = place_of(name, config, checked_namespace(namespace or self.settings.namespace))
        with self.store.errors():
            run_id = ThreadSnapshots(self.store).run_of(place)
        if run_id is None:
            raise UsageError(f"agent {name!r} has no thread {place.thread.name!r}: submit its first turn")
        if objects is not None and isinstance(values, Mapping):
            values = objects.encoded(values)
        run = Run(self.store, run_id, self.settings)
        return run.update_state(values, as_node, mode=mode, at=place.step, thread=place.thread.name)

    def _states_of(self, agent: str | Path | CompiledGraph) -> tuple[str, GraphObjects | None]:
        """The name of an agent, and the objects of its state if it is a graph of this program."""
        if isinstance(agent, str) and "/" not in agent:
            return agent, None
        prepared = self._preparation.agents.agent(agent)
        return prepared.folder.name, None if isinstance(agent, str | Path) else agent.objects

    def signal(self, name: str, data: Any = None, *, id: str | None = None) -> SignalReceipt:
        """Send a signal: the visits that wait for the event `name` get it, with this JSON `data`.

        `id` makes a repetition safe: a signal whose id is known (for a day or so) changes nothing. None: a new id.
        Names have letters, digits and `_ . : / @ -`. Raises UsageError, and nothing is sent.
        """
        from sleipnir.runs.signals import data_text, new_id, refuse

        refuse(name, id)
        with self.store.errors():
            return self.store.signals.send(name, new_id() if id is None else id, data_text(data))

    def signals(self, limit: int = 50) -> list[SignalInfo]:
        """The signals that were sent last, newest first; about 1,000 of each partition are remembered."""
        with self.store.errors():
            return self.store.signals.recent(limit)

    def run(self, run_id: str) -> Run:
        """The run of that id, or of that unique prefix of at least 6 characters. Raises RunNotFound."""
        with self.store.errors():
            if len(run_id) == ID_LENGTH:
                self.store.runs.info(run_id)
                return Run(self.store, run_id, self.settings)
            if len(run_id) < PREFIX_LENGTH:
                raise RunNotFound(
                    f"no run {run_id!r}: a run id has {ID_LENGTH} characters, a prefix at least {PREFIX_LENGTH}"
                )
            found = self.store.runs.ids_starting_with(run_id)
        if len(found) != 1:
            several = f"{len(found)} runs start with {run_id!r}: {', '.join(found)}"
            raise RunNotFound(several if found else f"no run starts with {run_id!r}")
        return Run(self.store, found[0], self.settings)

    def missing(self, run_ids: Sequence[str]) -> MissingProcesses:
        """The missing processes that these runs, or runs that they wait for, need; see Run.missing."""
        return missing_for(self.store, run_ids)

    def as_they_end(self, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
        """Each of these runs when it has ended; thousands of them need one blocking read. Raises RunNotFound at once
        for an unknown run, and TimeoutError after `timeout_s`."""
        return wait_all(self.store, run_ids, timeout_s)

    def stream(
        self,
        run: Run | str,
        modes: Collection[StreamMode] | None = DEFAULT_MODES,
        cursor: str | None = None,
        *,
        terminal_only: bool = False,
        lifecycle: bool = True,
        final_messages: bool = False,
        subgraphs: bool = False,
        event_scope: str | None = None,
    ) -> Iterator[StreamEvent]:
        """The stream of a run, or of the run of that id or unique prefix: see Run.stream."""
        handle = self.run(run) if isinstance(run, str) else run
        return handle.stream(
            modes,
            cursor,
            terminal_only=terminal_only,
            lifecycle=lifecycle,
            final_messages=final_messages,
            subgraphs=subgraphs,
            event_scope=event_scope,
        )

    def runs(
        self,
        limit: int = 50,
        status: Collection[str] | None = None,
        *,
        among: int = AMONG,
        after: str | None = None,
        **query: Unpack[RunQuery],
    ) -> PageOfRuns:
        """Runs, newest first: a list, whose `after` is the cursor of the next page; None: there is none.

        `status` are the wanted statuses (None: all), `query` the other keywords that choose runs (RunQuery describes
        them). Child runs fit only with `children` or a `parent`. At most `among` runs are looked at: a page with a
        cursor and few runs, or none, says that few of the `looked` ones fit. Looking is by lists of the runs that have
        a status and a reason, an agent, a version, a tag and so on: the shortest one that holds all fitting runs.

        Raises UsageError for what is no cursor, status, reason, tag or namespace.
        """
        if status is not None and not status:
            return PageOfRuns()
        with self.store.errors():
            return run_queries.page_of(self.store, self._filter(status, query), limit, after, among)

    def run_count(
        self, status: Collection[str] | None = None, *, among: int = MOST_COUNTED, **query: Unpack[RunQuery]
    ) -> RunCount:
        """The number of stored runs that fit, chosen as in `runs`, but with child runs unless `children` is False.

        It is the size of lists, of the same cost for any number of runs, for kinds (`rows`, `children`), statuses and
        reasons; or for one of agents (also with statuses), version, tag, batch, thread, parent, node and fingerprint,
        with rows and children; and for times of submission. Other runs are counted one by one, up to `among`: then the
        number is a least one, and its `is_exact` is False.
        """
        with self.store.errors():
            wanted = self._filter(status, query, children=True)
            return self.store.runs.count_found(wanted, among)

    def run_counts(self, *, namespace: str | None = None, children: bool = False, rows: bool = True) -> RunCounts:
        """The numbers of runs by status and reason, and the age of the oldest of each: for an overview. Of the same
        cost for any number of runs. Raises UsageError for the namespace `*`: `run_count` counts in all."""
        with self.store.errors():
            wanted = self._filter(None, {"namespace": namespace, "children": children, "rows": rows})
            if wanted.namespace == ANY_NAMESPACE:
                raise UsageError("the numbers of all statuses are of one namespace: name one, or count with filters")
            return self.store.runs.count_standings(wanted.namespace, wanted.kinds)

    def failures(
        self,
        *,
        agent: str | None = None,
        node: str | None = None,
        since_ms: int | None = None,
        limit: int = 50,
        namespace: str | None = None,
        fingerprint: str | None = None,
    ) -> list[FailureGroup]:
        """The failed runs in groups that failed alike, those that failed last first: at the same node of the same
        version of an agent, with the same message but for numbers, ids and quoted values. `since_ms`: only groups in
        which a run failed since then. `fingerprint`: only this failure, in all versions. `runs(fingerprint=...)` lists
        the runs of a group. A namespace has at most 200 groups in each partition; failures beyond are in groups with
        the fingerprint `other`. Raises UsageError for the namespace `*`: groups are of one."""
        from sleipnir.client.discarding import with_notes

        with self.store.errors():
            wanted = self._filter(None, {"namespace": namespace})
            if wanted.namespace == ANY_NAMESPACE:
                raise UsageError("failures are grouped in each namespace: name one")
            read = self.store.runs.failure_groups
            groups = read(wanted.namespace, agent, node, since_ms, limit, fingerprint=fingerprint)
            return with_notes(self.store, wanted.namespace, groups)

    def discard_failures(self, fingerprint: str, note: str, *, namespace: str | None = None) -> None:
        """Note that the failures of a group up to now are dealt with, in all versions, and how: `failures` has this as
        `discarded`, until another run fails so. The runs stay as they are. Raises UsageError if no failed run has this
        fingerprint."""
        from sleipnir.client.discarding import discard

        of = checked_namespace(namespace or self.settings.namespace)
        with self.store.errors():
            discard(self.store, self.settings, of, fingerprint, note, self.by)

    def reopen_failures(self, fingerprint: str, *, namespace: str | None = None) -> None:
        """Take the note of `discard_failures` back. Safe to repeat."""
        from sleipnir.client.discarding import discard

        of = checked_namespace(namespace or self.settings.namespace)
        with self.store.errors():
            discard(self.store, self.settings, of, fingerprint, None, self.by)

    def pause_runs(
        self,
        /,
        status: Collection[str] | None = None,
        *,
        reason: str | None = None,
        timeout: float | None = None,
        on_progress: OnSteered | None = None,
        **query: Any,
    ) -> SteeredRuns:
        """Pause all runs that are not over and fit, as Run.pause does; how many. `status` and `query` choose them as in
        `runs`, but `reason` is that of the pause. Runs that are submitted meanwhile may be left out; `pause_all` pauses
        the deployment with all future runs. Child runs pause with their parents. Safe to repeat; `on_progress` is
        called after each page."""
        from sleipnir.client import mass_requests

        timeout_ms = pause_ms(timeout)
        with self.store.errors():
            found = self._all_runs(UNFINISHED if status is None else UNFINISHED & set(status), query)
            runs = self.store.runs
            return mass_requests.pause(runs, found, reason=reason, timeout_ms=timeout_ms, on_progress=on_progress)

    def resume_runs(self, *, on_progress: OnSteered | None = None, **query: Unpack[RunQuery]) -> SteeredRuns:
        """Resume all runs that a person has paused, or that are at a breakpoint, and fit; how many. `query` is as in
        `runs`. A run that waits for a child run at a breakpoint is not paused itself: name `children`."""
        from sleipnir.client import mass_requests

        with self.store.errors():
            found = self._all_runs({"paused"}, query)
            return mass_requests.resume(self.store.runs, found, on_progress=on_progress)

    def _all_runs(self, status: Collection[str], query: Any) -> Iterator[RunInfo]:
        return run_queries.all_of(self.store, self._filter(status, query)) if status else iter(())

    def _filter(self, status: Collection[str] | None, query: RunQuery, *, children: bool = False) -> RunFilter:
        return run_queries.filter_of(self.store, self.settings.namespace, status, query, children=children)

    def compare(
        self,
        run_a: Run | str,
        run_b: Run | str,
        *,
        judge: str | Path | None = None,
        on_judging: OnJudging | None = None,
    ) -> Comparison:
        """Two runs side by side, given as for `run`: status, output, error, state, path, tokens, cost and time.

        `judge` is an agent (a name or a folder), or else a CEL expression over `a` and `b`, which have `status`,
        `output`, `error`, `tokens`, `cost`, `seconds`, `path` and `state`: `b` is better if it is true, and not true
        with `a` and `b` exchanged, as in `b.cost < a.cost` or `b.output.contains("total")`. An agent gets outputs that
        differ as its prompt, and as the state keys `a` and `b`; its output is `a`, `b` or `same`. It runs as a batch,
        which this waits for; `on_judging` is called with its progress.

        Raises RunNotFound, UsageError for what is neither agent nor CEL, and like `batch` for an agent.
        """
        from sleipnir.client import comparison

        a, b = (self.run(run) if isinstance(run, str) else run for run in (run_a, run_b))
        agent = self._judging_agent(judge) if judge is not None else None
        if agent is None:
            of = comparison.judge_of(str(judge)) if judge is not None else None
            return comparison.compare_runs(self.store, a.id, b.id, of)
        both = [comparison.compare_runs(self.store, a.id, b.id, None)]
        return next(self._judged(agent, lambda: both, f"judge of {a.id} and {b.id}", on_judging))

    def compare_batches(
        self,
        batch_a: Batch | str,
        batch_b: Batch | str,
        *,
        judge: str | Path | None = None,
        on_judging: OnJudging | None = None,
    ) -> Iterator[Comparison]:
        """The rows of two batches with the same keys side by side, then those that only the second has; read lazily, as
        they are now. sleipnir.runs.comparison.summary_of counts them. `judge` and `on_judging` are as in `compare`.
        Raises BatchNotFound, and UsageError for what is neither agent nor CEL."""
        from sleipnir.client import comparison

        a, b = (self.open_batch(batch) if isinstance(batch, str) else batch for batch in (batch_a, batch_b))
        agent = self._judging_agent(judge) if judge is not None else None
        if agent is None:
            of = comparison.judge_of(str(judge)) if judge is not None else None
            return comparison.compare_rows(self.store, a.id, b.id, of)
        name = f"judge of {a.id} and {b.id}"
        return self._judged(agent, lambda: comparison.compare_rows(self.store, a.id, b.id, None), name, on_judging)

    def _judging_agent(self, judge: str | Path) -> str | Path | None:
        """The judge, if it is an agent; None: it can only be an expression."""
        from sleipnir.agents import finding

        try:
            finding.find(judge, self.settings)
        except AgentNotFound:
            if isinstance(judge, Path):
                raise
            return None
        return judge

    def _judged(
        self, agent: str | Path, read: Callable[[], Iterable[Comparison]], name: str, on_judging: OnJudging | None
    ) -> Iterator[Comparison]:
        from sleipnir.client.agent_judge import AgentJudge

        def submit(rows: Iterable[Row], name: str, on_bad: OnBad) -> Batch:
            return self.batch(agent, rows, name=name, on_bad=on_bad)

        return AgentJudge(self.store, submit, on_judging).judged(read, name)

    def now_ms(self) -> int:
        """Redis' clock, by which all times are given."""
        with self.store.errors():
            return self.store.now_ms()

    def agents(self) -> list[AgentInfo]:
        """All agents that can be run by name."""
        from sleipnir.agents import finding

        return finding.known_agents(self.settings)

    def cached_results(self, agent: str | None = None, node: str | None = None) -> list[CacheUse]:
        """The nodes with cached results, of all agents or of one, with number and size of these."""
        with self.store.errors():
            return self.store.cache.uses(agent, node)

    def clear_cache(self, agent: str | None = None, node: str | None = None) -> int:
        """Remove the cached results of one node of an agent, of all its nodes, or of all agents; those of visits that
        run now are not kept either. Returns how many there were."""
        if node is not None and agent is None:
            raise UsageError("clear_cache: a node needs the agent that it belongs to")
        with self.store.errors():
            return self.store.cache.clear(agent, node)

    def limits(self) -> list[LimitUse]:
        """The use of each model limit in the limits.yaml of this machine. Raises ConfigError for a file with errors."""
        from sleipnir.models.limits import load

        limits = load(self.settings)[0].limits
        with self.store.errors():
            return [self.store.limiter.in_use(limit) for limit in limits]

    def set_limit(
        self,
        pattern: str,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_parallel: int | None = None,
        reason: str = "",
    ) -> LimitUse:
        """Give a limit in the limits.yaml of this machine other bounds, for all workers and until `reset_limit`, also
        over restarts; the bounds that are not given are those of the file. It holds for each call that asks from now
        on. `reason` is for the audit. Raises UsageError for a limit that is not there, and for invalid bounds."""
        from sleipnir.models.limits import LimitChange, check_change

        with self.store.errors():
            change = LimitChange(
                self.by, self.store.now_ms(), requests_per_minute, tokens_per_minute, max_parallel, reason
            )
        limit = self._limit(pattern, reason)
        check_change(limit, change.bounds)
        return self._changed_limit(limit, change, reason)

    def reset_limit(self, pattern: str, *, reason: str = "") -> LimitUse:
        """Give a limit the bounds of limits.yaml again. Idempotent. Raises UsageError for a limit that is not there."""
        return self._changed_limit(self._limit(pattern, reason), None, reason)

    def _limit(self, pattern: str, reason: str) -> ModelLimit:
        from sleipnir.models.limits import MOST_REASON, load, named

        if len(reason) > MOST_REASON:
            raise UsageError(f"a reason has at most {MOST_REASON} characters")
        return named(load(self.settings)[0], pattern)

    def _changed_limit(self, limit: ModelLimit, change: LimitChange | None, reason: str) -> LimitUse:
        keep_ms = int(self.settings.audit_retention_s * 1000)
        with self.store.errors():
            self.store.limiter.change(limit, change, by=self.by, reason=reason, keep_ms=keep_ms)
            return self.store.limiter.in_use(limit)

    def gates(self, *, namespace: str | None = None, limit: int | None = None) -> list[GateInfo]:
        """The open questions of all runs of a namespace, oldest first; with `limit` the first ones. `namespace` as that
        of `runs`."""
        with self.store.errors():
            of = run_queries.one_namespace(namespace, self.settings.namespace)
            return self.store.runs.open_gates(of, limit)

    def gate_count(self, *, namespace: str | None = None) -> int:
        """How many questions are open, also those whose answers are on their way."""
        with self.store.errors():
            return self.store.runs.gate_count(run_queries.one_namespace(namespace, self.settings.namespace))

    def throughput(self, *, namespace: str | None = None) -> Throughput:
        """What the deployment has committed in the last hour and day: visits a second, the times of hops, ended and
        failed runs, cost. Of the same cost for any number of runs. `namespace` as that of `runs`."""
        with self.store.errors():
            of = run_queries.one_namespace(namespace, self.settings.namespace)
            return self.store.throughput.read(of, self.settings.daily_budget_usd)

    def pause_all(self, by: str | None = None, reason: str | None = None, *, namespace: str | None = None) -> None:
        """Pause the deployment, or one namespace: no visit starts on any worker until `resume_all`, including runs
        submitted later.

        Active visits finish and are committed; answers and cancels are accepted. Run timeouts continue. What is paused
        stays paused as it is. If the client dies, part of it may be paused; repeat the call.
        """
        with self.store.errors():
            self.store.runs.pause_all(Hold(by or self.by, self.store.now_ms(), reason), _scope(namespace))

    def resume_all(self, *, namespace: str | None = None) -> bool:
        """Resume a paused deployment, or a paused namespace. False: it was not paused. The hold of a namespace ends
        when schedulers have published what waits; runs go on at once."""
        with self.store.errors():
            if namespace is not None:
                return self.store.runs.resume_namespace(_scope(namespace))
            return self.store.runs.resume_all()

    def resume_part(
        self, *, agents: Sequence[str] = (), rate: float | None = None, namespace: str | None = None
    ) -> ScopeHold:
        """Let part of a paused deployment (or namespace) go on: all runs of these agents, and of the others `rate` runs
        a second, the oldest first. A child run counts by its own agent. At a rate it goes on with its parent if it was
        created later. Returns the hold with what goes on; further agents are added, a new rate replaces the old one.
        Raises UsageError: it is not paused."""
        with self.store.errors():
            return self.store.runs.resume_part(_scope(namespace), agents, rate)

    def holds(self) -> list[ScopeHold]:
        """What is paused: the deployment (`*`) and namespaces, who paused it and why, and what of it goes on."""
        with self.store.errors():
            return self.store.runs.all_holds()

    def resumed(self) -> Change | None:
        """Who resumed the deployment last, and when; None if it was never resumed."""
        with self.store.errors():
            return self.store.runs.resumed()

    def held(self) -> Hold | None:
        """Who paused the deployment; None if it is not paused."""
        with self.store.errors():
            return self.store.runs.held()

    def health(self) -> Health:
        with self.store.errors():
            return self.store.health()

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scope(namespace: str | None) -> str:
    """What a hold is of. Raises UsageError."""
    return DEPLOYMENT if namespace in (None, DEPLOYMENT) else checked_namespace(namespace)


def __getattr__(name: str) -> Any:
    """Names of __all__ that are imported on first use."""
    if name in ("Batch", "BatchInfo"):
        from sleipnir.client import batch

        return getattr(batch, name)
    raise AttributeError(f"module 'sleipnir.client.client' has no attribute {name!r}")


__all__ = [
    "AgentInfo", "Batch", "BatchInfo", "Client", "GateInfo", "Health", "Run", "RunEvent", "RunInfo", "SessionInfo",
    "StepInfo", "StreamEvent", "wait_all",
]  # fmt: skip
