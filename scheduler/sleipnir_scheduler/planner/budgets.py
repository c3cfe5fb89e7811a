"""Budgets: a run whose budget is used up is held, and a person decides whether it may use more.

    an event adds to the cost ─► the budget is used up ─► a question, and nothing starts ─► more is allowed, or the end

The hold works like a pause: work on workers ends and is committed, and the clocks of the run and its child runs stop. A
pause by a person is a separate hold; neither ends the other. There is no question if the same event ends the run. After
a retry of such a run, the question comes only when the run uses more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleipnir.runs.budgets import BUDGET, NO, YES, in_words, question, raised, read_budget_answer
from sleipnir.runs.run import Gate, changed
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import WHOLE_RUN, Question, Visit
from sleipnir_scheduler.planner import holds
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.known import require


def count(context: Context) -> None:
    """Count the cost of an event, and ask a person if the budget is used up. Raises MissingValues."""
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
    """Apply the person's decision; after an answer that is invalid, or allows nothing more, ask again."""
    draft, submitted = context.draft, context.run.spec.budget
    budget = draft.clock.budget
    if budget is None or submitted is None:
        raise ValueError(f"run {context.run.id} has no budget")
    draft.record.answered(visit, text, by)
    draft.record.write_answer()
    try:
        answer = read_budget_answer(text)
        allowed = None if answer == NO else raised(submitted, budget, draft.spent, answer)
    except ValueError as error:
        _ask(context, visit, f"{error}\n")
        return
    if allowed is None:
        context.fail(f"over budget: it has {in_words(budget, draft.spent)}")
    elif allowed.is_used_up(draft.spent):  # the other limit is used up
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
    """The tokens and the cost in a usage record."""
    return usage.get("input_tokens", 0) + usage.get("output_tokens", 0), usage.get("cost_usd") or 0.0


def _of_child(context: Context, usage: Mapping[str, Any], child: str) -> tuple[int, float]:
    """The cost of a child run since its last report, as commit.lua counts it. Raises MissingValues."""
    require(context.known, WantedValues(costs=frozenset([child])))
    counted = context.known.costs.get(child, {})
    if usage.get("calls", 0) <= counted.get("model_calls", 0):
        return 0, 0.0
    tokens, cost_usd = _of_call(usage)
    before = counted.get("tokens_in", 0) + counted.get("tokens_out", 0)
    return int(tokens - before), max(0.0, cost_usd - counted.get("cost_usd", 0.0))
