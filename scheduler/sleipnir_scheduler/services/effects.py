"""Deliver what commits owe to other runs: start child runs, tell children and parents. Without it no child ever starts.

An effect stays in its partition's stream until it was delivered, so a death anywhere loses none; it may be delivered
again, and changes nothing then: a child's id follows from its parent's visit, and the planner ignores what it knows.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from sleipnir.errors import SleipnirError, StoreUnavailable
from sleipnir.runs import RunSpec
from sleipnir.store.effects import Effects, Owed
from sleipnir.submission import state_at_start
from sleipnir.transitions import StartChild, TellChild, TellParent, TellRoot, TellRun
from sleipnir.variables import resolved_variables
from sleipnir_scheduler.graphs import Graphs

AT_ONCE = 100


class Deliveries:
    """`max_state_bytes` bounds what a child's state may begin with."""

    def __init__(self, store: Effects, graphs: Graphs, *, max_state_bytes: int) -> None:
        self._store, self._graphs, self._max_state_bytes = store, graphs, max_state_bytes
        self._log = structlog.get_logger().bind(service="effects")

    def run_once(self, partitions: Collection[int], block_ms: int) -> int:
        """Deliver what there is; waits up to `block_ms` for the first. Returns how many; -1 when there are some that
        this release cannot deliver, and no others."""
        owed = self._store.read(partitions, limit=AT_ONCE, block_ms=block_ms)
        count = 0
        for each in owed:
            if each.effect is None:
                self._log.warning("an effect of a newer release is left alone", entry=each.id, run=each.run)
                continue
            # One that was frozen since it read them must not repeat what another has delivered meanwhile: a stale
            # `paused` after its `resumed` would hold a child for good.
            if self._store.is_owed(each):
                self._deliver(each)
                self._store.delivered(each)
            count += 1
        return count if count or not owed else -1

    def _deliver(self, owed: Owed) -> None:
        match owed.effect:
            case StartChild():
                self._start(owed.run, owed.effect)
            case TellChild(child, what, by):
                self._store.tell(child, what, by)
            case TellRun(run, what, data):
                self._store.tell_run(run, what, data)
            case TellRoot(type_, data):
                if (spec := self._store.spec(owed.run)) is not None and spec.root is not None:
                    self._store.tell_watchers(spec.root, type_, data)
            case TellParent():
                spec, ended = self._store.spec(owed.run), self._store.result(owed.run)
                if spec is not None and ended is not None:
                    self._store.tell_parent(spec, *ended)

    def _start(self, parent: str, effect: StartChild) -> None:
        above = self._store.spec(parent)
        if above is None:
            return
        try:
            spec, state = self._begin(parent, above, effect)
        except StoreUnavailable:
            raise  # nothing is wrong with the child
        except Exception as error:
            # A bug of ours must end in a visible failure of the parent, not in a stream that stands still for all.
            if not isinstance(error, SleipnirError):
                self._log.exception("a child cannot be started", run=parent, agent=effect.agent)
            why = str(error) if isinstance(error, SleipnirError) else f"internal error: {type(error).__name__}: {error}"
            self._store.refuse(parent, effect.seq, effect.attempt, effect.child, why)
        else:
            self._store.start(effect.child, spec, state)

    def _begin(self, parent: str, above: RunSpec, effect: StartChild) -> tuple[RunSpec, dict[str, object]]:
        """What the child is submitted with. Raises SleipnirError for an agent that cannot run so."""
        if (digest := above.agents.get(effect.agent)) is None:
            raise SleipnirError(f"there was no agent {effect.agent!r} when the run was submitted")
        graph = self._graphs.get(digest, effect.agent, above.overrides.get(effect.agent))
        spec = RunSpec(
            agent=effect.agent,
            bundle=digest,
            variables=resolved_variables(graph, above.presets.get(effect.agent, {})),
            cwd=above.cwd,
            caller_dir=above.caller_dir,
            agents=above.agents,
            overrides=above.overrides,
            presets=above.presets,
            parent=parent,
            parent_seq=effect.seq,
            parent_attempt=effect.attempt,
            root=above.root or parent,
            depth=above.depth + 1,
            path=[*above.path, effect.node],
        )
        return spec, state_at_start(graph, effect.prompt, {}, self._max_state_bytes)
