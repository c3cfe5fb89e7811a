"""The slot that a run of an agent with `concurrency:` needs before anything of it starts.

It asks for one when it is submitted, and again when it is retried after it had failed; it has it until it is over, also
while it is paused or waits for somebody. Who else has one, and who waits, is known where the effect leads to
(store/slots.py), and from there the run is told. Until then its clocks stand still: the run's time begins when it has
the slot.
"""

from __future__ import annotations

from typing import Final

from sleipnir.graph.model import Concurrency
from sleipnir.graph.template import TemplateError, keys_read, render
from sleipnir.runs.events import SLOT_GRANTED, Answered, Cancelled, ChildEnded, Event, Paused, Resumed, Retried, Told
from sleipnir.runs.run import Slot, changed
from sleipnir.runs.transitions import AskSlot
from sleipnir_scheduler.planner.context import Context, RunFailed

MOST_KEY: Final = 1000
"""Characters of a key: it goes with the run, and with all that is said of the slot."""


def ask(
    context: Context, concurrency: Concurrency, *, again: bool = False, fresh_children: bool = False, by: str = ""
) -> None:
    """The run waits for a slot from here on. Raises RunFailed when the state does not say which."""
    key, ticket = _key(context, concurrency), context.run.version + 1
    slot = Slot(key, concurrency.limit, ticket, again=again, fresh_children=fresh_children, by=by)
    agent, draft = context.run.spec.agent, context.draft
    draft.slot = slot
    draft.owed.add(AskSlot(agent, key, slot.limit, ticket))
    if context.run.batch is None:  # rows may wait by the thousand, and the first event of a run costs 4 kB
        draft.record.notice("slot_asked", agent=agent, key=key, limit=slot.limit)


def _key(context: Context, concurrency: Concurrency) -> str:
    try:
        key = render(concurrency.key, context.values.state(keys_read(concurrency.key)))
    except TemplateError as error:
        raise RunFailed(f"'concurrency.key' cannot be rendered: {error}") from None
    if len(key) > MOST_KEY:
        raise RunFailed(f"'concurrency.key' renders to {len(key):,} characters; at most {MOST_KEY:,} are allowed")
    return key


def granted(context: Context, event: Told) -> Slot | None:
    """The slot that the run has waited for and has now; None when it does not wait for that one."""
    slot = context.run.slot
    if slot is None or slot.granted or slot.ticket != event.data["ticket"]:
        return None
    context.draft.slot = changed(slot, granted=True, again=False, fresh_children=False, by="")
    return slot


def concerns_one_that_waits(event: Event) -> bool:
    """Whether the event can mean something to a run that waits for its slot: nothing of it is live, but the question
    whether it may use more than its budget, if a child run has told late what it has cost."""
    if isinstance(event, Told):
        return event.what == SLOT_GRANTED
    return isinstance(event, Answered | Cancelled | Paused | Resumed | Retried | ChildEnded)
