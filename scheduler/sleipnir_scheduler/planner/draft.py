"""The transition under construction: bookkeeping of visits, steps and counters, so that plan.py reads as decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.graph.model import Json, Node
from sleipnir.messages import ResultHeader, RunStatus
from sleipnir.runs import RUN_DEADLINE, Gate, Notice, Pause, RunView, Step, Timing, Transition, Visit, Write


class Draft:
    """What one event changes, so far. Mutable, and never leaves one call of plan()."""

    def __init__(self, run: RunView, now_ms: int) -> None:
        self._run, self._now_ms = run, now_ms
        self.started_ms, self.idle_ms, self.paused = run.started_ms, run.idle_ms, run.paused
        self.written: dict[str, Json] = {}
        self._step, self._seq = run.step, run.seq
        self._counts: dict[str, int] = {}
        self._forgiven: set[str] = set()
        self._timings: dict[str, Timing] = {}
        self._close: list[Visit] = []
        self._open: list[Visit] = []
        self._gates: list[Gate] = []
        self._writes: list[Write] = []
        self._notices: list[Notice] = []
        self._timers: dict[str, int] = {}
        self._wakes: list[Visit] = []
        self._fields: dict[str, Any] = {}
        self._status: RunStatus | None = None

    def start(self, graph: str, start: str, deadline_ms: int | None) -> None:
        self.started_ms = self._fields["started_ms"] = self._now_ms
        self.notice("run_started", graph=graph, start=start, agent=self._run.spec.agent)
        if deadline_ms is not None:
            self.arm_deadline(deadline_ms)

    def arm_deadline(self, deadline_ms: int) -> None:
        """One millisecond later: the rule is "elapsed > timeout", strictly."""
        self._timers[RUN_DEADLINE] = deadline_ms + 1

    def count(self, node: str) -> int:
        """Count an entry into `node`; how many that makes."""
        self._counts[node] = (0 if node in self._forgiven else self._run.counts.get(node, 0)) + 1
        return self._counts[node]

    def revive(self, node: str) -> None:
        """Bring a failed run back: its clock and the cap of the node it failed at start anew."""
        self._fields["revives"] = True
        self.started_ms = self._fields["started_ms"] = self._now_ms
        self.idle_ms = 0
        self._forgiven.add(node)
        self._step += 1
        self._writes.append(Write(Step(step=self._step, kind="retried", at_ms=self._now_ms, next=node)))
        self.notice("run_retried", node=node)

    def pause(self, by: str, reason: str | None) -> None:
        """Hold the run: what is dispatched from here on waits for `resume`."""
        self.paused = Pause(by, self._now_ms, reason)
        self.notice("run_paused", by=by, reason=reason)

    def resume(self) -> None:
        """Let the run go on; its deadline moves by the length of the pause."""
        assert self.paused is not None
        self.idle_ms += self._now_ms - self.paused.at_ms
        self.paused = None
        self._wakes += [visit for visit in self._run.frontier.values() if visit.state == "queued"]
        self.notice("run_resumed")

    def dispatch(self, node: Node, queue: str) -> None:
        """Open a visit that a worker executes."""
        self._opened(node, queue)

    def ask(self, node: Node, gate: Gate, expires_ms: int | None = None) -> None:
        """Open a visit that waits for a person."""
        visit = self._opened(node, None, expires_ms)
        self._put(visit, gate)

    def ask_instead(self, visit: Visit, gate: Gate) -> None:
        """Let a live visit wait for a person; asking the same again is possible."""
        waiting = replace(visit, queue=None, wake_ms=None)
        self._replace(visit, waiting)
        self._put(waiting, gate)

    def _put(self, visit: Visit, gate: Gate) -> None:
        self._gates.append(replace(gate, seq=visit.seq, attempt=visit.attempt))
        self.notice(
            "gate_opened",
            seq=visit.seq,
            attempt=visit.attempt,
            node=visit.node,
            kind=gate.kind,
            question=gate.question,
            options=list(gate.options),
            default=gate.default,
        )

    def pass_through(self, node: Node, writes: Mapping[str, Json]) -> None:
        """A visit that opens and closes in this very commit (an end node)."""
        self._seq += 1
        visit = Visit(self._seq, node.id, node.kind, 1, self._now_ms)
        self.notice("visit_opened", seq=visit.seq, node=node.id, kind=node.kind)
        self._decided(visit, None, writes)

    def finish(self, visit: Visit, header: ResultHeader, target: str | None, notes: tuple[str, ...]) -> None:
        """Close a visit with a worker's result; its delta is applied by the store. `notes` are for watchers."""
        self._close.append(visit)
        self._fields["delivered"] = visit.seq
        step = self._step_of(
            visit,
            target,
            ok=header.ok,
            error=header.error,
            started_ms=header.started_ms,
            took_ms=header.took_ms,
            worker=header.worker,
            usage=header.usage,
        )
        self._writes.append(Write(step, delta=bool(header.keys)))
        if header.usage:
            self._fields["usage"] = header.usage
        self._closed(step, notes)

    def close(self, visit: Visit, target: str | None, writes: Mapping[str, Json], *, error: str | None = None) -> None:
        """Close a visit that the planner itself decided."""
        self._close.append(visit)
        self._decided(visit, target, writes, error)

    def redeliver(self, visit: Visit, *, losses: int = 0, queue: str | None = None) -> None:
        """Give a visit to another worker, as its next attempt; `losses` more workers died on it."""
        again = replace(
            visit, attempt=visit.attempt + 1, losses=visit.losses + losses, queue=queue or visit.queue, wake_ms=None
        )
        self._replace(visit, again)

    def try_again(self, visit: Visit, header: ResultHeader, at_ms: int, most: int) -> None:
        """Put a failed visit off until `at_ms`, as its next attempt. What it delivered is dropped, its cost is not."""
        self._fields |= {"delivered": visit.seq, "usage": header.usage}
        again = replace(
            visit, attempt=visit.attempt + 1, failures=visit.failures + 1, wake_ms=at_ms, error=header.error
        )
        self._replace(visit, again)
        self.notice(
            "visit_retrying",
            seq=visit.seq,
            node=visit.node,
            attempt=again.failures,
            max_attempts=most,
            delay_ms=at_ms - self._now_ms,
            error=header.error,
        )

    def wake(self, visit: Visit) -> None:
        """The time of a visit that was put off has come."""
        self._replace(visit, replace(visit, wake_ms=None))

    def _replace(self, visit: Visit, by: Visit) -> None:
        self._close.append(visit)
        self._opens(by)

    def unless_claimed(self) -> None:
        """Let the commit be void when a worker has one of the visits by then."""
        self._fields["unless_claimed"] = True

    def end(
        self, status: RunStatus, *, error: str | None = None, output: str | None = None, failed_at: str | None = None
    ) -> None:
        """The run is over: nothing stays open. `failed_at` is where a failed one can be continued."""
        self._open, self._gates, self._wakes = [], [], []
        closed = {visit.seq for visit in self._close}
        self._close += [visit for seq, visit in self._run.frontier.items() if seq not in closed]
        self._status = status
        self._fields |= {"ended_ms": self._now_ms, "error": error, "output": output, "failed_at": failed_at}
        self.notice(
            "run_ended",
            status=status,
            error=error,
            took_ms=self._now_ms - (self.started_ms or self._now_ms),
            output_bytes=len(output.encode()) if output is not None else 0,
        )

    def notice(self, type_: str, **data: Any) -> None:
        self._notices.append(Notice(type_, data))

    def transition(self) -> Transition:
        return Transition(
            close=tuple(self._close),
            open=tuple(self._open),
            gates=tuple(self._gates),
            writes=tuple(self._writes),
            delivered=self._fields.get("delivered"),
            wakes=tuple(self._wakes),
            unless_claimed=self._fields.get("unless_claimed", False),
            counts=self._counts,
            timings=self._timings,
            status=self._status or self._live_status(),
            started_ms=self._fields.get("started_ms"),
            ended_ms=self._fields.get("ended_ms"),
            error=self._fields.get("error"),
            failed_at=self._fields.get("failed_at"),
            paused=None if self._status else self.paused,
            idle_ms=self.idle_ms,
            revives=self._fields.get("revives", False),
            output=self._fields.get("output"),
            usage=self._fields.get("usage"),
            timers={} if self._status else self._timers,
            untimers=self._ended_timers(),
            notices=tuple(self._notices),
        )

    def _ended_timers(self) -> tuple[str, ...]:
        timers = tuple(visit.timer for visit in self._close if visit.wake_ms is not None)
        return (*timers, RUN_DEADLINE) if self._status else timers

    def _opened(self, node: Node, queue: str | None, wake_ms: int | None = None) -> Visit:
        self._seq += 1
        visit = Visit(self._seq, node.id, node.kind, 1, self._now_ms, queue, wake_ms=wake_ms)
        self._opens(visit)
        self.notice("visit_opened", seq=visit.seq, node=node.id, kind=node.kind)
        return visit

    def _opens(self, visit: Visit) -> None:
        self._open.append(visit)
        if visit.wake_ms is not None:
            self._timers[visit.timer] = visit.wake_ms

    def _decided(self, visit: Visit, target: str | None, writes: Mapping[str, Json], error: str | None = None) -> None:
        """A visit ends by the planner's own decision."""
        self.written.update(writes)
        took_ms = self._now_ms - visit.opened_ms
        step = self._step_of(visit, target, ok=error is None, error=error, took_ms=took_ms)
        self._writes.append(Write(step, values=writes))
        self._closed(step)

    def _step_of(self, visit: Visit, target: str | None, **how: Any) -> Step:
        self._step += 1
        return Step(
            step=self._step,
            kind=visit.kind,
            at_ms=self._now_ms,
            seq=visit.seq,
            node=visit.node,
            attempt=visit.attempt,
            next=target,
            opened_ms=visit.opened_ms,
            **how,
        )

    def _closed(self, step: Step, notes: tuple[str, ...] = ()) -> None:
        node = str(step.node)
        timing = self._timings.get(node) or self._run.timings.get(node) or Timing()
        self._timings[node] = timing.plus(step.took_ms)
        self.notice(
            "visit_closed",
            seq=step.seq,
            node=step.node,
            kind=step.kind,
            ok=step.ok,
            next=step.next,
            took_ms=step.took_ms,
            notes=list(notes),
            error=step.error,
        )

    def _live_status(self) -> RunStatus:
        """Waiting when every live visit waits for something else than a worker."""
        if self.paused is not None:
            return "paused"
        closed = {visit.seq for visit in self._close}
        live = [visit for seq, visit in self._run.frontier.items() if seq not in closed] + self._open
        return "waiting" if live and not any(visit.state == "queued" for visit in live) else "running"
