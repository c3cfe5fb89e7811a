"""The threads of a graph in this process: their runs, and the checkpoints of these (spec/graph-package.md F31, F32).

A thread is a list of runs, oldest first. An input, a fork and an update begin a run; only the newest goes on. The
journal of a run has its checkpoints, as docs/history.md says; a run that is over, or was left because another one has
begun, keeps it in a compact form, and nothing else.

A checkpoint is named `<run>:<journal step>`. The first one of a run that an input began is before its journal, with the
values that the input was written to: `<run>:input`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sleipnir.commands import START
from sleipnir.memory.store import MemoryRun, MemoryStore
from sleipnir.memory.values import RunValues, Texts, json_text
from sleipnir.python_graph.interrupts import Interrupt
from sleipnir.python_graph.snapshots import checkpoint_id
from sleipnir.runs.checkpoints import CheckpointReader, is_visit
from sleipnir.runs.journal import StateFold
from sleipnir.runs.run import Checkpoint, RunSpec, RunView
from sleipnir.runs.transitions import Step
from sleipnir.runs.visits import Branch, Commands, Failed, Visit

Source: TypeAlias = Literal["input", "loop", "update", "fork"]

BEFORE_INPUT: Final = -1
"""The position of the checkpoint before the journal."""

_INPUT: Final = "input"
_NOTHING: Final[Mapping[Any, Any]] = {}
_KEPT: Final = (
    "step", "kind", "at_ms", "seq", "node", "ok", "next", "role", "item", "held", "applies", "skips", "folds", "part",
    "closing",
)  # fmt: skip
"""The fields of a journal step that its compact form has."""

_kept: Final = attrgetter(*_KEPT)


def _is_checkpoint(step: int, *fields: Any) -> bool:
    """Step.is_checkpoint, of the compact form of a step."""
    kept = dict(zip(_KEPT[1:], fields, strict=True))
    if step == 0 or kept["closing"] is not None:
        return True
    return kept["next"] is not None and kept["seq"] is not None and not kept["held"]


class SentVisit(NamedTuple):
    """A visit that a Send asked for, with its overlay."""

    node: str
    overlay: str


class LeftVisit(NamedTuple):
    """A visit that had not ended when its run was left."""

    seq: int
    node: str
    is_sent: bool


class ThreadPlace(NamedTuple):
    """A checkpoint of a thread, by its number and its id."""

    step: int
    id: str


@dataclass(slots=True)
class ThreadRun:
    """A run of a thread. `source` and `first` are the source and the step number of its first checkpoint, `parent` the
    checkpoint that this one follows, `writers` the nodes that wrote last before it. `begin` is where the journal begins
    (None: where the graph does); `hides`: its step 0 is no checkpoint of the thread. An input has written `input` to
    the values `before` (None: those of an empty state). `asked` has by visit what it asked last, `errors`
    the exceptions that visits failed with, `sent` by journal step the visits that commands open then.

    `store` has the run while it may go on; else `entries` are its journal, `state` the values at its end, and `left`
    the visits that were open.
    """

    run_id: str
    source: Source
    first: int
    at_ms: int
    store: MemoryStore | None
    parent: str | None = None
    writers: tuple[str, ...] = (START,)
    begin: Checkpoint | None = None
    hides: bool = False
    input: Texts | None = None
    before: Texts | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    asked: Mapping[int, tuple[Interrupt, ...]] = field(default_factory=lambda: _NOTHING)
    errors: Mapping[int, str] = field(default_factory=lambda: _NOTHING)
    sent: Mapping[int, tuple[SentVisit, ...]] = field(default_factory=lambda: _NOTHING)
    entries: tuple[tuple[Any, ...], ...] = ()
    state: Texts = field(default_factory=lambda: _NOTHING)
    left: tuple[LeftVisit, ...] = ()
    is_driven: bool = False
    """Whether a call executes it now."""

    @property
    def record(self) -> MemoryRun | None:
        """The run while it may go on."""
        return None if self.store is None else self.store.runs[self.run_id]

    @property
    def values(self) -> Texts:
        """The committed state."""
        record = self.record
        return self.state if record is None else record.values.state

    def journal(self) -> Iterator[tuple[Step, Texts]]:
        record = self.record
        if record is not None:
            yield from record.values.journal
            return
        for entry in self.entries:
            fields, written = entry[: len(_KEPT)], entry[len(_KEPT) :]
            yield (
                Step(**dict(zip(_KEPT, fields, strict=True))),
                dict(zip(written[::2], written[1::2], strict=True)),
            )

    def newest(self) -> ThreadPlace:
        """Its newest checkpoint."""
        record = self.record
        if record is not None:
            steps = [step.step for step, _ in record.values.journal if step.is_checkpoint]
        else:
            steps = [entry[0] for entry in self.entries if _is_checkpoint(*entry[: len(_KEPT)])]
        steps = steps[int(self.hides) :]
        number = self.first + len(steps) - (self.input is None)
        return ThreadPlace(number, _name(self.run_id, steps[-1] if steps else BEFORE_INPUT))

    def values_at(self, newest: ThreadPlace) -> Texts | None:
        """The state at the newest checkpoint. None: the empty one."""
        return self.before if newest.id == _name(self.run_id, BEFORE_INPUT) else self.values

    def leave(self) -> None:
        """Keep only what the history needs: the run does not go on."""
        if (record := self.record) is None:
            return
        self.entries = tuple((*_kept(step), *chain(*texts.items())) for step, texts in record.values.journal)
        self.state = record.values.state
        self.left = tuple(_left(record))
        self.store = None

    def note_errors(self, raised: Mapping[int, BaseException]) -> None:
        """Keep why the run has failed, by visit: what nodes have `raised`, else the error of the visit. An error of the
        run itself is that of all visits of its super-step."""
        if (record := self.record) is None:
            return
        own = {
            visit.seq: repr(raised[visit.seq]) if visit.seq in raised else str(visit.body.error)
            for visit in record.view.frontier.values()
            if isinstance(visit.body, Failed) and (visit.seq in raised or visit.body.error is not None)
        }
        self.errors = own or {visit.seq: str(record.error) for visit in record.view.frontier.values()}

    def note_questions(self, seq: int, questions: tuple[Interrupt, ...]) -> None:
        self.asked = {**self.asked, seq: questions}

    def note_sent(self, step: int) -> None:
        """Keep the visits that commands open after a journal step: the journal has no values of single visits."""
        if (record := self.record) is not None:
            self.sent = {**self.sent, step: tuple(_sent(record))}


def _left(record: MemoryRun) -> Iterator[LeftVisit]:
    for visit in record.view.frontier.values():
        if isinstance(visit.place, Branch) and visit.state != "ended":
            yield LeftVisit(visit.seq, visit.node, visit.place.batch is not None)


def _sent(record: MemoryRun) -> Iterator[SentVisit]:
    items = record.values.items
    found: list[tuple[int, int, str, str]] = []
    for visit in record.view.frontier.values():
        if visit.overlay is not None and isinstance(visit.place, Branch) and visit.place.batch is not None:
            number = int(visit.overlay.rpartition(".")[2])
            found.append((visit.place.batch, number, visit.node, items.get(visit.overlay, "")))
        elif isinstance(visit.body, Commands):
            of, targets = visit.body.of, visit.body.targets
            later = ((number, targets[number]) for number in range(visit.body.next, len(targets)))
            found += [(of, number, node, items.get(f"{of}.{number}", "")) for number, node in later if node]
    for _, _, node, overlay in sorted(found):
        yield SentVisit(node, overlay)


@dataclass(slots=True)
class Thread:
    """The runs of a thread, oldest first; at least one."""

    runs: list[ThreadRun]

    @property
    def newest(self) -> ThreadRun:
        return self.runs[-1]

    def add(self, run: ThreadRun) -> None:
        """Let another run begin."""
        self.newest.leave()
        self.runs.append(run)


# Checkpoints


class ThreadPoint(NamedTuple):
    """A checkpoint of a thread: a run `at` a journal step, or BEFORE_INPUT. `after` is the journal step of the next one
    (None: it is the last one of its run), `step` its number in the thread. `checkpoint` says how the run goes on from
    it, and `sent` which visits commands open."""

    run: ThreadRun
    at: int
    after: int | None
    step: int
    source: Source
    at_ms: int
    parent: str | None
    writers: tuple[str, ...]
    checkpoint: Checkpoint
    sent: tuple[SentVisit, ...] = ()

    @property
    def id(self) -> str:
        return _name(self.run.run_id, self.at)

    @property
    def place(self) -> ThreadPlace:
        return ThreadPlace(self.step, self.id)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that come next, without those of `sent`."""
        return tuple(dict.fromkeys(self.checkpoint.nodes)) if self.at != BEFORE_INPUT else (START,)


def _name(run_id: str, at: int) -> str:
    return checkpoint_id(run_id, _INPUT if at == BEFORE_INPUT else at)


def points(run: ThreadRun, start: str) -> list[ThreadPoint]:
    """The checkpoints of a run of a graph that begins at the node `start`, oldest first."""
    reader = CheckpointReader(run.begin or Checkpoint(0, (start,)))
    found: list[ThreadPoint] = []
    if run.input is not None:
        found.append(_first(run, BEFORE_INPUT, reader.last))
    hides, wrote = run.hides, []
    for step, _ in run.journal():
        if is_visit(step):
            wrote.append(str(step.node))
        if not (step.step == 0 or reader.add(step)):
            continue
        if hides and step.step == 0:
            continue
        writers, wrote = tuple(dict.fromkeys(wrote)), []
        if not found:
            found.append(_first(run, step.step, reader.last))
            continue
        last = found[-1]
        found[-1] = last._replace(after=step.step)
        found.append(
            ThreadPoint(
                run, step.step, None, last.step + 1, "loop", step.at_ms or run.at_ms, last.id,
                writers or run.writers, reader.last, run.sent.get(step.step, ()),
            )
        )  # fmt: skip
    return found


def _first(run: ThreadRun, at: int, checkpoint: Checkpoint) -> ThreadPoint:
    sent = run.sent.get(at, ())
    return ThreadPoint(run, at, None, run.first, run.source, run.at_ms, run.parent, run.writers, checkpoint, sent)


def point_named(thread: Thread, name: str, start: str) -> ThreadPoint | None:
    """The checkpoint with this id. None: the thread has none."""
    run_id, _, position = name.rpartition(":")
    run = next((run for run in thread.runs if run.run_id == run_id), None)
    found = [] if run is None else points(run, start)
    return next((point for point in found if point.id == name), None) if position else None


class JournalState(NamedTuple):
    """What the journal has of a checkpoint: the state there, and the visits that have ended between it and the next."""

    values: dict[str, Any]
    ended: list[tuple[Step, Texts]]


def journal_states(wanted: Collection[ThreadPoint]) -> dict[int, JournalState]:
    """Those of checkpoints of one run, by journal step; the journal is read once."""
    at = {point.at: point for point in wanted if point.at != BEFORE_INPUT}
    found: dict[int, JournalState] = {}
    if not at:
        return found
    fold, ended, until = StateFold(), [], None
    for step, texts in next(iter(at.values())).run.journal():
        fold.add(step, texts)
        if (until is None or step.step <= until) and is_visit(step):
            ended.append((step, texts))
        if (point := at.get(step.step)) is not None:
            ended, until = [], point.after
            found[step.step] = JournalState(fold.state(), ended)
    return found


def texts_of(point: ThreadPoint, empty: Texts) -> Texts:
    """The state at a checkpoint; `empty` is that of a thread without runs."""
    if point.at == BEFORE_INPUT:
        return empty if point.run.before is None else point.run.before
    if point.after is None:
        return point.run.values
    return {name: json_text(value) for name, value in journal_states([point])[point.at].values.items()}


# Runs that begin in the middle of their graph


def going_on(store: MemoryStore, run_id: str, spec: RunSpec, point: Checkpoint, sent: Collection[SentVisit],
             texts: Texts, kinds: Mapping[str, str]) -> None:  # fmt: skip
    """Let a store have a run that goes on as a checkpoint says, with these values; over, if nothing comes next. `kinds`
    are those of the nodes."""
    group, now = point.steps + 1, store.clock()
    visits: dict[int, Visit] = {}
    items: dict[str, str] = {}
    index: dict[str, int] = {}
    batch = len(point.nodes) + len(sent) + 1
    for node in dict.fromkeys(point.nodes):
        visits[len(visits) + 1] = Visit(
            len(visits) + 1, node, kinds.get(node, "unknown"), 1, now, group=group, depth=group
        )
        index[node] = 0
    for number, visit in enumerate(sent):
        place, seq = f"{batch}.{number}", len(visits) + 1
        index[visit.node] = index.get(visit.node, -1) + 1
        items[place] = visit.overlay
        visits[seq] = Visit(
            seq, visit.node, kinds.get(visit.node, "unknown"), 1, now, Branch(batch), group=group, depth=group,
            index=index[visit.node], overlay=place,
        )  # fmt: skip
    view = RunView(
        run_id,
        spec,
        status="running" if visits else "completed",
        seq=batch,
        started_ms=now,
        counts={**point.counts, **{node: point.counts.get(node, 0) + 1 for node in index}},
        frontier=visits,
        steps=group if visits else point.steps,
        arrived=point.arrived,
        deferred=point.deferred,
    )
    store.adopt(view, texts, items)


def finished(run: ThreadRun, store: MemoryStore, spec: RunSpec) -> MemoryStore:
    """A store with a run that is over: with its state, and nothing else of it."""
    store.runs[run.run_id] = MemoryRun(RunView(run.run_id, spec, "completed"), RunValues(run.state))
    store.runs[run.run_id].values.journal.clear()
    return store
