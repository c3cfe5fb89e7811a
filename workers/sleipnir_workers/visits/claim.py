"""One visit on a worker: claim, execute (guard.py), deliver (delivery.py). The Celery task calls it. Several short ones
at once: group.py.

The process may die at any line. Before the delivery, the lease lapses and another worker starts over; after it, the
result is in Redis. If a message is delivered twice, the second claim is refused.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from sleipnir import tracing
from sleipnir.agents.bundle import KEPT, UNPACKED, BundleCache, Unpacked
from sleipnir.errors import BundleError, GraphError, MachineFailed, StoreUnavailable
from sleipnir.graph.cache_key import state_wanted
from sleipnir.graph.model import FunctionNode, LlmNode, Node, ScriptNode, ToolNode
from sleipnir.graph.template import state_read_by
from sleipnir.logs import handling
from sleipnir.messages import DEFINITION, Role, VisitCall, VisitResult
from sleipnir.runs.child_events import Visits
from sleipnir.runs.claims import Claim, ClaimRefused, WantedVisit
from sleipnir.runs.run import RunSpec, changed
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.consumer.drain import Drain
from sleipnir_workers.consumer.unreadable import dropped
from sleipnir_workers.execution.execution import EMITTING, DirectoryMissing, Execution, ProcessLost
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.folders.directories import PASS_MS, MissingDirectories, as_path, working_directory
from sleipnir_workers.llm.permits import Permits
from sleipnir_workers.visits import callbacks, node_streams
from sleipnir_workers.visits.caching import VisitCache
from sleipnir_workers.visits.delivery import RETRY_S, PreparedDelivery, ResultDelivery
from sleipnir_workers.visits.fleet_cache import fleet_cache
from sleipnir_workers.visits.fleet_cache import renew as renew_cache
from sleipnir_workers.visits.guard import execute, unless_changed
from sleipnir_workers.visits.heartbeat import Heartbeat
from sleipnir_workers.visits.live import LiveText, VisitEmissions
from sleipnir_workers.visits.short_nodes import ShortNodes

UNREADABLE_MS = 5_000  # until a visit that this release cannot read is published again
REPLICATED_MS = 1_000  # for one question to Redis, well below its socket timeout


@dataclass(frozen=True)
class PreparedVisit:
    """A visit that is about to be claimed, and what the worker has for it. Without a graph or its node (None), it fails
    with `problem`. `lost` is set when it was lost."""

    request: WantedVisit
    unpacked: Unpacked | None
    node: Node | None
    problem: str
    lost: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Worker:
    """The parts of a worker process: the store, the bundles on this machine, its name and its heartbeat."""

    name: str
    settings: Settings
    store: Store
    bundles: BundleCache
    heartbeat: Heartbeat
    drain: Drain
    live: LiveText
    permits: Permits
    caching: VisitCache
    report: Callable[[MachineFailed], None] = lambda _: None
    """Called when this machine could not run a visit (consumer/intake.py)."""
    process: str = field(default_factory=lambda: os.urandom(12).hex())
    """Random. A token is this and a number of `executions`; a random token per visit would cost a system call."""
    executions: Iterator[int] = field(default_factory=count)
    functions: dict[str, set[str]] = field(default_factory=dict)
    """By bundle, the nodes whose functions this process has called."""
    lacking: MissingDirectories = field(default_factory=MissingDirectories)
    short_nodes: ShortNodes = field(default_factory=ShortNodes)

    @classmethod
    def open(
        cls, name: str, settings: Settings, drain: Drain, report: Callable[[MachineFailed], None] = lambda _: None
    ) -> Worker:
        """Connect. Raises StoreUnavailable and ConfigError."""
        tracing.configure("sleipnir-worker")
        store = Store.open(settings, client_name="sleipnir-worker")
        bundles = BundleCache(
            settings.home / UNPACKED, store.bundle, settings.bundle_cache_bytes, settings.max_unpacked_bytes
        )
        permits, caching = Permits(store, settings), fleet_cache(store, settings)
        lease_ms = int(settings.lease_s * 1000)

        def renew() -> None:
            permits.renew()
            renew_cache(store, caching)

        heartbeat = Heartbeat(store, every_s=settings.heartbeat_s, lease_ms=lease_ms, also=renew)
        drain.when_over(heartbeat.stop_all)
        return cls(name, settings, store, bundles, heartbeat, drain, LiveText(store), permits, caching, report)

    @property
    def lease_ms(self) -> int:
        return int(self.settings.lease_s * 1000)

    @cached_property
    def delivery(self) -> ResultDelivery:
        return ResultDelivery(self.name, self.settings, self.store, self.drain)

    def run(self, call: VisitCall) -> dict[str, Any]:
        """Execute a visit, if its claim succeeds. Returns the summary that Flower shows: keys written and next edge.
        Raises MachineFailed when this machine cannot execute it and nothing was claimed.

        Log lines of the execution name the visit, and its spans belong to the visit.
        """
        with handling(call.run, call.node, call.seq, call.attempt), self.bundles.used(call.bundle):
            if self.lacking.passes(call.run, call.seq):
                self.store.visits.publish_soon(call.run, call.seq, call.attempt, within_ms=PASS_MS)
                return {"later": "left to a worker that has the working directory"}
            return self._run(call)

    def _run(self, call: VisitCall) -> dict[str, Any]:
        visit = self.prepared(call)
        claim = self.store.visits.claim(
            call, worker=self.name, token=visit.request.token, lease_ms=self.lease_ms, wanted=visit.request.wanted
        )
        if isinstance(claim, ClaimRefused):
            return self.refused(call, claim)
        self.heartbeat.hold(call, visit.lost)
        try:
            return self.execute(visit, claim, self.delivery.deliver)
        finally:
            self.heartbeat.release(call)

    def prepared(self, call: VisitCall) -> PreparedVisit:
        """Raises StoreUnavailable, and MachineFailed when this machine cannot execute it."""
        try:
            unpacked: Unpacked | None = self.bundles.get(call.bundle, call.agent)
            problem = ""
        except StoreUnavailable:
            raise  # nothing is wrong with the bundle; the message is published again
        except MachineFailed as failure:
            self.report(failure)
            raise  # the bundle is sound; another worker can take the visit
        except Exception as error:
            # Any other error of the bundle must fail the visit visibly; otherwise its message is published for ever.
            if not isinstance(error, BundleError | GraphError):
                structlog.get_logger().exception("bundle cannot be used")
            unpacked, problem = None, f"{type(error).__name__}: {error}"
        node = unpacked.graph.nodes.get(call.node) if unpacked else None
        token = f"{self.process}-{next(self.executions)}"
        return PreparedVisit(
            WantedVisit(call, token, self._state_keys(call.role, unpacked, node)), unpacked, node, problem
        )

    def execute(
        self, visit: PreparedVisit, claim: Claim, deliver: Callable[[PreparedDelivery], dict[str, Any]]
    ) -> dict[str, Any]:
        """Execute a claimed visit whose lease is renewed, and `deliver` its result, or hand it back."""
        call = visit.request.call
        with tracing.executing(call.shown_name, (call.run, call.seq, call.attempt)) as span:
            summary = self._execute_claimed(visit, claim, deliver)
            if span is not None:
                span.set_attributes({"sleipnir.run": call.run, "sleipnir.worker": self.name})
                if "refused" in summary or not summary.get("ok", True):
                    tracing.failed(span, "late_result" if "refused" in summary else summary.get("error", "failed"))
            return summary

    def refused(self, call: VisitCall, claim: ClaimRefused) -> dict[str, Any]:
        self._report_refusal(call, claim.reason)
        return {"refused": claim.reason}

    def _report_refusal(self, call: VisitCall, reason: str) -> None:
        log = structlog.get_logger()
        if reason == "forged":
            dropped.add(f"message of run {call.run} names another bundle, agent, node or role than the run's records")
        elif reason == "unreadable":
            dropped.add(f"visit {call.run}/{call.seq} is of a newer release, or damaged")
            self.store.visits.publish_soon(call.run, call.seq, call.attempt, within_ms=UNREADABLE_MS)
        else:
            log.debug("claim refused", reason=reason)

    def _execute_claimed(
        self, visit: PreparedVisit, claim: Claim, pass_on: Callable[[PreparedDelivery], dict[str, Any]]
    ) -> dict[str, Any]:
        """Without a graph or its node, the visit fails with `problem`."""
        call, node, unpacked = visit.request.call, visit.node, visit.unpacked
        token, lost, started = visit.request.token, visit.lost, time.monotonic()

        def deliver(result: VisitResult) -> dict[str, Any]:
            took_s = time.monotonic() - started
            if node is not None and not is_once(call, node):
                self.short_nodes.note(call, took_s)
            took_ms = int(took_s * 1000)
            return pass_on(self.delivery.prepared(call, result, claim, node, token=token, took_ms=took_ms))

        try:
            if unpacked is None or node is None:
                problem = visit.problem or f"node {call.node!r} is not in the graph"
                result: VisitResult | None = VisitResult(ok=False, error=problem, error_kind=DEFINITION)
            elif not self._may_begin(call, node, lost):
                return self.delivery.end_without_result(call, token, "machine")
            else:
                overrides = claim.spec.overrides.get(call.agent)
                intact = self._reads_bundle(call, node)
                unpacked = self.bundles.get(call.bundle, call.agent, overrides, intact=intact)
                execution = self._execution(call, claim, unpacked, unpacked.graph.nodes[call.node], lost)
                self._log_state(execution, claim)
                result = self._result(call, execution, unpacked, claim.spec)
            if result is None:
                return self.delivery.end_without_result(call, token)
            return deliver(result)
        except (BundleError, GraphError) as error:
            return deliver(VisitResult(ok=False, error=f"{type(error).__name__}: {error}", error_kind=DEFINITION))
        except ProcessLost:
            return self.delivery.end_without_result(call, token, "process_lost")
        except MachineFailed as failure:
            structlog.get_logger().error("the machine cannot run the visit", reason=str(failure))
            self.report(failure)
            return self.delivery.end_without_result(call, token, "process_lost" if failure.begun else "machine")
        except DirectoryMissing as error:
            structlog.get_logger().warning("another worker may have the working directory", reason=str(error))
            if claim.spec.cwd:
                self.lacking.add(call.run, call.seq, claim.spec.cwd)
            return self.delivery.end_without_result(call, token, "directory")

    def _result(self, call: VisitCall, execution: Execution, unpacked: Unpacked, spec: RunSpec) -> VisitResult | None:
        """The result of the visit, which may be that of an earlier one. None: it was lost."""

        def run(execution: Execution) -> VisitResult | None:
            with (
                self._with_text_sink(execution) as streamed,
                node_streams.connected(streamed, spec, lambda: self.store.streams) as joined,
            ):
                result = execute(joined)
                node_streams.close(joined, result)
            if is_command(call, execution.node) and result is not None and result.ok:
                return unless_changed(execution, unpacked, result)
            return result

        if not callbacks.has_callbacks(execution.graph, execution.node, execution.role):
            return self.caching.result(execution, lambda: run(execution))
        if call.attempt > 1:
            with self.store.errors():
                failures, input_changed = self.store.visits.tries(call)
                execution = changed(execution, failures=failures, input_changed=input_changed)
        execution = changed(execution, child_visits=self._child_visits)
        with self._with_emissions(execution, calls_back=True) as emitting:
            return callbacks.around(emitting, self.caching.result, run)

    def _child_visits(self, run: str) -> Visits:
        with self.store.errors():
            yield from self.store.runs.written_keys(run)

    def _reads_bundle(self, call: VisitCall, node: Node) -> bool:
        """Whether the visit reads files of its bundle. A Python function reads them once per process, when loaded."""
        if not isinstance(node, FunctionNode) and call.role not in ("branch", "reduce", "before_run", "after_run"):
            return True
        called_nodes = self.functions.setdefault(call.bundle, set())
        if call.node in called_nodes:
            return False
        if len(self.functions) > KEPT:
            self.functions.clear()
        called_nodes.add(call.node)
        return True

    def _may_begin(self, call: VisitCall, node: Node, lost: threading.Event) -> bool:
        """For a visit that must happen once, wait until `once_wait_replicas` replicas have its claim: a replica that
        becomes the master then knows that the visit has begun. False: the visit was lost, or the worker drains."""
        replicas = self.settings.once_wait_replicas
        if not replicas or not is_once(call, node):
            return True
        tries = 0
        while not lost.is_set() and not self.drain.begun.is_set():
            try:
                with self.store.errors():
                    if self.store.visits.is_replicated(
                        call, lease_ms=self.lease_ms, replicas=replicas, timeout_ms=REPLICATED_MS
                    ):
                        return True
                problem = f"fewer than {replicas} replicas of Redis confirm the claim"
            except StoreUnavailable as error:
                problem = str(error)
                lost.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
            if tries == 0:
                structlog.get_logger().warning("a visit that must happen once waits", reason=problem)
            tries += 1
        return False

    def _state_keys(self, role: Role, unpacked: Unpacked | None, node: Node | None) -> Collection[str] | None:
        """The state keys to fetch: what the visit reads, or everything (None) when snapshots are logged.

        Reducers read only their visit's overlay, which every claim returns.
        """
        if unpacked is not None and node is not None and callbacks.has_callbacks(unpacked.graph, node, role):
            return None
        if unpacked is None or node is None or role in ("reduce", "tool", "summary"):
            return ()
        if role in ("branch", "before_run", "after_run"):
            return None
        snapshots = self.settings.log_level in ("debug", "trace") and unpacked.graph.settings.log_state_snapshots
        graph = unpacked.graph
        read = None if snapshots else state_read_by(node, graph.loop, summarises=graph.summary is not None)
        policy = unpacked.graph.cache_of(node)
        if policy is None or read is None:
            return read
        wanted = state_wanted(policy, node, unpacked.graph)
        return None if wanted is None else read | wanted

    def _log_state(self, execution: Execution, claim: Claim) -> None:
        """Size and keys at debug; the values at trace only, because state can hold secrets (spec 2.13)."""
        if not execution.graph.settings.log_state_snapshots or self.settings.log_level not in ("debug", "trace"):
            return
        log, prefix = structlog.get_logger(), f"[graph:{execution.agent}] [{execution.node.id}]"
        size = sum(len(key) + len(text) for key, text in claim.state.items())
        log.debug(f"{prefix} state: {size} bytes, keys={sorted(claim.state)}")
        if self.settings.log_level == "trace":
            log.debug(f"{prefix} full state: {json.dumps(dict(execution.state), ensure_ascii=False)}")

    def _execution(
        self, call: VisitCall, claim: Claim, unpacked: Unpacked, node: Node, lost: threading.Event
    ) -> Execution:
        spec = claim.spec
        cwd: Path | None = as_path(spec.cwd) if spec.cwd else None
        scratch: Path | None = None
        if is_command(call, node):
            cwd, scratch = working_directory(call.run, spec, self.settings)
        return Execution(
            run=call.run,
            node=node,
            seq=call.seq,
            attempt=call.attempt,
            agent=call.agent,
            graph=unpacked.graph,
            folder=unpacked.folder,
            state=StoredState(claim.state),
            variables=spec.variables,
            cwd=cwd,
            scratch=scratch,
            caller_dir=as_path(spec.caller_dir) if spec.caller_dir else None,
            lost=lost,
            role=call.role,
            item=claim.item,
            part=claim.part,
            talk=claim.talk,
            session=spec.session,
            depth=spec.depth,
            knowledge=spec.base_of(call.node),
            config=spec.config,
            context=spec.context,
            step=claim.step,
            limited_from=claim.limited_from,
            permits=self.permits,
        )

    def _with_emissions(self, execution: Execution, *, calls_back: bool = False) -> AbstractContextManager[Execution]:
        """The execution, with what takes what its node, or its callbacks, emit, if that is streamed."""
        emits = calls_back or (isinstance(execution.node, EMITTING) and execution.role == "node")
        if execution.emissions is not None or not self.settings.stream or not emits:
            return nullcontext(execution)
        return self._emitting(execution)

    @contextmanager
    def _emitting(self, execution: Execution) -> Iterator[Execution]:
        place = execution.run, execution.node.id, execution.seq, execution.attempt
        with VisitEmissions(lambda: self.live.open_emissions(*place)) as emissions:
            yield changed(execution, emissions=emissions)

    def _with_text_sink(self, execution: Execution) -> AbstractContextManager[Execution]:
        """The execution, with what takes the text of its model or what its node emits, if these are streamed."""
        node = execution.node
        if self.settings.stream and isinstance(node, LlmNode) and execution.role in ("node", "turn"):
            return self._streaming(execution)
        return self._with_emissions(execution)

    @contextmanager
    def _streaming(self, execution: Execution) -> Iterator[Execution]:
        turn = execution.part.turn if execution.part is not None else 0
        with self.live.open(execution.run, execution.node.id, execution.seq, execution.attempt, turn=turn) as text_sink:
            yield changed(execution, text_sink=text_sink)


def is_once(call: VisitCall, node: Node) -> bool:
    """Whether executing the visit has an effect that must happen once."""
    return isinstance(node, ScriptNode | FunctionNode) and node.effect == "once" and call.role == "node"


def is_command(call: VisitCall, node: Node) -> bool:
    """Whether the visit starts programs."""
    return isinstance(node, ScriptNode | ToolNode) or call.role == "tool"
