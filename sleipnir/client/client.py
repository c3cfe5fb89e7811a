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

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from sleipnir import tracing
from sleipnir.batches.records import DEFAULT_PRIORITY, ROW_STATES, BatchPlan, row_run_id
from sleipnir.client.texts import refuse_text
from sleipnir.errors import BatchNotFound, GateError, Problem, RunNotFound, UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.messages import FINAL, RunStatus
from sleipnir.runs.actor import Actor, Change
from sleipnir.runs.budgets import BUDGET, Budget, read_budget_answer
from sleipnir.runs.failure_text import recursion_limit_text
from sleipnir.runs.interrupts import answer_of, text_of
from sleipnir.runs.run import ID_LENGTH, Hold, read_effect_answer
from sleipnir.runs.views import (
    DEFAULT_MODES,
    AgentInfo,
    GateInfo,
    Health,
    LateResult,
    MissingProcesses,
    RunEvent,
    RunInfo,
    RunTree,
    SessionInfo,
    StepInfo,
    StreamEvent,
    StreamMode,
)
from sleipnir.runs.visits import Failure
from sleipnir.settings import Settings
from sleipnir.store.store import Store

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo
    from sleipnir.client.batch import Batch, Given, OnBad, OnProgress
    from sleipnir.client.options import RunOptions
    from sleipnir.client.preparation import Preparation
    from sleipnir.graph.model import Graph, Json
    from sleipnir.knowledge import preparing as knowledge
    from sleipnir.python_graph.compiled import CompiledGraph
    from sleipnir.runs.journal import StateDifference

PREFIX_LENGTH = 6
_BLOCK_MS = 2_000
_PAGE = 500
_LEVELS, _FEW = 5, 20  # of runs below, and of runs on one level, that are looked at for what they lack
AMONG = 10_000  # the newest runs that a list reads by default: there may be millions


class Client:
    """A connection to a deployment. Thread-safe. Opening it raises StoreUnavailable or ConfigError."""

    def __init__(self, settings: Settings | None = None, *, by: Actor | None = None) -> None:
        """`by` is the actor for journals and records. None: the user of this process."""
        if settings is not None and not isinstance(settings, Settings):
            raise TypeError(
                f"Client takes Settings, not {type(settings).__name__}; write Client(Settings(redis_url=...)), or set "
                "SLEIPNIR_REDIS_URL and write Client()"
            )
        self.settings = settings or Settings.from_env()
        self.by = str(by or Actor.here("python"))
        self.store = self._open_store()

    def _open_store(self) -> Store:
        return Store.open(self.settings, client_name="sleipnir-client", by=self.by)

    @cached_property
    def _preparation(self) -> Preparation:
        """Prepares submissions. Imported lazily: programs that only read runs do not need it."""
        from sleipnir.client.preparation import Preparation

        return Preparation(self.settings, self.store)

    def submit(
        self,
        agent: str | Path | CompiledGraph,
        prompt: Any = "",
        *,
        state: Mapping[str, Any] | None = None,
        session: str | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
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

        Nothing is stored if this raises: AgentNotFound, GraphError (with all problems), BundleError, SessionBusy,
        KnowledgeError, UsageError (prompt or state too large, variable missing, state missing or of the wrong type, a
        session of a graph, a base that cannot be built as the agent stands), StoreUnavailable.
        """
        budget = Budget(max_cost_usd, max_tokens)
        run = self._preparation.run(agent, prompt, state=state, session=session, budget=budget, options=options)
        with tracing.submitting(run.spec.agent, run.id), self.store.errors():
            self._preparation.offer(run.roster)
            self.store.runs.create(run.id, run.spec, run.state)
        return Run(self.store, run.id, self.settings)

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
        are passed on, and earlier rows stay in the batch.
        """
        from sleipnir.client.batch import Batch, RowSubmission

        plan = BatchPlan(name, priority, parallel, canary, max_cost_usd, max_tokens)
        batch = self._preparation.batch(agent, id, plan, options)
        submission = RowSubmission(self.store, self.settings, batch, on_bad=on_bad, on_progress=on_progress)
        submission.add_all(rows, key)
        return Batch(self.store, batch.id, submission.so_far)

    def open_batch(self, batch_id: str) -> Batch:
        """The batch of that id, of that name (among the newest 1,000), or of that unique prefix of an id, of at least 6
        characters. Raises BatchNotFound."""
        from sleipnir.client.batch import Batch

        with self.store.errors():
            if self.store.batches.spec(batch_id) is not None:
                return Batch(self.store, batch_id)
            found = [info.id for info in self.store.batches.recent(1_000) if info.name == batch_id]
            if not found and len(batch_id) >= PREFIX_LENGTH:
                found = self.store.batches.ids_starting_with(batch_id)
        if len(found) != 1:
            several = f"{len(found)} batches are called {batch_id!r}, or start with it: {', '.join(found)}"
            raise BatchNotFound(several if found else f"no batch {batch_id!r}")
        return Batch(self.store, found[0])

    def batches(self, limit: int = 50) -> list[BatchInfo]:
        """Batches, the newest first."""
        with self.store.errors():
            return self.store.batches.recent(limit)

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

    def sessions(self, agent: str) -> list[SessionInfo]:
        """The agent's sessions, the one used last first; temporary ones are not listed."""
        with self.store.errors():
            return self.store.sessions.of_agent(agent)

    def session(self, agent: str, name: str) -> SessionInfo | None:
        """None: there is no such session."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.info(SessionName(agent, name))

    def said(self, agent: str, session: str) -> list[dict[str, Any]]:
        """The messages of a session, oldest first, in the format for models; none if the session does not exist."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.messages(SessionName(agent, session))

    def add_to_session(self, agent: str, session: str, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Append messages to a session. False: there is no such session. Raises SessionBusy."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.add(SessionName(agent, session), messages)

    def remove_session(self, agent: str, session: str) -> bool:
        """Delete a session. False: there is no such session. Raises SessionBusy."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.remove(SessionName(agent, session))

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

    def stream(
        self,
        run: Run | str,
        modes: Collection[StreamMode] | None = DEFAULT_MODES,
        cursor: str | None = None,
    ) -> Iterator[StreamEvent]:
        """The stream of a run, or of the run of that id or unique prefix: see Run.stream."""
        return (self.run(run) if isinstance(run, str) else run).stream(modes, cursor)

    def runs(
        self,
        limit: int = 50,
        status: set[str] | None = None,
        *,
        children: bool = False,
        batch: str | None = None,
        among: int = AMONG,
        agents: Collection[str] = (),
        since_ms: int | None = None,
        before_ms: int | None = None,
        rows: bool = True,
    ) -> list[RunInfo]:
        """Runs, newest first, with `children` also those that runs have started. Only the newest `among` are read;
        `run_count` is the total. With `batch` only its started rows, last first, and no children; without `rows` no
        rows of batches. Only of these `agents`, if given, and created in [`since_ms`, `before_ms`)."""
        with self.store.errors():
            found = (
                info
                for info in (self.store.runs.recent(among, status) if batch is None else self._runs_of(batch, status))
                if (status is None or info.status in status) and (children or info.parent is None)
                if (not agents or info.agent in agents) and (rows or batch is not None or info.batch is None)
                if (since_ms is None or info.created_ms >= since_ms)
                if (before_ms is None or info.created_ms < before_ms)
            )
            return self.store.explained(list(islice(found, limit)))

    def run_count(self) -> int:
        """The number of stored runs, ended or not, including child runs."""
        with self.store.errors():
            return self.store.runs.count()

    def _runs_of(self, batch: str, status: set[str] | None) -> Iterator[RunInfo]:
        """The runs of rows that may have such a status: ended ones are not read unless requested."""
        passed_over = {"w"} | {
            byte for byte, state in ROW_STATES.items() if state in FINAL and status is not None and state not in status
        }
        rows = self._rows_from_the_last(batch, passed_over)
        while page := list(islice(rows, _PAGE)):
            found = self.store.runs.find([row_run_id(batch, row) for row in page])
            yield from (info for info in found if info is not None)

    def _rows_from_the_last(self, batch: str, passed_over: set[str]) -> Iterator[int]:
        """Rows whose state is none of these."""
        from sleipnir.store.batches import STATES_PAGE

        [info] = self.store.batches.infos([batch])
        last = 0 if info is None else info.total
        while last > 0:
            first = max(0, last - STATES_PAGE)
            states = self.store.batches.states(batch, first, last - 1)
            yield from (row for row in range(last - 1, first - 1, -1) if states[row - first] not in passed_over)
            last = first

    def now_ms(self) -> int:
        """Redis' clock, by which all times are given."""
        with self.store.errors():
            return self.store.now_ms()

    def agents(self) -> list[AgentInfo]:
        """All agents that can be run by name."""
        from sleipnir.agents import finding

        return finding.known_agents(self.settings)

    def gates(self) -> list[GateInfo]:
        """The open questions of all runs, oldest first."""
        with self.store.errors():
            return self.store.runs.open_gates()

    def pause_all(self, by: str | None = None, reason: str | None = None) -> None:
        """Pause the deployment: no visit starts on any worker until `resume_all`, including runs submitted later.

        Active visits finish and are committed; answers and cancels are accepted. Run timeouts continue.
        """
        with self.store.errors():
            self.store.runs.pause_all(Hold(by or self.by, self.store.now_ms(), reason))

    def resume_all(self) -> bool:
        """Resume a paused deployment. False: it was not paused."""
        with self.store.errors():
            return self.store.runs.resume_all()

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


class Run:
    """A handle on one run. Nothing is cached: every call asks Redis."""

    def __init__(self, store: Store, run_id: str, settings: Settings) -> None:
        self._store, self.id, self.settings = store, run_id, settings

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str:
        """The run in a notebook: its picture, and a table of its status and its state. It takes a few round trips, and
        shows what failed if Redis does not answer."""
        from sleipnir.client import run_page

        return run_page.page_of(self._store, self.id)

    def info(self) -> RunInfo:
        """Status, live visits with their reasons, usage. Raises RunNotFound."""
        with self._store.errors():
            return self._store.explained([self._store.runs.info(self.id)])[0]

    def missing(self) -> MissingProcesses:
        """Missing processes that the run, or a descendant, needs. A process that ended without signing off counts as
        present for 30 s. It takes a few round trips."""
        return missing_for(self._store, [self.id])

    def tree(self) -> RunTree:
        """The run and all runs that it and its children have started. Raises RunNotFound."""
        with self._store.errors():
            return self._store.runs.tree(self.id)

    @property
    def status(self) -> RunStatus:
        return self._record().status

    @property
    def output(self) -> str | None:
        """The result text; None before the end, and for a failed run."""
        with self._store.errors():
            return self._store.runs.output(self.id)

    @property
    def error(self) -> str | None:
        return self._record().error

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The final state, in its JSON form; blocks until the run ends. Raises RunFailure for a run that did not
        complete, which is also of the class of the cause (python_graph.errors.run_failure), and TimeoutError after
        `timeout_s`."""
        from sleipnir.python_graph.errors import run_failure

        info = self.wait(timeout_s)
        if info.status != "completed":
            message = f"run {self.id} {info.status}" + (f": {info.error}" if info.error else "")
            if (text := recursion_limit_text(info.error or "")) is not None:  # its own, or of a run below
                raise run_failure(text, Failure("steps"))
            raise run_failure(message, info.failure)
        return self.state()

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Block until the run ends. Raises TimeoutError after `timeout_s`; a run that waits for an answer has not
        ended."""
        return next(iter(wait_all(self._store, [self.id], timeout_s)))

    def events(self, after: str = "0", follow: bool = True) -> Iterator[RunEvent]:
        """The events after event id `after` ("0": all stored ones); with `follow` until the run ends."""
        while True:
            with self._store.errors():
                batch = self._store.runs.events(self.id, after, block_ms=_BLOCK_MS if follow else None)
            for event in batch:
                after = event.id
                yield event
            at_end = not batch or batch[-1].type == "run_ended"
            if not follow or (at_end and self._record().is_final):
                return

    def stream(
        self, modes: Collection[StreamMode] | None = DEFAULT_MODES, cursor: str | None = None
    ) -> Iterator[StreamEvent]:
        """Events and streamed text of models, until the run ends: see views.StreamEvent for the modes.

        `modes` None means all of them. Failed visits, a `gap` and the run's end are always included, so an empty list
        selects only these. `cursor` is the `id` of the last event read; None: from the oldest stored one.

        Data that was trimmed before it was read is reported by an event of type `gap`, whose `lost` is the number of
        pieces (mode `messages`), or None for events, where the number is unknown and may be 0 (mode `events`). It waits
        up to 30 s for a Redis that is away. A slow reader blocks no other process.

        Raises RunNotFound, StoreUnavailable, and UsageError for a mode or a cursor that is none.
        """
        from sleipnir.client import streaming

        return streaming.stream(self._store, self.id, modes, cursor)

    def history(self, *, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """The journal: one entry per visit that ended, oldest first. A run may have millions: `limit` entries after the
        step `after` are a page, and the next one begins after its last step. For visits that ended before their
        super-step, `next` is known if the page has the last step of that super-step."""
        with self._store.errors():
            return self._store.runs.history(self.id, after, limit)

    def export(self, *, children: bool = False) -> Iterator[str]:
        """The run as lines of JSON (sleipnir/upkeep/export.py has the format), with `children` also all descendants;
        read lazily. Raises RunNotFound, and StoreUnavailable."""
        from sleipnir.upkeep.export import lines_of

        with self._store.errors():
            yield from lines_of(self._store.records, self.id, children=children)

    def graph(self) -> Graph:
        """The definition of the run, independent of its agent's current folder. Raises BundleError if it is no longer
        in Redis."""
        from sleipnir.client.pinned_graph import pinned_graph

        with self._store.errors():
            return pinned_graph(self._store, self._store.runs.spec(self.id))

    def late_results(self) -> list[LateResult]:
        """Refused results, which arrived when their visit had ended or belonged to another attempt; oldest first."""
        with self._store.errors():
            return self._store.runs.late_results(self.id)

    def state(self) -> dict[str, Any]:
        """The committed state."""
        with self._store.errors():
            return self._store.runs.state(self.id)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state after the journal step `step` (0: as submitted), computed from the journal. Writes of parallel
        visits count from the step on that closes their super-step, so at an earlier one the state is that of the last
        `checkpoint`. Values that were written anew up to `step` are read, but not parsed.

        Raises UsageError for a step that the run does not have, RunNotFound.
        """
        with self._store.errors():
            self._check_steps(step)
            return self._store.runs.fold(self.id, step)

    def state_difference(self, first: int, second: int) -> StateDifference:
        """What distinguishes the state after the step `second` from that after `first`: `changed` by key with the two
        values, `added` and `removed` with the only one. Raises as `state_at`."""
        with self._store.errors():
            self._check_steps(first, second)
            return self._store.runs.difference(self.id, first, second)

    def checkpoint(self, step: int) -> int:
        """The last checkpoint up to a step: `step` itself, or that before parallel visits which had not all ended.
        Raises as `state_at`."""
        with self._store.errors():
            self._check_steps(step)
            return self._store.runs.checkpoint(self.id, step)

    def _check_steps(self, *steps: int) -> None:
        last = self._store.runs.last_step(self.id)
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, int):
                raise UsageError(f"a step is a whole number, not {step!r:.60}")
            if not 0 <= step <= last:
                has = f"the steps 0 to {last:,}" if last else "only step 0, its submission"
                raise UsageError(f"run {self.id!r} has no step {step:,}; it has {has}: `sleipnir history {self.id}`")

    def fork(
        self,
        *,
        at: int | None = None,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
    ) -> Run:
        """Submit a run that goes on from a checkpoint of this one, which stays as it is; it may be running or over.

        It goes on after the step `at`, or after the last checkpoint that leads to the node `before`; default: the last
        checkpoint that leads anywhere. Nothing before that runs again, and all later visits are new. `state` has values
        that replace those of the past; `agent` (a name or a folder) is run with its current definition; None: with the
        definition of this run. Variables, directories and limits are those of this run; its cost begins at zero.

        Only runs of the engine `bsp` that are in no session. Raises UsageError if there is no such checkpoint, if it
        leads to commands, if the definition lacks the node to go on at, or for values of the wrong type; RunNotFound,
        also if the state at an earlier step needs the journal of a source that has expired; and like Client.submit for
        `agent`.
        """
        from sleipnir.client import forks
        from sleipnir.client.preparation import Preparation

        preparation = Preparation(self.settings, self._store)
        given = state or {}
        run_id = forks.fork(self._store, preparation, self.id, at=at, before=before, state=given, agent=agent)
        return Run(self._store, run_id, self.settings)

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked, including those of child runs."""
        with self._store.errors():
            return self._store.runs.gates_below(self.id)

    def answer(self, value: Json, gate: GateInfo | int | str | None = None) -> None:
        """Answer an open question of this run or of a descendant; `gate` (the Gate, its visit's number, the key of an
        interrupt, its node, or the path to it, `review/approve`) may be omitted if only one is open. With a Gate no
        other question can be answered by mistake, even if the answer arrives late.

        The answer to an interrupt is any JSON, that to another question a text. The same answer to an interrupt counts
        once, however often it is given. Raises GateError when there is no such question, several fit, or it was
        answered before. Raises UsageError if the answer does not match the schema of an interrupt, is no text for
        another question, or is not `run again`, `fail` or a JSON object for the question about a lost `effect: once`,
        or not `yes`, `no` or a number for a budget question.
        """
        with self._store.errors():
            self._send_answers([(gate, value)])

    def answer_all(self, values: Mapping[str, Json]) -> None:
        """Answer several open questions, by their keys, nodes or visit numbers. Raises as `answer` does, and then has
        sent none if a key is unknown or a value is refused."""
        with self._store.errors():
            self._send_answers(list(values.items()))

    def _send_answers(self, answers: Sequence[tuple[GateInfo | int | str | None, Json]]) -> None:
        """Check all answers, then send them."""
        still_open = self._store.runs.gates_below(self.id)
        meant = []
        for gate, value in answers:
            found = gate if isinstance(gate, GateInfo) else self._gate(gate, still_open, value)
            if isinstance(found, GateInfo):
                meant.append((found, value, self._text(found, value)))
        for found, value, text in meant:
            try:
                self._store.runs.answer(found.run, found.seq, text, found.attempt)
            except GateError:
                if not self._has_answer(found.run, found.seq, value):
                    raise

    def _text(self, gate: GateInfo, value: Json) -> str:
        """An answer as it is sent. Raises UsageError for one that the run could not use."""
        try:
            text = text_of(gate, value)
        except ValueError as error:
            raise UsageError(f"question {gate.key or gate.seq} of run {gate.run!r}: {error}") from None
        refuse_text("the answer", text, self.settings.max_prompt_bytes)
        _refuse_unreadable(gate, text)
        return text

    def _has_answer(self, run: str, name: int | str, value: Json) -> bool:
        """Whether the last answer to an interrupt, by the number of its visit or its key, is this value. Raises
        GateError if it is another one."""
        for step in reversed(self._store.runs.history(run)):
            if step.kind == "answered" and step.key is not None and name in (step.key, step.gate):
                if step.answer is None or answer_of(step.answer) != value:
                    raise GateError(f"question {step.key!r} of run {run!r} was already answered with {step.answer}")
                return True
        return False

    def cancel(self) -> None:
        """Cancel the run; running scripts and model calls stop within one heartbeat. Raises UsageError if the run has
        already ended."""
        with self._store.errors():
            self._store.runs.cancel(self.id)

    def retry(self, *, fresh_children: bool = False) -> None:
        """Continue a failed run from the failed visit, with the current state; its deadline restarts. If that visit
        waited for a child run, the child also continues; with `fresh_children` a new one is started.

        Raises UsageError when the run did not fail.
        """
        with self._store.errors():
            self._store.runs.retry(self.id, fresh_children=fresh_children)

    def pause(self, by: str | None = None, reason: str | None = None) -> None:
        """Pause the run: active visits finish and are committed, answers are accepted, and no visit starts. Its timeout
        is suspended. `by` is shown to others (None: the client's actor). Raises UsageError if the run has ended."""
        with self._store.errors():
            self._store.runs.pause(self.id, by, reason)

    def resume(self) -> None:
        """End the holds of persons on the run. It continues unless its parent, its budget or the deployment also holds
        it. Raises UsageError if it has ended."""
        with self._store.errors():
            self._store.runs.resume(self.id)

    def _record(self) -> RunInfo:
        """Like `info`, in one round trip: without leases and positions in queues."""
        with self._store.errors():
            return self._store.runs.info(self.id)

    def _gate(self, gate: int | str | None, still_open: list[GateInfo], value: Json) -> GateInfo | None:
        """The open question that `gate` refers to. None: it is an interrupt that has this answer already. Raises
        GateError."""
        if isinstance(gate, int) or (isinstance(gate, str) and gate.isdigit()):
            found = [each for each in still_open if each.seq == int(gate)]
            own = [each for each in found if each.run == self.id]
            if own or len(found) == 1:
                return (own or found)[0]
            if self._has_answer(self.id, int(gate), value):
                return None
            self._store.runs.answer(self.id, int(gate), value if isinstance(value, str) else compact_json(value))
            return None
        fitting = [found for found in still_open if gate in (None, found.key, found.node, found.place)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and gate is not None and self._has_answer(self.id, gate, value):
            return None
        raise GateError(self._no_single_gate(None if gate is None else str(gate), fitting or still_open))

    def _no_single_gate(self, gate: str | None, still_open: list[GateInfo]) -> str:
        which = f" of node {gate!r}" if gate else ""
        if still_open:
            listed = ", ".join(f"{found.seq} ({found.key or found.place})" for found in still_open)
            names = [(None, found.key, found.node, found.place) for found in still_open]
            several = len(still_open) > 1 and all(gate in each for each in names)
            fitting = f"several open questions{which}" if several else f"no open question{which}"
            name_by = "its number" if several and gate else "its number, its key or its node"
            return f"run {self.id!r} has {fitting}; open: {listed}. Name one by {name_by}"
        answered = [step for step in self.history() if step.kind in ("approval", "input") and gate in (None, step.node)]
        if answered:
            return f"the question{which} of run {self.id!r} was already answered; `sleipnir history {self.id}` shows it"
        return f"run {self.id!r} ({self.status}) has no open question{which}"


def _refuse_unreadable(gate: GateInfo, text: str) -> None:
    """Raises UsageError for an answer that the run could not use and would ask for again."""
    try:
        if gate.kind == "effect":
            read_effect_answer(text)
        elif gate.kind == BUDGET:
            read_budget_answer(text)
    except ValueError as error:
        raise UsageError(f"question {gate.seq} ({gate.node}) of run {gate.run!r}: {error}") from None


def missing_for(store: Store, run_ids: Sequence[str]) -> MissingProcesses:
    """See Run.missing, for several runs and the runs that they wait for. A run that no longer exists is left out."""
    top, level, queues = set(run_ids), list(run_ids), dict[str, str]()
    with store.errors():
        for _ in range(_LEVELS):
            found = [info for info in store.runs.find(level) if info is not None and not info.is_final]
            level = []
            for info in store.explained(found):
                for visit in info.visits:
                    if visit.reason.code == "queued" and visit.reason.consumers == 0:
                        place = visit.node if info.id in top else f"{visit.node} of run {info.id}"
                        queues.setdefault(str(visit.reason.queue), place)
                    if visit.reason.run is not None and len(level) < _FEW:
                        level.append(visit.reason.run)
            if not level:
                break
        return MissingProcesses(not store.fleet.has_scheduler(), queues)


def wait_all(store: Store, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
    """Yield each run's info when it ends; thousands of runs need one blocking read.

    Raises RunNotFound immediately for an unknown run, TimeoutError after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left_over = dict.fromkeys(run_ids)
    with store.errors():
        position = store.runs.ended_position()  # before the look, so that no end falls between the two
    look_at = list(left_over)
    while True:
        with store.errors():
            infos = store.runs.ended_among(look_at)
        for info in infos:
            left_over.pop(info.id, None)
            yield info
        if not left_over:
            return
        left_s = _BLOCK_MS / 1000 if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not over after {timeout_s:g} s: {', '.join(left_over)}")
        with store.errors():
            ended = store.runs.ended_since(position, max(1, min(_BLOCK_MS, int(left_s * 1000))))
        # Without new entries check all runs: the streams of ended runs are capped.
        look_at = [run_id for run_id in ended if run_id in left_over] if ended else list(left_over)


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
