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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from sleipnir import tracing
from sleipnir.batches.records import DEFAULT_PRIORITY, ROW_STATES, BatchPlan, row_run_id
from sleipnir.client.run import Run, wait_all
from sleipnir.errors import BatchNotFound, Problem, RunNotFound
from sleipnir.messages import FINAL
from sleipnir.runs.actor import Actor, Change
from sleipnir.runs.budgets import Budget
from sleipnir.runs.run import ID_LENGTH, Hold
from sleipnir.runs.views import (
    DEFAULT_MODES,
    AgentInfo,
    GateInfo,
    Health,
    RunEvent,
    RunInfo,
    SessionInfo,
    StepInfo,
    StreamEvent,
    StreamMode,
)
from sleipnir.settings import Settings
from sleipnir.store.store import Store

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo
    from sleipnir.client.batch import Batch, Given, OnBad, OnProgress
    from sleipnir.client.options import RunOptions
    from sleipnir.client.preparation import Preparation
    from sleipnir.graph.model import Graph
    from sleipnir.knowledge import preparing as knowledge
    from sleipnir.python_graph.compiled import CompiledGraph

PREFIX_LENGTH = 6
_PAGE = 500
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
