"""One call of plan(): its inputs, the draft of what changes, and the state as it will be with that."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sleipnir.graph.model import FunctionNode, Graph, Json, LlmNode, Node, RagNode, ScriptNode, ToolNode
from sleipnir.graph.reducers import ABSENT
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, at_most
from sleipnir.graph.state import checked_of_text
from sleipnir.graph.template import TemplateError, apply_updates, updates_read
from sleipnir.messages import ResultHeader, RunStatus, overlay_of
from sleipnir.redaction import REDACTED, is_secret_name
from sleipnir.runs.run import RunView, Visit, child_id
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.transitions import Collect, Fill, Take, piece_field
from sleipnir.runs.values import Known, Wanted
from sleipnir_scheduler.planner.draft import Draft
from sleipnir_scheduler.planner.folding import Window, Writer
from sleipnir_scheduler.planner.known import require

STEP_TIMER = "step/"
"""What the name of the timer of a super-step begins with; its number follows."""


class RunFailed(Exception):
    """The run cannot go on, whatever else is live. `node` is the node at fault, if one is."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


class VisitFailed(Exception):
    """A visit cannot be started. The others of its step may end."""


@dataclass(frozen=True)
class Outcome:
    """How a visit ended: `keys` were delivered by its worker, a map's results are to be collected, `values` are the
    planner's own. `next` and `sends` are what the node itself chose. `how` are fields of the journal step."""

    ok: bool = True
    error: str | None = None
    keys: tuple[str, ...] = ()
    collect: Collect | None = None
    values: Mapping[str, Json] = field(default_factory=dict)
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, header: ResultHeader, notes: tuple[str, ...]) -> Outcome:
        """What a worker has delivered."""
        how = {name: getattr(header, name) for name in ("started_ms", "took_ms", "worker", "usage")}
        chosen = {"next": header.next, "sends": header.sends}
        return cls(ok=header.ok, error=header.error, keys=header.keys, notes=notes, how=how, **chosen)  # type: ignore[arg-type]

    @property
    def written(self) -> tuple[str, ...]:
        """The state keys it writes."""
        collected = (self.collect.key,) if self.collect else ()
        return (*dict.fromkeys((*self.keys, *collected, *self.values)),)


@dataclass(frozen=True)
class _InStep:
    """A value that stands in a journal step."""

    step: int


class Context:
    """What every decision is made with."""

    def __init__(
        self,
        graph: Graph,
        run: RunView,
        now_ms: int,
        known: Known,
        max_redeliveries: int,
        generation: str = "",
        *,
        defers: bool = False,
    ) -> None:
        self.graph, self.run, self.now_ms, self.known = graph, run, now_ms, known
        self.max_redeliveries, self.generation = max_redeliveries, generation
        self.defers = defers
        """Of a run that is held: that no way on is looked for before it goes on."""
        self.draft = Draft(run, now_ms)
        self._latest: dict[str, Any] = {}

    # Values

    def state(self, keys: Collection[str], visit: Visit | None = None) -> dict[str, Json]:
        """Values of these keys as this commit leaves them so far, or as `visit` alone sees them; absent ones are left
        out. Raises Missing."""
        own = self.overlay(visit) if visit else {}
        rest = [key for key in keys if key not in own]
        self._require(rest)
        found = {key: value for key in rest if (value := self._value(key)) is not ABSENT}
        return {**found, **{key: own[key] for key in keys if key in own}}

    def whole_state(self) -> dict[str, Json]:
        """All of it. Raises Missing."""
        require(self.known, Wanted(whole=True))
        self._require(self._latest)
        return {**self.known.state, **{key: self._value(key) for key in self._latest}}

    def current(self, key: str) -> Json:
        """One key's value, or ABSENT. Raises Missing."""
        self._require([key])
        return self._value(key)

    def overlay(self, visit: Visit) -> dict[str, Json]:
        """The values that this visit alone sees. Raises Missing."""
        if visit.overlay is None:
            return {}
        of, _, index = visit.overlay.rpartition(".")
        left = self.draft.left.get(visit.overlay)
        if isinstance(left, Fill):
            text = left.text
        elif isinstance(left, Take):
            return self._taken(visit.overlay, left)
        elif (private := self.draft.put_aside.get(visit.overlay)) is not None:
            return dict(private)
        elif int(of) == self.draft.split:
            require(self.known, Wanted(updates=True))
            # where no command has an update, none is delivered
            text = self.known.updates[int(index)] if self.known.updates else ""
        else:
            require(self.known, Wanted(items=frozenset([visit.overlay, *self._next_overlays(visit)])))
            text = self.known.items.get(visit.overlay, "")
        return {key: json.loads(value) for key, value in overlay_of(text).items()}

    def _next_overlays(self, visit: Visit) -> list[str]:
        """What visits see alone that start after this one, as many as were fetched before: each fetch doubles them."""
        have = self.known.wanted.items
        if not have or visit.overlay in have:
            return []
        later = (self.draft.frontier[seq] for seq in sorted(self.draft.frontier.ready) if seq > visit.seq)
        return [each.overlay for each in islice(later, len(have)) if each.overlay is not None]

    def require_overlays(self, fields: Iterable[str], node: str) -> None:
        """Ask at once for the values that visits of a node see alone, if they are needed to start them. Raises
        Missing."""
        started = self.graph.nodes.get(node)
        if started is None or isinstance(started, ScriptNode | FunctionNode | LlmNode | ToolNode | RagNode):
            return
        wanted = frozenset(fields) - self.draft.put_aside.keys() - self.draft.left.keys()
        require(self.known, Wanted(items=wanted))

    def _taken(self, overlay: str, left: Take) -> dict[str, Json]:
        """An overlay of which a result of this draft is a part from now on. Raises Missing."""
        keys = frozenset(left.keys)
        require(self.known, Wanted(items=frozenset([overlay]), delta=keys))
        before = overlay_of(self.known.items.get(overlay, ""))
        return {
            **{key: json.loads(value) for key, value in before.items()},
            **{key: self.known.delta[key] for key in keys if key in self.known.delta},
        }

    def step_value(self, step: int, key: str) -> Json:
        """What a step of this draft, or of the past, wrote to a key. Raises Missing."""
        if step <= self.run.step and step in self.known.steps:  # of a wide step, thousands
            return self.known.steps[step][key]
        require(self.known, self._for_step(step, [key]))
        write = self.draft.written(step)
        if write is None:
            return self.known.steps[step][key]
        if key in write.values:
            return write.values[key]
        return self._collected(write.collect) if write.collect else self.known.delta[key]

    def window(self, key: str) -> Window:
        """The updates that a key of a `dag` is made of. Raises Missing."""
        if key in self.draft.windows:
            return Window.from_json(self.draft.windows[key])
        require(self.known, Wanted(windows=frozenset([key])))
        return Window.from_json(self.known.windows[key])

    def require_folds(self, writers: Sequence[Writer], keys: Iterable[str]) -> None:
        """Ask for all that folding these keys takes, at once. Raises Missing."""
        folding = frozenset(keys)
        past: list[int] = []
        writes: list[Wanted] = []
        for each in writers:
            if folding.isdisjoint(each.keys):
                continue
            if each.step <= self.run.step:
                past.append(each.step)
            else:
                writes.append(self._for_step(each.step, folding & set(each.keys)))
        windows = frozenset(key for key in folding & self.draft.tops.keys() if key not in self.draft.windows)
        require(
            self.known,
            Wanted.together([*writes, Wanted(steps=frozenset(past), windows=windows), self._for_keys(folding)]),
        )

    def latest(self, key: str, value: Json) -> None:
        """From here on the key has this value."""
        self._latest[key] = value

    def latest_in(self, step: int, keys: Iterable[str]) -> None:
        """From here on these keys have the values that a step wrote."""
        self._latest |= dict.fromkeys(keys, _InStep(step))

    def _value(self, key: str) -> Json:
        latest = self._latest.get(key, ABSENT)
        if isinstance(latest, _InStep):
            return self.step_value(latest.step, key)
        return self.known.state.get(key, ABSENT) if latest is ABSENT else latest

    def _require(self, keys: Iterable[str]) -> None:
        require(self.known, self._for_keys(keys))

    def _for_keys(self, keys: Iterable[str]) -> Wanted:
        committed, wanted = [], Wanted()
        for key in keys:
            latest = self._latest.get(key, ABSENT)
            if isinstance(latest, _InStep):
                wanted |= self._for_step(latest.step, [key])
            elif latest is ABSENT:
                committed.append(key)
        return wanted | Wanted(state=frozenset(committed))

    def _for_step(self, step: int, keys: Iterable[str]) -> Wanted:
        write = self.draft.written(step)
        if write is None:
            return Wanted(steps=frozenset([step]))
        delivered = {key for key in keys if key not in write.values}
        if write.collect and delivered:
            fields = set(_result_fields(write.collect))
            taken = {op.key for op in self.draft.left.values() if isinstance(op, Take) and op.key is not None}
            return Wanted(items=frozenset(fields - self.draft.left.keys()), delta=frozenset(taken))
        return Wanted(delta=frozenset(delivered))

    def _collected(self, collect: Collect) -> Json:
        if collect.pieces:
            texts = (self.known.items.get(field) for field in _result_fields(collect))
            return json.loads(f"[{','.join(text for text in texts if text)}]")
        results = (self._item_result(field) for field in _result_fields(collect))
        return [result for result in results if result is not ABSENT]

    def _item_result(self, field: str) -> Json:
        """The result of a map's item; ABSENT if it has none."""
        op = self.draft.left.get(field)
        if isinstance(op, Take):
            return self.known.delta[str(op.key)]
        text = op.text if isinstance(op, Fill) else self.known.items.get(field)
        return json.loads(text) if text else ABSENT

    def updates(self, node: Node, state: Mapping[str, Json], value: Json = None) -> dict[str, Json]:
        """What a node's `state_updates` write, given the state and its own result; in the types that the graph
        declares.

        Raises VisitFailed for what does not fit.
        """
        written: dict[str, Json] = {}
        try:
            rendered = apply_updates(node.state_updates, state, scoped=node.scoped, value=value)
        except TemplateError as error:
            raise VisitFailed(str(error)) from None
        with at_most(MOST_STEPS_OF_SCHEDULER):
            for key, text in rendered.items():
                field = self.graph.state.get(key)
                written[key], wrong = (text, None) if field is None else checked_of_text(field, text)
                if wrong is not None:
                    raise VisitFailed(f"state_updates write what the graph's `state:` does not allow: '{key}' {wrong}")
        return written

    def given_up(self, visit: Visit, error: str) -> Outcome:
        """How a visit has ended without a result: as if its node had failed."""
        node = self.graph.nodes[visit.node]
        values: dict[str, Json] = {}
        if visit.role == "node" and visit.item is None:
            values = {"_error": {"node": visit.node, "message": error}, "last_error": error}
            if isinstance(node, LlmNode):
                state, text = self.state(updates_read(node), visit), f"LLM node failed: {error}"
                with suppress(TemplateError):
                    values = dict(apply_updates(node.state_updates, state, scoped=node.scoped, value=text))
        return Outcome(ok=False, error=error, values=values)

    # Questions

    def answered(self, visit: Visit, text: str, by: str) -> None:
        """Note the answer to a question of a visit; where a name of what it is for says secret, not the answer."""
        node = self.graph.nodes.get(visit.node)
        names = (visit.node, *(getattr(node, "state_updates", None) or ()))
        self.draft.answered(visit, REDACTED if any(map(is_secret_name, names)) else text, by)

    # Children

    def child_id(self, seq: int, agent: str) -> str:
        """The id of the run of `agent` that the visit `seq` starts."""
        session = self.run.spec.sessions.get(agent)
        return child_id(self.run.id, seq, None if session is None else str(SessionName(agent, session)))

    # Time and ends

    @property
    def times_steps(self) -> bool:
        """Whether a super-step has a time limit of its own; in a `dag` there are none."""
        return self.graph.engine == "bsp" and bool(self.graph.limits.step_timeout)

    def arm_step(self, number: int | None = None) -> None:
        """From now on a super-step (None: the last) has its whole time."""
        if self.times_steps:
            due_ms = self.now_ms + (self.graph.limits.step_timeout or 0)
            self.draft.arm(f"{STEP_TIMER}{self.draft.steps if number is None else number}", due_ms)

    def deadline_ms(self) -> int | None:
        """When the run's time is up; the clock stands still while it is held."""
        timeout, since_ms = self.graph.settings.timeout, self.draft.held_since_ms
        if timeout is None:
            return None
        idle_ms = self.draft.idle_ms + (0 if since_ms is None else self.now_ms - since_ms)
        return self.draft.started_ms + timeout * 1000 + idle_ms

    def restart_clocks(self) -> None:
        """The run is held no more, unless something else holds it: timers that came meanwhile have come to nothing."""
        if self.draft.holder is not None:
            return
        if (deadline_ms := self.deadline_ms()) is not None and self.run.seq:
            self.draft.arm_deadline(deadline_ms)
        if self.run.frontier:
            self.arm_step()

    def deadline_passed(self) -> bool:
        """Whether the run's time is up. While it is held, what has come is kept: it fails for that once it goes on."""
        deadline_ms = self.deadline_ms()
        return deadline_ms is not None and self.now_ms > deadline_ms and not self.defers

    def timed_out(self, where: str) -> str:
        return f"Graph '{self.graph.name}' timed out after {self.graph.settings.timeout}s {where}"

    def fail(self, message: str, node: str | None = None) -> None:
        """End the run as failed, with Loki's wrapping (spec 2.8)."""
        self.fail_with(at_node(node, message))

    def fail_with(self, message: str) -> None:
        self.end("failed", error=f"Graph execution failed for agent '{self.run.spec.agent}': {message}")

    def end(
        self, status: RunStatus, *, error: str | None = None, output: str | None = None, keeps: bool = False
    ) -> None:
        """The run is over."""
        if self.times_steps:
            self.draft.disarm(f"{STEP_TIMER}{self.draft.steps}")
        self.draft.end(status, error=error, output=output, keeps=keeps)


def _result_fields(collect: Collect) -> list[str]:
    """The items that hold a map's results: of each item, or in pieces."""
    if collect.pieces:
        return [piece_field(collect.id, piece) for piece in range(collect.pieces)]
    return [f"{collect.id}.{index}" for index in range(collect.total)]


def at_node(node: str | None, message: str) -> str:
    return f"at node '{node}': {message}" if node is not None else message
