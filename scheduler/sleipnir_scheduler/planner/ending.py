"""The end of a run: which visits stay for a retry, and how the others are closed."""

from __future__ import annotations

from sleipnir.graph.plain import compact_json
from sleipnir.messages import QUEUE_OF, RunStatus
from sleipnir.runs.events import PAST_DUE, PAUSE_DEADLINE
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import DropValue, ForgetConversation, SetValue
from sleipnir.runs.visits import (
    Backoff,
    Call,
    ChildWait,
    Commands,
    Delay,
    Doubt,
    Ending,
    Failed,
    Failure,
    Fan,
    Loop,
    Question,
    Ready,
    RunFunction,
    SignalWait,
    Turn,
    Visit,
    WholeRun,
    Work,
)
from sleipnir_scheduler.planner.draft.draft import Draft


def end_run(
    draft: Draft,
    status: RunStatus,
    *,
    error: str | None = None,
    failure: Failure | None = None,
    output: str | None = None,
    keeps: bool = False,
) -> None:
    """End the run. No visit stays open. A failed run, and one that `keeps` them, keeps the visits that ended or are to
    run again, and the breakpoints that nobody has passed."""
    keeps = keeps or status == "failed"
    _stop(draft, keeps=keeps)
    draft.status, draft.ended_ms, draft.error, draft.failure, draft.keeps = status, draft.now_ms, error, failure, keeps
    draft.output = draft.output if output is None else output
    draft.record.notice(
        "run_ended",
        status=status,
        error=error,
        took_ms=draft.now_ms - (draft.clock.started_ms or draft.now_ms),
        output_bytes=len(draft.output.encode()) if draft.output is not None else 0,
        **({} if failure is None or failure.code is None else {"code": failure.code}),
        **({"failed_visits": draft.failed_visits.count} if draft.failed_visits.count else {}),
    )


def call_after_run(draft: Draft, start: str, ending: Ending, output: str | None) -> None:
    """The run is to end: no visit stays open, but one that lets a worker call the agent's functions after the run. It
    is of the node `start`."""
    _stop(draft, keeps=ending.status == "failed")
    draft.is_ending = True
    call_run_functions(draft, start, RunFunction("after_run", ending), {"output": output, "error": ending.error})


def call_run_functions(draft: Draft, start: str, place: RunFunction, told: dict[str, str | None] | None = None) -> None:
    """Let a worker call functions of the agent around the run, and tell it this."""
    given = None
    if told is not None:
        given = f"{draft.visits.last_seq + 1}.{place.role}"
        draft.record.item(SetValue(given, compact_json(told)))
    visit = draft.visits.open(start, place.role, place=place, group=-1)
    draft.visits.begin(visit, Work(QUEUE_OF["function"], given=given))


def _stop(draft: Draft, *, keeps: bool) -> None:
    """Leave no visit open, and nothing to wait for."""
    for visit in draft.visits.all():
        if not keeps or isinstance(visit.place, (Turn, Call, WholeRun, RunFunction)):
            close(draft, visit)
        elif visit.state not in ("ended", "failed"):
            visit = without_agents(draft, visit)
            body = _kept(visit, is_unclaimed=draft.unless_claimed)
            is_new = visit.is_branch and visit.group == draft.steps
            draft.visits.move(visit, changed(body, counted=False) if is_new and visit.node in draft.uncounted else body)
    draft.wakes = []
    draft.record.gates = {}
    clock = draft.clock
    if clock.pending_ms is not None:
        clock.disarm(PAUSE_DEADLINE)
    clock.hold(tuple(hold for hold in clock.holds if keeps and hold.breakpoint is not None))
    if draft.run.past is not None:
        clock.disarm(PAST_DUE)
    if clock.budget is not None:
        clock.allow(changed(clock.budget, asked=None, asked_ms=0))


def close(draft: Draft, visit: Visit) -> None:
    """Close a visit, and drop the value that was given to a part of a loop, or to functions around the run."""
    if (
        isinstance(visit.place, (Turn, Call, RunFunction))
        and (work := _work_of(visit)) is not None
        and work.given is not None
    ):
        draft.record.item(DropValue(work.given))
    draft.visits.drop(visit)


def _work_of(visit: Visit) -> Work | None:
    """The work that it does, or that waits for a slot, a time or an answer."""
    match visit.body:
        case Work() as work:
            return work
        case Ready(Work() as work) | Backoff(work) | Question(_, Work() as work):
            return work
        case Delay(work=Work() as work) | SignalWait(work=Work() as work):
            return work
    return None


def forget(draft: Draft, body: object) -> None:
    """Drop what is stored for the body of a visit that does not go on: what its work was given, its conversation."""
    match body:
        case Failed(was=was) if was is not None:
            forget(draft, was)
        case (
            Backoff(Work() as work)
            | Question(_, Work() as work)
            | Delay(work=Work() as work)
            | SignalWait(work=Work() as work)
            | Doubt(work)
            | Ready(Work() as work)
            | (Work() as work)
        ):
            if work.given is not None:
                draft.record.item(DropValue(work.given))
        case Loop(id=id_, turn=turn, calls=calls):
            draft.record.item(ForgetConversation(id_, turn, calls))


def without_agents(draft: Draft, visit: Visit) -> Visit:
    """A loop that is over, without its spawned agents and their outputs."""
    loop = visit.body
    if not isinstance(loop, Loop):
        return visit
    if loop.has_tasks:
        draft.record.item(DropValue(loop.tasks))
    for agent in loop.agents:
        if agent.exit is not None:
            draft.record.item(DropValue(loop.output_of(agent)))
    return draft.visits.move(visit, changed(loop, agents=(), has_tasks=False, escalations=()))


def _kept(visit: Visit, *, is_unclaimed: bool) -> Failed:
    """The body that is kept of a live visit. It has not begun if it was ready, or waited for its timer, or
    (`is_unclaimed`) if this transition applies only while no worker has it."""
    begun = visit.state != "ready" and visit.due_ms is None and not is_unclaimed
    match visit.body:
        case Ready(Work() as work) | Backoff(work) | (Work() as work):
            return Failed(work.error, work, begun)
        case Ready(resumes):
            return Failed(None, resumes, begun)
        case ChildWait(child):
            return Failed(None, child, begun)
        case Loop() as loop:
            return Failed(None, changed(loop, due_ms=None), begun)
        case Question(_, Work() as work) | Delay(work=Work() as work) | SignalWait(work=Work() as work):
            return Failed(None, work, begun=False)  # its node has reported how far it came
        case Doubt() as doubt:
            return Failed(None, doubt)
        case Fan() | Commands() as body:
            return Failed(None, body, begun)
    return Failed(begun=begun)
