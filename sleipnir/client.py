"""Submit, watch, answer and cancel runs from Python. The command line is built on this module alone.

    from sleipnir import Client

    with Client() as client:
        run = client.submit("log-triage", "server.log")
        run.wait()
        print(run.output)

A client needs a running deployment (SLEIPNIR_REDIS_URL, or `settings`); `sleipnir.embedded.stack` starts a private one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sleipnir import agents, streaming
from sleipnir.bundle import Bundle, folder_signature, graph_text, pack
from sleipnir.errors import BundleError, GateError, GraphError, RunNotFound, UsageError
from sleipnir.graph.check import check, format_headline
from sleipnir.graph.load import GRAPH_FILE, Loaded, load_file, load_graph, read_agent
from sleipnir.graph.model import Graph
from sleipnir.graph.state import StateError, initial
from sleipnir.messages import MOST_KEYS, RunStatus
from sleipnir.runs import Pause, RunSpec, read_effect_answer
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.tools.folder import custom_tools
from sleipnir.views import AgentInfo, GateInfo, Health, LateResult, RunEvent, RunInfo, StepInfo, StreamEvent, StreamMode

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no letter that looks like another
ID_LENGTH = 12
PREFIX_LENGTH = 6
_BLOCK_MS = 2_000
OFFERED_FOR_S = 60.0


@dataclass(frozen=True)
class Prepared:
    """An agent folder ready to submit, as of `signature`."""

    signature: tuple[tuple[str, int, int], ...]
    graph: Graph
    bundle: Bundle


class Client:
    """A connection to a deployment. Thread-safe. Opening it raises StoreUnavailable or ConfigError."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_env()
        self._prepared: dict[Path, Prepared] = {}
        self._offered: dict[str, float] = {}
        self.store = Store.open(self.settings, client_name="sleipnir-client")

    def submit(
        self,
        agent: str | Path,
        prompt: str = "",
        *,
        variables: Mapping[str, str] | None = None,
        state: Mapping[str, Any] | None = None,
        cwd: Path | None = None,
        caller_dir: Path | None = None,
    ) -> Run:
        """Accept a run of `agent` (a name, or the path of its folder); the run then goes on by itself.

        `prompt` becomes `{{initial_prompt}}`. `variables` preset agent variables. `state` holds values that the run
        begins with, over the graph's `initial_state`: JSON, or datetime and bytes objects for keys declared so. `cwd`
        is the working directory of scripts (default: the agent's folder); `caller_dir` is where relative paths in the
        prompt are meant from (default: this process's working directory). Nothing is stored when this raises:
        AgentNotFound, GraphError (with all problems), BundleError, UsageError (prompt or state too large, variable
        missing, state missing or of the wrong type), StoreUnavailable.
        """
        folder = agents.find(agent, self.settings)
        prepared = self._prepare(folder)
        refuse_text("the prompt", prompt, self.settings.max_prompt_bytes)
        graph, bundle = prepared.graph, prepared.bundle
        spec = RunSpec(
            agent=folder.name,
            bundle=bundle.digest,
            variables=resolved_variables(graph, variables or {}),
            cwd=str(cwd) if cwd else None,
            caller_dir=str(caller_dir or Path.cwd()),
        )
        run_id = "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))
        begin = state_at_start(graph, prompt, {} if state is None else state, self.settings.max_output_bytes)
        with self.store.errors():
            self._offer(bundle)
            self.store.runs.create(run_id, spec, begin)
        return Run(self.store, run_id, self.settings)

    def _offer(self, bundle: Bundle) -> None:
        """Make sure that Redis has the bundle. Not asked each time: nobody drops one that was used lately."""
        now_s, lately_s = time.monotonic(), min(OFFERED_FOR_S, self.settings.retention_s / 4)
        if now_s - self._offered.get(bundle.digest, -lately_s) < lately_s:
            return
        now_ms = self.store.now_ms()
        if not self.store.bundles.touch(bundle.digest, now_ms):
            self.store.bundles.put(bundle.digest, bundle.packed, now_ms)
        self._offered[bundle.digest] = now_s

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
        modes: Collection[StreamMode] | None = streaming.DEFAULT_MODES,
        cursor: str | None = None,
    ) -> Iterator[StreamEvent]:
        """The stream of a run, or of the run of that id or unique prefix: see Run.stream."""
        return (self.run(run) if isinstance(run, str) else run).stream(modes, cursor)

    def runs(self, limit: int = 50, status: set[str] | None = None) -> list[RunInfo]:
        """Runs, newest first; `status` filters among the newest 10,000."""
        with self.store.errors():
            found = self.store.runs.recent(10_000 if status else limit)
            return self.store.explained([info for info in found if status is None or info.status in status][:limit])

    def now_ms(self) -> int:
        """Redis' clock, by which all times are given."""
        with self.store.errors():
            return self.store.now_ms()

    def agents(self) -> list[AgentInfo]:
        """Every agent that can be named."""
        return agents.known_agents(self.settings)

    def gates(self) -> list[GateInfo]:
        """The open questions of all runs, oldest first."""
        with self.store.errors():
            return self.store.runs.open_gates()

    def pause_all(self, by: str, reason: str | None = None) -> None:
        """Hold the deployment: nothing new starts on any worker until `resume_all`, runs submitted meanwhile included.

        What runs ends and is committed; answers and cancels are taken. Run timeouts go on.
        """
        with self.store.errors():
            self.store.runs.pause_all(Pause(by, self.store.now_ms(), reason))

    def resume_all(self) -> bool:
        """Let a held deployment go on. False: it was not held."""
        with self.store.errors():
            return self.store.runs.resume_all()

    def held(self) -> Pause | None:
        """Who holds the deployment, if anybody does."""
        with self.store.errors():
            return self.store.runs.held()

    def health(self) -> Health:
        with self.store.errors():
            return self.store.health()

    def _prepare(self, folder: Path) -> Prepared:
        """The checked graph and the bundle of a folder; kept while no file of it changes, for batches of runs."""
        signature = folder_signature(folder)
        known = self._prepared.get(folder)
        if known is None or known.signature != signature:
            graph = self._checked_graph(folder)
            bundle = pack(folder, limit_bytes=self.settings.max_bundle_bytes, graph=graph)
            known = self._prepared[folder] = Prepared(signature, graph, bundle)
        return known

    def _checked_graph(self, folder: Path) -> Graph:
        if read_agent(folder).kind == "config":
            raise UsageError(
                f"agent {folder.name!r} is a config.yaml agent; this version runs agents with a graph.yaml only"
            )
        loaded = load_file(folder)
        if loaded.graph is None:
            raise GraphError(f"Failed to load graph.yaml for agent '{folder.name}'", loaded.problems)
        if loaded.graph.settings.validate_before_run:
            self._refuse_errors(loaded.graph, loaded, folder)
        return loaded.graph

    def _refuse_errors(self, graph: Graph, loaded: Loaded, folder: Path) -> None:
        file = str(folder / GRAPH_FILE)
        found = check(
            graph,
            loaded.positions,
            file,
            folder,
            lambda name: agents.folder_or_none(name, self.settings),
            read_tools=custom_tools,
        )
        if any(problem.level == "error" for problem in found):
            raise GraphError(format_headline(found), [*loaded.problems, *found])

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
        self._store, self.id, self._settings = store, run_id, settings

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def info(self) -> RunInfo:
        """Status, live visits and why they are where they are, usage. Raises RunNotFound."""
        with self._store.errors():
            return self._store.explained([self._store.runs.info(self.id)])[0]

    @property
    def status(self) -> RunStatus:
        return self._record().status

    @property
    def output(self) -> str | None:
        """The result text; None before the end, and of a run that failed."""
        with self._store.errors():
            return self._store.runs.output(self.id)

    @property
    def error(self) -> str | None:
        return self._record().error

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Block until the run is over. Raises TimeoutError after `timeout_s`; a run that waits for an answer counts
        as not over."""
        return next(iter(wait_all(self._store, [self.id], timeout_s)))

    def events(self, after: str = "0", follow: bool = True) -> Iterator[RunEvent]:
        """What happened, from after event id `after` ("0": all that is kept); with `follow` until the run is over."""
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
        self, modes: Collection[StreamMode] | None = streaming.DEFAULT_MODES, cursor: str | None = None
    ) -> Iterator[StreamEvent]:
        """What happens and what models say, as it does, until the run is over: see views.StreamEvent for the modes.

        `modes` None means all of them. Whatever they are, a visit that failed, a `gap` and the run's end are passed on,
        so none at all asks for these. `cursor` is the `id` of the event to go on after; None: from the beginning, as
        far back as it is kept.

        What was trimmed before it was read is announced by an event of type `gap`, whose `lost` is the number of pieces
        (mode `messages`), or None for events, where it is not known, and may be none (mode `events`). A Redis that is
        away for up to 30 s is waited for. A reader may be as slow as it likes; nobody waits for it.

        Raises RunNotFound, StoreUnavailable, and UsageError for a mode or a cursor that is none.
        """
        return streaming.stream(self._store, self.id, modes, cursor)

    def history(self) -> list[StepInfo]:
        """The journal: one entry per visit that ended, oldest first."""
        with self._store.errors():
            return self._store.runs.history(self.id)

    def graph(self) -> Graph:
        """The definition that the run goes by, whatever its agent's folder holds today. Raises BundleError when it is
        not in Redis any more."""
        with self._store.errors():
            agent, digest = self._store.runs.pinned(self.id)
            packed = self._store.bundles.get(digest)
        if packed is None:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
        return load_graph(graph_text(packed), GRAPH_FILE, agent)

    def late_results(self) -> list[LateResult]:
        """Results that came when their visit was another attempt's, or over, and were refused; oldest first."""
        with self._store.errors():
            return self._store.runs.late_results(self.id)

    def state(self) -> dict[str, Any]:
        """The committed state."""
        with self._store.errors():
            return self._store.runs.state(self.id)

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order they were asked."""
        with self._store.errors():
            return self._store.runs.gates(self.id)

    def answer(self, text: str, gate: GateInfo | int | str | None = None) -> None:
        """Answer an open question; `gate` (itself, its visit's number, or its node) may be left out when just one is
        open. Named by itself, no other question can be answered by mistake, however late this arrives.

        Raises GateError when there is no such question, several fit, or it was answered before. Raises UsageError when
        the question about a lost `effect: once` is answered with something else than `run again`, `fail` or a JSON
        object.
        """
        refuse_text("the answer", text, self._settings.max_prompt_bytes)
        with self._store.errors():
            meant = gate if isinstance(gate, GateInfo) else self._gate(gate)
            if isinstance(meant, int):
                self._store.runs.answer(self.id, meant, text)
                return
            if meant.kind == "effect":
                _refuse_effect_answer(meant, text)
            self._store.runs.answer(self.id, meant.seq, text, meant.attempt)

    def cancel(self) -> None:
        """Ask for the run's end; running scripts and model calls stop within one heartbeat. Raises UsageError when
        the run is over already."""
        with self._store.errors():
            self._store.runs.cancel(self.id)

    def retry(self) -> None:
        """Continue a failed run from the visit that failed, with the state as it is; its deadline starts anew.

        Raises UsageError when the run did not fail.
        """
        with self._store.errors():
            self._store.runs.retry(self.id)

    def pause(self, by: str, reason: str | None = None) -> None:
        """Hold the run: what runs ends and is committed, answers are taken, and nothing new starts. Its timeout stands
        still. `by` is shown to others. Raises UsageError when the run is over."""
        with self._store.errors():
            self._store.runs.pause(self.id, by, reason)

    def resume(self) -> None:
        """Let a held run go on. Raises UsageError when it is over."""
        with self._store.errors():
            self._store.runs.resume(self.id)

    def _record(self) -> RunInfo:
        """Like `info`, in one round trip: without leases and places in line."""
        with self._store.errors():
            return self._store.runs.info(self.id)

    def _gate(self, gate: int | str | None) -> GateInfo | int:
        """The open question that is meant; a number that names none is given back: it may have been answered."""
        still_open = self._store.runs.gates(self.id)
        if isinstance(gate, int) or (isinstance(gate, str) and gate.isdigit()):
            return next((found for found in still_open if found.seq == int(gate)), int(gate))
        fitting = [found for found in still_open if gate is None or found.node == gate]
        if len(fitting) == 1:
            return fitting[0]
        raise GateError(self._no_single_gate(gate, fitting or still_open))

    def _no_single_gate(self, gate: str | None, still_open: list[GateInfo]) -> str:
        which = f" of node {gate!r}" if gate else ""
        if still_open:
            listed = ", ".join(f"{found.seq} ({found.node})" for found in still_open)
            several = len(still_open) > 1 and all(gate in (None, found.node) for found in still_open)
            fitting = f"several open questions{which}" if several else f"no open question{which}"
            name_by = "its number" if several and gate else "its number or its node"
            return f"run {self.id!r} has {fitting}; open: {listed}. Name one by {name_by}"
        answered = [step for step in self.history() if step.kind in ("approval", "input") and gate in (None, step.node)]
        if answered:
            return f"the question{which} of run {self.id!r} was already answered; `sleipnir history {self.id}` shows it"
        return f"run {self.id!r} ({self.status}) has no open question{which}"


def _refuse_effect_answer(gate: GateInfo, text: str) -> None:
    try:
        read_effect_answer(text)
    except ValueError as error:
        raise UsageError(f"question {gate.seq} ({gate.node}) of run {gate.run!r}: {error}") from None


def wait_all(store: Store, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
    """Yield each run's info as it ends; thousands of runs cost one blocking read.

    Raises RunNotFound at once for an unknown run, TimeoutError after `timeout_s`.
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
        # A quiet moment is a chance to look at all: the streams of ended runs are capped.
        look_at = [run_id for run_id in ended if run_id in left_over] if ended else list(left_over)


def refuse_text(what: str, text: str, limit_bytes: int) -> None:
    """Raise UsageError for a text that is too large, or that is no text (bytes of another encoding)."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid UTF-8 text; convert it, for example with iconv") from None
    if size > limit_bytes:
        raise UsageError(
            f"{what} has {size:,} bytes, more than SLEIPNIR_MAX_PROMPT_BYTES={limit_bytes:,}. "
            "Write it to a file and pass the file's path instead"
        )


def resolved_variables(graph: Graph, presets: Mapping[str, str]) -> dict[str, str]:
    """Agent variables: preset, else default. Raises UsageError with all that are missing (spec 3.5) or unknown."""
    known = {variable.name for variable in graph.variables}
    unknown = sorted(presets.keys() - known)
    if unknown:
        raise UsageError(
            f"agent {graph.name!r} has no variable {', '.join(map(repr, unknown))}; "
            f"it declares: {', '.join(sorted(known)) or 'none'}"
        )
    values = {variable.name: presets.get(variable.name, variable.default) for variable in graph.variables}
    missing = [variable for variable in graph.variables if values[variable.name] is None]
    if missing:
        listed = "".join(f"\n  - {variable.name}: {variable.description}" for variable in missing)
        raise UsageError(f"The following agent variables are required:{listed}\nSet each with --var NAME=TEXT")
    return {name: value for name, value in values.items() if value is not None}


def state_at_start(graph: Graph, prompt: str, given: Mapping[str, Any], limit_bytes: int) -> dict[str, Any]:
    """What the run's state begins with. Raises UsageError, with all that is missing or wrong."""
    if not isinstance(given, Mapping):
        raise UsageError(f"state must be a mapping of keys to values, not {type(given).__qualname__}")
    for key in given:
        if key in _NOT_GIVEN:
            raise UsageError(f"state key {key!r} cannot be given: {_NOT_GIVEN[key]}")
    try:
        begin = initial(graph, {**given, "initial_prompt": prompt})
    except StateError as error:
        listed = "".join(f"\n  - {problem}" for problem in error.problems)
        raise UsageError(f"agent {graph.name!r} cannot begin with this state:{listed}\n{_HOW_TO_GIVE}") from None
    if len(begin) > MOST_KEYS:
        raise UsageError(f"the state begins with {len(begin):,} keys, at most {MOST_KEYS:,} are possible; nest them")
    size = len(json.dumps({key: begin[key] for key in given}))
    if size > limit_bytes:
        raise UsageError(
            f"the given state has {size:,} bytes, more than SLEIPNIR_MAX_OUTPUT_BYTES={limit_bytes:,}. "
            "Store the data in a file and give its path"
        )
    return begin


_NOT_GIVEN = {"initial_prompt": "it is the prompt", "_next": "it is how nodes choose the way"}
_HOW_TO_GIVE = "Give each with --state NAME=JSON, in Python with submit(..., state={...})"

__all__ = [
    "AgentInfo", "Client", "GateInfo", "Health", "Run", "RunEvent", "RunInfo", "StepInfo", "StreamEvent", "wait_all",
]  # fmt: skip
