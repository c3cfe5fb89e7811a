"""Following one run on the terminal: narration, then its result and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.runs.breakpoints import OnStop, StopWatch, ignore
from sleipnir.cli.runs.child_narrator import ChildrenNarrator, as_at_the_top, is_below
from sleipnir.cli.runs.delays import DelayNotice, missing_in_words, patience_s
from sleipnir.cli.runs.gate_answers import NoAnswer
from sleipnir.cli.runs.narrate import Narrator
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, print_json, print_json_line
from sleipnir.cli.terminal.status_area import StatusArea
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.failure_text import without_output
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.reasons import end_in_words, stopped_in_words

if TYPE_CHECKING:
    from sleipnir.cli.options import GlobalOptions
    from sleipnir.messages import RunStatus
    from sleipnir.runs.views import GateInfo, MissingProcesses, RunEvent, RunInfo, StreamEvent, StreamMode


class FollowedRun(Protocol):
    """A run of a deployment (client.Run), or one that this process executes (AgentRun)."""

    id: str

    @property
    def status(self) -> RunStatus: ...

    @property
    def output(self) -> str | None: ...

    def info(self) -> RunInfo: ...

    def gates(self) -> list[GateInfo]: ...

    def active(self) -> list[RunInfo]: ...

    def missing(self) -> MissingProcesses: ...

    def stream(self, modes: Collection[StreamMode] | None = ...) -> Iterator[StreamEvent]: ...


STREAM = click.option(
    "--stream/--no-stream", "stream", default=None,
    help="Show streamed text of models. Default: on a terminal, temporarily. With --json: every event and every piece "
    "of text is a JSON line, and the result is the last one.",
)  # fmt: skip


def follow(
    run: FollowedRun,
    on_gate: Callable[[GateInfo], None],
    *,
    stream: bool | None = None,
    as_data: bool = False,
    brief: bool = False,
    options: GlobalOptions | None = None,
    on_stop: OnStop = ignore,
    events: Callable[[Collection[StreamMode] | None], Iterator[StreamEvent]] | None = None,
) -> None:
    """Narrate the run from its beginning until it has ended. Calls `on_gate` for each question when it opens.

    `stream`: whether to show streamed text of models; None: on a terminal that can redraw it. `brief` omits from the
    narration what all agents with a config.yaml do. If the run does not advance because a process is missing, that is
    reported on stderr; `options` are for its hints. With `as_data` all events are also printed as one JSON object per
    line on stdout, including text of models.

    `on_stop` is called with the runs that stand at a breakpoint when nothing else is under way.

    `events` is what to call for the events of these modes; default: `run.stream`. Of runs below, which they may have
    too, the text of models is shown only as data.

    If `on_gate` raises NoAnswer, other branches continue. The exception is raised to the caller when the run only
    waits.
    """
    lines_of_data = bool(stream) and as_data
    with_texts = terminal.can_redraw() if stream is None else stream
    narrator, questions = Narrator(every_tenth=not terminal.can_redraw(), brief=brief), _Questions(run, on_gate)
    stops, below = StopWatch(run, on_stop), ChildrenNarrator(every_tenth=not terminal.can_redraw())
    with (
        StatusArea(as_lines=with_texts and not as_data) as bottom,
        DelayNotice(lambda: missing_in_words(run.missing(), options), bottom.say, patience_s(options)) as delays,
    ):
        for event in (events or run.stream)(None if with_texts else ("events", "updates", "tools", "custom")):
            delays.moved()
            if lines_of_data:
                print_json_line(event)
            if is_below(event):
                bottom.narrate(below.lines(event))
                event = as_at_the_top(event)
            else:
                bottom.see(event, narrator.lines(event))
            if event.type in ("text", "custom"):
                continue
            if event.type == "gate_opened":
                with bottom.hidden(), delays.silent():
                    questions.ask(gate_of(run.id, event))
            elif event.type in ("gate_answered", "gate_expired"):
                questions.forget(event)
            questions.leave_if_stuck()
            stops.see(event)


class _Questions:
    """The questions of a run, in the order of its narration."""

    def __init__(self, run: FollowedRun, on_gate: Callable[[GateInfo], None]) -> None:
        self._run, self._on_gate = run, on_gate
        self._unanswered: dict[tuple[str, int], NoAnswer] = {}
        self._answered: set[tuple[str, int]] = set()  # the run has not processed the answer yet

    def ask(self, gate: GateInfo) -> None:
        try:
            self._on_gate(self._whole(gate))
            self._answered.add((gate.run, gate.seq))
        except NoAnswer as no_answer:
            self._unanswered[gate.run, gate.seq] = no_answer

    def _whole(self, gate: GateInfo) -> GateInfo:
        """An interrupt with its schema, which no event has."""
        if gate.kind != INTERRUPT:
            return gate
        name = (gate.run, gate.seq, gate.attempt)
        return next((each for each in self._run.gates() if (each.run, each.seq, each.attempt) == name), gate)

    def forget(self, event: RunEvent) -> None:
        """The question is closed."""
        name = event.data.get("run", self._run.id), event.data["seq"]
        self._unanswered.pop(name, None)
        self._answered.discard(name)

    def leave_if_stuck(self) -> None:
        """Raises NoAnswer when the run cannot advance without an answer and no question is left to ask."""
        if not self._unanswered or self._answered or not self._is_waiting():
            return
        if all((gate.run, gate.seq) in self._unanswered for gate in self._run.gates()):
            raise next(iter(self._unanswered.values()))

    def _is_waiting(self) -> bool:
        """Whether the run waits only for answers; a run over its budget is paused only for that answer."""
        over_budget = any(nobody.gate.kind == BUDGET for nobody in self._unanswered.values())
        return self._run.status in (("waiting", "paused") if over_budget else ("waiting",))


def gate_of(run_id: str, event: RunEvent) -> GateInfo:
    """The question that a gate_opened event announces."""
    from sleipnir.runs.views import GateInfo

    data = event.data
    return GateInfo(
        run=data.get("run", run_id),
        seq=data["seq"],
        node=data["node"],
        kind=data["kind"],
        question=data["question"],
        options=tuple(data.get("options") or ()),
        default=data.get("default"),
        opened_ms=event.at_ms,
        attempt=data.get("attempt", 1),
        path=tuple(data.get("path") or ()),
        key=data.get("key"),
        twin=data.get("twin"),
    )


def print_result(run: FollowedRun, *, as_data: bool = False, stream: bool | None = None) -> int:
    """Print the outcome of the run: its output, or why it has none. Returns the exit code."""
    info = run.info()
    if as_data:
        print_result_data(run, info, stream=stream)
    elif info.status == "completed":
        terminal.result(run.output or "")
        if info.stopped_by:
            terminal.note(f"run {run.id} has {stopped_in_words(info)}: it has not done all")
    if info.status == "failed":
        terminal.error(without_output(info.error or f"run {run.id} failed"))
    if info.is_final and info.failed_visits.count > (info.status == "failed"):
        terminal.note(f"run {run.id} {end_in_words(info)}")
    if info.status == "cancelled":
        terminal.error(f"run {run.id} was cancelled")
    return exit_codes.of_status(info.status)


def print_result_data(run: FollowedRun, info: RunInfo, *, stream: bool | None = None) -> None:
    """The output of `--json`: a document, or with `--stream` the last of many lines."""
    if stream:
        print_json_line({"type": "result", "data": result_data(run, info)})
    else:
        print_json(result_data(run, info))


def result_data(run: FollowedRun, info: RunInfo) -> dict[str, Any]:
    """The JSON of a run: its record, its output and its open questions."""
    return {
        **as_json(info),
        "output": run.output if info.status == "completed" else None,
        "gates": [] if info.is_final else [as_json(gate) for gate in run.gates()],
    }


def say_it_goes_on(run_id: str, options: GlobalOptions) -> None:
    """After Ctrl-C: the run continues; print the commands to follow or cancel it."""
    if options.is_embedded:
        terminal.note(f"\nrun {run_id} is kept; the next `sleipnir run` or `sleipnir up` resumes it")
    else:
        terminal.note(f"\nrun {run_id} continues without this terminal")
    terminal.note(f"  {options.command('watch', run_id)}    to see it")
    terminal.note(f"  {options.command('cancel', run_id)}   to stop it")
