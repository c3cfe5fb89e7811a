"""The life of a visit, as one table: every legal move between bodies (runs/visits.py), and who makes it.

Rule 1. A move that is not in MOVES cannot happen: LiveVisits.move refuses it.
Rule 2. An event that does not concern the body of its visit (CONCERNS) changes nothing: messages repeat, and come late.
Rule 3. A visit that is CLOSED is in no frontier any more. Its number is never used again.

scheduler/README.md shows this table and its picture; `ops/generate` writes them, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from sleipnir.runs.events import Answered, ChildEnded, ChildGone, Commented, Event, LeaseLost, Resulted
from sleipnir.runs.visits import (
    Backoff,
    Body,
    ChildWait,
    Commands,
    Delay,
    Doubt,
    Ended,
    Failed,
    Fan,
    Loop,
    Question,
    Ready,
    Receipt,
    SignalWait,
    Work,
)


class New:
    """Before a visit is opened."""


class Closed:
    """After a visit is over."""


State: TypeAlias = type[Body] | type[New] | type[Closed]

MOVES: Final[Mapping[State, Mapping[State, str]]] = {
    New: {
        Ready: "an event that opens a step, an item, a turn, a call, a function of the agent, or a question of the run",
        Commands: "`retry`, for commands that had not become visits",
        Failed: "`skip` of a failed item, for the next node of its chain",
    },
    Ready: {
        Work: "settle.py, when the run has a slot",
        Question: "settle.py (approval and input nodes); a turn that calls a `user__*` tool; a budget that is used up",
        Doubt: "`retry`, where an execution with `effect: once` may have happened",
        Fan: "settle.py (map nodes)",
        Loop: "settle.py (llm nodes with tools, tools nodes)",
        ChildWait: "settle.py (agent nodes); the turn that calls `agent__collect`",
        Delay: "settle.py (wait nodes)",
        SignalWait: "settle.py (wait nodes)",
        Receipt: "the turn that calls `agent__send_message`",
        Ended: "settle.py, for nodes that need no worker (router, join, end), and nodes that cannot start; `skip`",
        Failed: "settle.py, for nodes that cannot start; the end of a run that can be retried",
        Closed: "settle.py, for nodes that need no worker and are alone in their step; calls answered at once; `skip`",
    },
    Work: {
        Work: "the loss of a worker, or its hand-back: attempt + 1",
        Backoff: "the result: a failure that a `retry` policy forgives, or a limit of a model",
        Question: "the result: an interrupt of the node's code",
        Doubt: "the loss of a worker that ran a node with `effect: once`",
        ChildWait: "the result, for a graph node: the first state of its child",
        Delay: "the result: the node's code waits for a time",
        SignalWait: "the result: the node's code waits for a signal",
        Ended: "the result; the loss of too many workers; `skip`",
        Failed: "the result; the loss of too many workers; the end of a run that can be retried",
        Closed: "the result, of a visit alone in its step, an item, a turn or a call; the end of loop or run; `skip`",
    },
    Backoff: {
        Ready: "the timer",
        Ended: "`skip`",
        Failed: "the end of a run that can be retried",
        Closed: "the end of its loop or of the run; `skip`",
    },
    Question: {
        Question: "an answer that cannot be understood: it is asked again",
        Ready: "the answer to an interrupt; the permission to call a tool",
        Ended: "the answer; the timer; `skip`",
        Failed: "the answer; the timer; the end of a run that can be retried",
        Closed: "the answer or timer, for an item or a call; the answer about a budget; the end of loop or run; `skip`",
    },
    Doubt: {
        Doubt: "an answer that cannot be understood: it is asked again",
        Ready: "the answer 'run again'",
        Ended: "the answer; `skip`",
        Failed: "the answer; the end of a run that can be retried",
        Closed: "the answer, for an item; the end of the run; `skip`",
    },
    Fan: {
        Fan: "the start or the end of an item; a piece of the results is gathered",
        Ended: "the end of the last item; `skip`",
        Failed: "the end of the last item; the end of a run that can be retried",
        Closed: "the end of a run; `skip`",
    },
    Loop: {
        Loop: "a turn or a call; an agent that it spawned; a question of a child run",
        Ended: "the last turn; the timer; `skip`",
        Failed: "the last turn; the timer; the end of a run that can be retried",
        Closed: "the last turn or the timer, for an item; the end of the run; `skip`",
    },
    ChildWait: {
        ChildWait: "the loss of a child that was to go on: another one is started; a hold that ends moves the deadline",
        Work: "the end of the child, for a call whose result needs a summary",
        Ready: "the end of the child, for a node with `output_schema` or a graph node: a worker writes the output",
        Ended: "the end of the child; the timer; `skip`",
        Failed: "the end of the child; the timer; the end of a run that can be retried",
        Closed: "the end of the child or the timer, for an item or a call; the end of its loop or of the run; `skip`",
    },
    Delay: {
        Ready: "the timer, for a wait of the node's code",
        Ended: "the timer; `skip`",
        Failed: "the timer; the end of a run that can be retried",
        Closed: "the timer, for the only visit of its step; the end of the run; `skip`",
    },
    SignalWait: {
        Ready: "the signal or the timer, for a wait of the node's code",
        Ended: "the signal; the timer; `skip`",
        Failed: "the signal; the timer; the end of a run that can be retried",
        Closed: "the signal or timer, for the only visit of its step; the end of the run; `skip`",
    },
    Receipt: {
        Closed: "the report of the parent run; the timer; the end of its loop or of the run",
    },
    Commands: {
        Commands: "slots that become free: the next commands become visits",
        Failed: "the end of a run that can be retried",
        Closed: "the last command has become a visit; the end of the run",
    },
    Ended: {
        Ended: "the step's writes count, and the way on is still to be found",
        Commands: "the step closes, and the commands are too many to become visits at once",
        Closed: "the step closes; the end of the run",
    },
    Failed: {
        Failed: "`skip` of an item of the map",
        Closed: "`retry`, which opens a visit in its place; `skip`; a map whose failure is handled; the end of the run",
    },
    Closed: {},
}
"""From each body to each body that may follow, and who makes the move."""

MEANINGS: Final[Mapping[State, str]] = {
    Ready: "waits for a slot of its run, or in a `dag` for a visit of the same node to end",
    Work: "belongs to the workers of its queue: none has claimed it yet, or one executes it",
    Backoff: "waits for the time of its next attempt",
    Question: "waits for a person, at most until it expires",
    Doubt: "waits for a person to decide about lost work with `effect: once`",
    Fan: "a map that waits for its items, which are visits of their own",
    Loop: "an llm node with tools, or a tools node, that waits for its turns and calls, which are visits of their own",
    ChildWait: "waits for a child run to end",
    Delay: "waits for a time",
    SignalWait: "waits for a signal, at most until its timeout",
    Receipt: "waits until its parent run reports whether a message has reached an agent",
    Commands: "waits for slots for its commands, which become visits a few at a time",
    Ended: "has ended, and waits until all visits of its super-step have, or until its paused run may end",
    Failed: "has failed for good, and is kept for `retry`",
}
"""What a visit with each body does or waits for."""

CONCERNS: Final[Mapping[type[Event], frozenset[State]]] = {
    Resulted: frozenset({Work}),
    LeaseLost: frozenset({Work}),
    Answered: frozenset({Question, Doubt}),
    Commented: frozenset({Question, Doubt}),
    ChildEnded: frozenset({ChildWait}),
    ChildGone: frozenset({ChildWait}),
}
"""The bodies that an event about one visit concerns; a timer concerns those with a handler in kinds.BODIES."""


class IllegalMove(Exception):
    """A move that is not in MOVES: a bug in the planner."""


_SHOWN_AS: Final[Mapping[State, str]] = {New: "-", Closed: "closed"}


def name_of(state: State) -> str:
    """The word for a state in pictures and tables: `Work`, `ChildWait`, `closed`."""
    return _SHOWN_AS.get(state, state.__name__)


def as_markdown() -> str:
    """The states with their meaning, a picture of the moves, and who makes each, as scheduler/README.md has them."""
    kinds = [f"| `{name_of(each)}` | {each.state} | {meaning} |" for each, meaning in MEANINGS.items()]  # type: ignore[union-attr]
    arrows = [
        f"    {'[*]' if before is New else before.__name__} --> {'[*]' if after is Closed else after.__name__}"
        for before, moves in MOVES.items()
        for after in moves
        if after is not before
    ]
    moves = [
        f"| `{name_of(before)}` | `{name_of(after)}` | {by} |"
        for before, after_by in MOVES.items()
        for after, by in after_by.items()
    ]
    return "\n".join(
        [
            "| body | state | what the visit does |",
            "|---|---|---|",
            *kinds,
            "",
            "```mermaid",
            "stateDiagram-v2",
            *arrows,
            "```",
            "",
            "| from | to | moved by |",
            "|---|---|---|",
            *moves,
            "",
        ]
    )
