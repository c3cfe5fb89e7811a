"""Budgets: a run that has used what it may is held, and a person is asked whether it may use more.

    an event adds to the cost ─► the budget is used up ─► a question, and nothing starts ─► more is allowed, or the end

It is held as by a pause: what workers have ends and is committed, and its clocks and those of its child runs stand
still. A pause of a person's is another hold, and neither ends the other. A run that is over by the event that used its
budget up is not asked about, and one that was retried after it had ended so only when it has used more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleipnir.runs.budgets import BUDGET, NO, YES, in_words, question, raised, read_budget_answer
from sleipnir.runs.run import Gate, changed
from sleipnir.runs.values import Wanted
from sleipnir.runs.visits import WHOLE_RUN, Question, Visit
from sleipnir_scheduler.planner import holds
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.known import require


def count(context: Context) -> None:
    """After an event: count what it has cost, and ask if that is too much. Raises Missing."""
    draft = context.draft
    budget = draft.clock.budget
    if budget is None or not draft.usage or draft.is_over:
        return
    usage, child = draft.usage, draft.usage_of
    tokens, cost_usd = _of_call(usage) if child is None else _of_child(context, usage, child)
    draft.spent = draft.spent.plus(tokens, cost_usd)
    if (tokens or cost_usd) and budget.asked is None and budget.is_used_up(draft.spent):
        visit = draft.visits.open(BUDGET, BUDGET, place=WHOLE_RUN, group=-1)
        holds.hold_for_budget(draft, budget, visit)
        _ask(context, visit)


def answered(context: Context, visit: Visit, text: str, by: str) -> None:
    """Do as the person decides; an answer that is not understood, or that would allow nothing, is asked for again."""
    draft, submitted = context.draft, context.run.spec.budget
    budget = draft.clock.budget
    if budget is None or submitted is None:
        raise ValueError(f"run {context.run.id} has no budget")
    draft.record.answered(visit, text, by)
    draft.record.write_answer()
    try:
        verdict = read_budget_answer(text)
        allowed = None if verdict == NO else raised(submitted, budget, draft.spent, verdict)
    except ValueError as error:
        _ask(context, visit, f"{error}\n")
        return
    if allowed is None:
        context.fail(f"over budget: it has {in_words(budget, draft.spent)}")
    elif allowed.is_used_up(draft.spent):  # there is another limit
        draft.clock.allow(changed(budget, max_cost_usd=allowed.max_cost_usd, max_tokens=allowed.max_tokens))
        _ask(context, visit)
    else:
        draft.visits.drop(visit)
        holds.allow(draft, allowed)
        context.restart_clocks()
        steps.go_on_after_hold(context)


def _ask(context: Context, visit: Visit, remark: str = "") -> None:
    submitted, budget = context.run.spec.budget, context.draft.clock.budget
    if budget is None or submitted is None:
        raise ValueError(f"run {context.run.id} has no budget")
    text = question(submitted, budget, context.draft.spent, remark)
    visit = context.draft.visits.move(visit, Question())
    context.draft.record.ask(visit, Gate(visit.seq, visit.node, BUDGET, text, (YES, NO), None, context.now_ms))


def _of_call(usage: Mapping[str, Any]) -> tuple[int, float]:
    """Tokens and cost of what a worker has delivered."""
    return usage.get("input_tokens", 0) + usage.get("output_tokens", 0), usage.get("cost_usd") or 0.0


def _of_child(context: Context, usage: Mapping[str, Any], child: str) -> tuple[int, float]:
    """What a child run has cost since it said so last, as commit.lua counts it. Raises Missing."""
    require(context.known, Wanted(costs=frozenset([child])))
    counted = context.known.costs.get(child, {})
    if usage.get("calls", 0) <= counted.get("model_calls", 0):
        return 0, 0.0
    tokens, cost_usd = _of_call(usage)
    before = counted.get("tokens_in", 0) + counted.get("tokens_out", 0)
    return int(tokens - before), max(0.0, cost_usd - counted.get("cost_usd", 0.0))
