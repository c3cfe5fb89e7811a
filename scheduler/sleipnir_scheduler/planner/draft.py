"""The transition under construction: bookkeeping of visits, steps and counters, so that plan.py reads as decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.graph.model import Json, Node
from sleipnir.messages import ResultHeader, RunStatus
from sleipnir.runs import RUN_DEADLINE, Gate, Notice, RunView, Step, Timing, Transition, Visit, Write


class Draft:
    """What one event changes, so far. Mutable, and never leaves one call of plan()."""

    def __init__(self, run: RunView, now_ms: int) -> None:
        self._run, self._now_ms = run, now_ms
        self.started_ms = run.started_ms
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
        self._forgiven.add(node)
        self._step += 1
        self._writes.append(Write(Step(step=self._step, kind="retried", at_ms=self._now_ms, next=node)))
        self.notice("run_retried", node=node)

    def dispatch(self, node: Node, queue: str) -> None:
        """Open a visit that a worker executes."""
        self._opened(node, queue)

    def ask(self, node: Node, gate: Gate) -> None:
        """Open a visit that waits for a person."""
        visit = self._opened(node, None)
        self._gates.append(replace(gate, seq=visit.seq))
        self.notice(
            "gate_opened",
            seq=visit.seq,
            node=node.id,
            kind=node.kind,
            question=gate.question,
            options=list(gate.options),
            default=gate.default,
        )

    def pass_through(self, node: Node, writes: Mapping[str, Json]) -> None:
        """A visit that opens and closes in this very commit (an end node)."""
        self._seq += 1
        visit = Visit(self._seq, node.id, node.kind, 1, self._now_ms)
        self.notice("visit_opened", seq=visit.seq, node=node.id, kind=node.kind)
        self._step_of(visit, None, writes)

    def finish(self, visit: Visit, header: ResultHeader, target: str | None) -> None:
        """Close a visit with a worker's result; its delta is applied by the store."""
        self._close.append(visit)
        self._fields["delivered"] = visit.seq
        self._step += 1
        step = Step(
            step=self._step,
            kind=visit.kind,
            at_ms=self._now_ms,
            seq=visit.seq,
            node=visit.node,
            attempt=visit.attempt,
            ok=header.ok,
            next=target,
            error=header.error,
            opened_ms=visit.opened_ms,
            started_ms=header.started_ms,
            took_ms=header.took_ms,
            worker=header.worker,
            usage=header.usage,
        )
        self._writes.append(Write(step, delta=bool(header.keys)))
        if header.usage:
            self._fields["usage"] = header.usage
        self._closed(step, header.notes)

    def close(self, visit: Visit, target: str | None, writes: Mapping[str, Json], *, error: str | None = None) -> None:
        """Close a visit that the planner itself decided."""
        self._close.append(visit)
        self._step_of(visit, target, writes, error)

    def redeliver(self, visit: Visit) -> None:
        """Give a visit to another worker, as its next attempt."""
        self._close.append(visit)
        self._open.append(replace(visit, attempt=visit.attempt + 1))

    def end(
        self, status: RunStatus, *, error: str | None = None, output: str | None = None, failed_at: str | None = None
    ) -> None:
        """The run is over: nothing stays open. `failed_at` is where a failed one can be continued."""
        self._open, self._gates = [], []
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
            counts=self._counts,
            timings=self._timings,
            status=self._status or self._live_status(),
            started_ms=self._fields.get("started_ms"),
            ended_ms=self._fields.get("ended_ms"),
            error=self._fields.get("error"),
            failed_at=self._fields.get("failed_at"),
            revives=self._fields.get("revives", False),
            output=self._fields.get("output"),
            usage=self._fields.get("usage"),
            timers={} if self._status else self._timers,
            untimers=(RUN_DEADLINE,) if self._status else (),
            notices=tuple(self._notices),
        )

    def _opened(self, node: Node, queue: str | None) -> Visit:
        self._seq += 1
        visit = Visit(self._seq, node.id, node.kind, 1, self._now_ms, queue)
        self._open.append(visit)
        self.notice("visit_opened", seq=visit.seq, node=node.id, kind=node.kind)
        return visit

    def _step_of(self, visit: Visit, target: str | None, writes: Mapping[str, Json], error: str | None = None) -> None:
        self._step += 1
        self.written.update(writes)
        step = Step(
            step=self._step,
            kind=visit.kind,
            at_ms=self._now_ms,
            seq=visit.seq,
            node=visit.node,
            attempt=visit.attempt,
            ok=error is None,
            next=target,
            error=error,
            opened_ms=visit.opened_ms,
            took_ms=self._now_ms - visit.opened_ms,
        )
        self._writes.append(Write(step, values=writes))
        self._closed(step)

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
        closed = {visit.seq for visit in self._close}
        live = [visit for seq, visit in self._run.frontier.items() if seq not in closed] + self._open
        return "waiting" if live and not any(visit.queue for visit in live) else "running"
