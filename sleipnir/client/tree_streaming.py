"""The streams of a run and of all runs below it, as one resumable sequence.

Each run has a reader of its own (streaming.Reader). Of their next events the earliest comes first, so those of one run
stay in order, and those of a child come after the event that announces it. The cursor is JSON: {run: position}.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sleipnir.client.streaming import BLOCK_MS, Position, Reader, VisibleEvents, patiently, wanted_modes
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import StreamEvent, StreamMode, TreeEvent, mode_of
from sleipnir.store.store import Store
from sleipnir.store.streams import ms_of

MOST_FOLLOWED = 64  # runs that are read at once
MOST_KNOWN = 1_000  # runs that a cursor names
_MOST_BETWEEN_LOOKS = 100  # events that are passed before the runs without any are looked at again
_OF_CHILDREN = frozenset(("child_started", "child_retried", "child_ended"))
_AHEAD = "?"  # after the position of a run that may yet begin, or continue
_END = object()


@dataclass
class _Branch:
    """One run. Everything up to `at` was passed. It is open while it has `events`; `head` is the next one, None if
    there is none for now. A branch that is not `settled` may yet begin or continue: its parent has not said how it
    ended."""

    run: str
    parent: str | None
    path: tuple[str, ...]
    at: str
    settled: bool = False
    scope: str | None = None
    reader: Reader | None = None
    events: Iterator[StreamEvent | None] | None = None
    head: StreamEvent | None = None
    reads_pieces: bool = False
    was_read: bool = False  # to the end that it had then
    is_over: bool = False
    is_final: bool = False  # it has completed
    is_orphan: bool = False  # no run is left that could continue it

    @property
    def cursor(self) -> str:
        return self.at if self.settled else f"{self.at}{_AHEAD}"


def _place(branch: _Branch) -> tuple[int, int]:
    """Within one millisecond, runs further below come first: their ends come before what is said of these."""
    assert branch.head is not None
    return branch.head.at_ms, -len(branch.path)


def stream(
    store: Store,
    run_id: str,
    modes: Collection[StreamMode] | None,
    cursor: str | None,
    visible: VisibleEvents,
    event_scope: str | None,
) -> Iterator[TreeEvent]:
    """See Run.stream, with `subgraphs`."""
    return _Tree(store, run_id, wanted_modes(modes, visible), visible, event_scope).follow(_read_cursor(run_id, cursor))


def _read_cursor(run_id: str, cursor: str | None) -> dict[str, str]:
    if cursor is None:
        return {run_id: str(Position())}
    try:
        places: Any = json.loads(cursor)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict) or run_id not in places or not all(isinstance(at, str) for at in places.values()):
        raise UsageError(
            f"{cursor!r:.80} is not a position in the stream of run {run_id!r} and the runs below it; give the `id` of "
            "an event that was read with `subgraphs`"
        )
    for at in places.values():
        Position.parse(at.removesuffix(_AHEAD))
    return places


class _Tree:
    """Follows a run and those below it for one caller."""

    def __init__(
        self,
        store: Store,
        top: str,
        wanted: frozenset[StreamMode],
        visible: VisibleEvents,
        event_scope: str | None,
    ) -> None:
        self._store, self._top, self._wanted, self._visible, self._scope = store, top, wanted, visible, event_scope
        self._branches: dict[str, _Branch] = {}
        self._above = 0  # the number of runs above the top
        self._before_look = 0

    def follow(self, places: Mapping[str, str]) -> Iterator[TreeEvent]:
        yield from self._begin(places)
        while any(not branch.is_over for branch in self._branches.values()):
            ready = [branch for branch in self._branches.values() if branch.head is not None]
            if not ready or self._before_look <= 0:
                self._before_look = _MOST_BETWEEN_LOOKS
                yield from self._look(wait=not ready)
                continue
            self._before_look -= 1
            yield from self._take(min(ready, key=_place))

    def _begin(self, places: Mapping[str, str]) -> Iterator[TreeEvent]:
        spec = patiently(self._store, lambda: self._store.runs.spec(self._top))
        self._above = len(spec.path)
        self._branches[self._top] = top = _Branch(self._top, None, (), places[self._top], True, spec.event_scope)
        for run, at in places.items():
            if run != self._top:
                self._branches[run] = _Branch(run, None, (), at.removesuffix(_AHEAD), not at.endswith(_AHEAD))
        for branch in list(self._branches.values()):
            if branch is not top and (spec_ := self._spec(branch.run)) is not None:
                self._describe(branch, spec_)
        yield from self._open(top)

    def _look(self, *, wait: bool) -> Iterator[TreeEvent]:
        """Read on in the runs that have more, or that may have ended. With `wait`, until there is something or some
        time has passed."""
        branches = list(self._branches.values())
        free = MOST_FOLLOWED - sum(branch.events is not None for branch in branches)
        open_ = [branch for branch in branches if branch.events is not None and branch.head is None]
        closed = [branch for branch in branches if branch.events is None and not branch.is_over]
        unread = [branch for branch in closed if branch.settled and not branch.was_read][: max(0, free)]
        for branch in unread:
            yield from self._open(branch)
        free -= len(unread)
        ahead = [branch for branch in closed if branch.was_read or not branch.settled] if free > 0 else []
        wait = wait and not unread and not any(branch.settled for branch in ahead)
        more = self._with_more([*open_, *ahead], wait=wait)
        for branch in open_:
            if branch.run in more or (wait and not more):
                yield from self._advance(branch)
        for branch in ahead:
            if branch.run in more and free > 0:
                free -= 1
                yield from self._open(branch)
            elif branch.run not in more and branch.settled:
                self._end(branch)

    def _with_more(self, branches: Sequence[_Branch], *, wait: bool) -> set[str]:
        after = {}
        for branch in branches:
            events, pieces = Position.parse(branch.at).entries
            after[branch.run] = events, pieces if branch.events is not None and branch.reads_pieces else None
        live, block_ms = self._store.live, BLOCK_MS if wait else None
        return patiently(self._store, lambda: live.runs_with_more(after, block_ms=block_ms)) if after else set()

    def _open(self, branch: _Branch) -> Iterator[TreeEvent]:
        wanted, visible = self._wanted, self._visible
        if branch.run != self._top:
            spec = self._spec(branch.run)
            if spec is None:
                yield from self._lose(branch)
                return
            self._describe(branch, spec)
            if not self._may_show_below(branch):
                self._end(branch)
                return
            if not self._shows(branch):
                wanted, visible = frozenset(), VisibleEvents()
            elif not wanted.isdisjoint(("checkpoints", "debug")) and self._is_dag(spec):
                wanted -= {"checkpoints", "debug"}
        branch.reader = Reader(
            self._store, branch.run, wanted, Position.parse(branch.at), waits=False, also=_OF_CHILDREN
        )
        branch.events = branch.reader.shown(visible)
        branch.reads_pieces = not wanted.isdisjoint(("messages", "custom"))
        yield from self._advance(branch)

    def _advance(self, branch: _Branch) -> Iterator[TreeEvent]:
        """Find the next event of an open branch."""
        assert branch.events is not None
        assert branch.reader is not None
        try:
            event: Any = next(branch.events, _END)
        except RunNotFound:
            if branch.run == self._top:
                raise
            yield from self._lose(branch)
            return
        branch.head = None if event is _END else event
        if branch.head is None:
            branch.at = str(branch.reader.at)
        if event is _END:
            branch.events, branch.reader, branch.was_read = None, None, True
            if branch.settled:
                self._end(branch)

    def _take(self, branch: _Branch) -> Iterator[TreeEvent]:
        """Pass the next event of a branch, if its caller sees it."""
        event, branch.head = branch.head, None
        assert event is not None
        branch.at = event.id
        if event.type == "run_ended":
            branch.is_final = event.data["status"] == "completed"
        is_copy = event.data.get("run", branch.run) != branch.run and "path" in event.data
        lost = self._note(branch, event) if event.type in _OF_CHILDREN and not is_copy else None
        hidden = event.type in _OF_CHILDREN and mode_of(event.type) not in self._wanted
        if not (is_copy or hidden) and self._shows(branch):
            yield self._event(branch, event)
        if lost is not None:
            yield self._gap(lost, event.at_ms)
        yield from self._advance(branch)

    def _note(self, parent: _Branch, event: StreamEvent) -> _Branch | None:
        """What a run says of one that it has started; that one, if there are too many to follow it."""
        child = self._branches.get(event.data["child"])
        if event.type == "child_ended":
            if child is not None:
                child.settled = True
                if event.data["status"] == "refused":  # there is no such run
                    self._forget(child)
        elif child is not None:
            child.settled, child.is_over, self._before_look = False, False, 0
        elif event.type == "child_started":
            path = (*parent.path, event.data["node"])
            child = _Branch(event.data["child"], parent.run, path, str(Position()), scope=parent.scope)
            if len(self._branches) >= MOST_KNOWN:
                return child
            self._branches[child.run], self._before_look = child, 0
        return None

    def _lose(self, branch: _Branch) -> Iterator[TreeEvent]:
        """The run is gone, or never was, so that nothing is left of its events."""
        if self._shows(branch):
            yield self._gap(branch, ms_of(Position.parse(branch.at).event))
        branch.is_final = True
        self._end(branch)

    def _end(self, branch: _Branch) -> None:
        """Nothing more comes of a branch, unless its parent retries it: runs below it neither begin nor continue."""
        branch.is_over, branch.events, branch.reader, branch.head = True, None, None, None
        for child in [each for each in self._branches.values() if each.parent == branch.run]:
            child.settled = True
        if branch.is_final or branch.is_orphan:
            self._forget(branch)

    def _forget(self, branch: _Branch) -> None:
        """A run that cannot continue, and thus none below it once it is over, needs no place in the cursor."""
        if branch.run != self._top:
            self._branches.pop(branch.run, None)
        for child in [each for each in self._branches.values() if each.parent == branch.run]:
            child.is_orphan = True
            if child.is_over:
                self._forget(child)

    def _shows(self, branch: _Branch) -> bool:
        scope = branch.scope or ""
        return branch.run == self._top or self._scope is None or f"{scope}/".startswith(f"{self._scope}/")

    def _may_show_below(self, branch: _Branch) -> bool:
        return self._shows(branch) or branch.scope is None or f"{self._scope}/".startswith(f"{branch.scope}/")

    def _describe(self, branch: _Branch, spec: RunSpec) -> None:
        branch.parent, branch.scope = spec.parent, spec.event_scope
        branch.path = tuple(spec.path[self._above :])

    def _spec(self, run_id: str) -> RunSpec | None:
        try:
            return patiently(self._store, lambda: self._store.runs.spec(run_id))
        except RunNotFound:
            return None

    def _is_dag(self, spec: RunSpec) -> bool:
        from sleipnir.client.pinned_graph import pinned_graph

        return patiently(self._store, lambda: pinned_graph(self._store, spec)).engine == "dag"

    def _gap(self, branch: _Branch, at_ms: int) -> TreeEvent:
        return self._event(branch, StreamEvent(branch.at, at_ms, "gap", {"lost": None}, "events"))

    def _event(self, branch: _Branch, event: StreamEvent) -> TreeEvent:
        places = {each.run: each.cursor for each in self._branches.values()}
        seen = replace(event, id=json.dumps(places, separators=(",", ":")))
        return TreeEvent(**vars(seen), run=branch.run, path=branch.path, event_scope=branch.scope)
