"""The slot that a run of an agent with `concurrency:` needs before its first visit starts.

The run asks for a slot when it is submitted, and again when it is retried after a failure. It keeps the slot until it
is over, also while it is paused or waits for a person. store/slots.py, which receives the effect, knows which runs have
slots or wait, and notifies the run. The run's clocks stop until then: its time begins when it has the slot.
"""

from __future__ import annotations

from typing import Final

from sleipnir.graph.model import Concurrency
from sleipnir.graph.template import TemplateError, keys_read, render
from sleipnir.runs.events import (
    PAST_DUE,
    SLOT_GRANTED,
    Answered,
    Cancelled,
    ChildEnded,
    Commented,
    Event,
    Paused,
    Resumed,
    Retried,
    TimerFired,
    Told,
)
from sleipnir.runs.run import Slot, changed
from sleipnir.runs.transitions import AskSlot
from sleipnir_scheduler.planner.context import Context, RunFailed

MOST_KEY: Final = 1000
"""The most characters of a key, which is stored with the run and sent with each message about the slot."""


def ask(
    context: Context, concurrency: Concurrency, *, again: bool = False, fresh_children: bool = False, by: str = ""
) -> None:
    """Let the run wait for a slot. Raises RunFailed if the key cannot be rendered."""
    key, ticket = _key(context, concurrency), context.run.version + 1
    slot = Slot(key, concurrency.limit, ticket, again=again, fresh_children=fresh_children, by=by)
    agent, draft = context.run.spec.agent, context.draft
    draft.slot = slot
    draft.owed.add(AskSlot(agent, key, slot.limit, ticket))
    if context.run.batch is None:  # rows may wait by the thousand, and the first event of a run costs 4 kB
        draft.record.notice("slot_asked", agent=agent, key=key, limit=slot.limit)


def _key(context: Context, concurrency: Concurrency) -> str:
    keys = keys_read(concurrency.key)
    if keys and (lost := context.lost_past()) is not None:
        raise RunFailed(lost)
    try:
        key = render(concurrency.key, context.values.state(keys))
    except TemplateError as error:
        raise RunFailed(f"'concurrency.key' cannot be rendered: {error}") from None
    if len(key) > MOST_KEY:
        raise RunFailed(f"'concurrency.key' renders to {len(key):,} characters; at most {MOST_KEY:,} are allowed")
    return key


def granted(context: Context, event: Told) -> Slot | None:
    """The granted slot; None if the run does not wait for it."""
    slot = context.run.slot
    if slot is None or slot.granted or slot.ticket != event.data["ticket"]:
        return None
    context.draft.slot = changed(slot, granted=True, again=False, fresh_children=False, by="")
    return slot


def concerns_one_that_waits(event: Event) -> bool:
    """Whether an event concerns a run that waits for its slot. Such a run has no live visit, except the question about
    its budget, if a child run reported its cost late."""
    if isinstance(event, Told):
        return event.what == SLOT_GRANTED
    if isinstance(event, TimerFired):
        return event.name == PAST_DUE
    return isinstance(event, Answered | Commented | Cancelled | Paused | Resumed | Retried | ChildEnded)
