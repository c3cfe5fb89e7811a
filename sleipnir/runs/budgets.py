"""Budgets of runs: the limit of what a run, with its child runs, may use before a person decides whether it goes on.

All are values. This module does not use Redis or a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from sleipnir.errors import UsageError
from sleipnir.messages import VERSION

BUDGET: Final = "budget"
"""The kind of the question, and the kind and the node of the visit that asks it."""

YES: Final = "yes"
NO: Final = "no"

_YES, _NO = frozenset({YES, "y"}), frozenset({NO, "n"})


@dataclass(frozen=True)
class BudgetUse:
    """The usage so far: tokens of prompts and answers, and the cost of calls with a known price."""

    tokens: int = 0
    cost_usd: float = 0.0

    def plus(self, tokens: int, cost_usd: float) -> BudgetUse:
        return BudgetUse(self.tokens + tokens, self.cost_usd + cost_usd)


NOTHING_SPENT: Final = BudgetUse()


@dataclass(frozen=True)
class Budget:
    """The limits of total usage. None: no limit. `asked` is the visit that asks whether the run may use more, since
    `asked_ms`; the run is held meanwhile."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    asked: int | None = None
    asked_ms: int = 0
    v: int = VERSION

    def is_used_up(self, spent: BudgetUse) -> bool:
        return self.is_cost_used_up(spent) or (self.max_tokens is not None and spent.tokens >= self.max_tokens)

    def is_cost_used_up(self, spent: BudgetUse) -> bool:
        return self.max_cost_usd is not None and spent.cost_usd >= self.max_cost_usd


def check_budget(max_cost_usd: float | None, max_tokens: int | None) -> None:
    """Raise UsageError for an invalid budget."""
    if max_cost_usd is not None and not (max_cost_usd > 0 and math.isfinite(max_cost_usd)):
        raise UsageError(f"max_cost_usd must be a finite number of more than 0, not {max_cost_usd}")
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens > 0):
        raise UsageError(f"max_tokens must be a whole number of more than 0, not {max_tokens}")


def question(submitted: Budget, now: Budget, spent: BudgetUse, remark: str = "") -> str:
    """The text of the question. `submitted` is the budget that the run began with; `remark` is the reason to ask again.
    The first line states the event."""
    limits = " and ".join(_limits(submitted))
    number = "cost in all, in USD" if _means_cost(now, spent) else "use in all, in tokens"
    return (
        f"{remark}The run has {in_words(now, spent)}. Continue?\n"
        f"'{YES}' allows {limits} more, '{NO}' ends the run; a number is what it may {number}."
    )


def in_words(budget: Budget, spent: BudgetUse) -> str:
    """`cost 0.5312 USD of 0.50 (12,400 tokens)`, `used 12,400 tokens of 10,000 (0.5312 USD)`."""
    if _means_cost(budget, spent):
        assert budget.max_cost_usd is not None
        return f"cost {_dollars(spent.cost_usd)} USD of {_dollars(budget.max_cost_usd)} ({spent.tokens:,} tokens)"
    cost = f" ({_dollars(spent.cost_usd)} USD)" if spent.cost_usd else ""
    return f"used {spent.tokens:,} tokens of {budget.max_tokens:,}{cost}"


def read_budget_answer(text: str) -> Literal["yes", "no"] | float:
    """The answer of a person about a run whose budget is used up: YES, NO, or a limit. Raises ValueError for anything
    else; its message is for that person.
    """
    answer = text.strip().lower()
    if answer in _YES:
        return YES
    if answer in _NO:
        return NO
    try:
        number = float(answer.removeprefix("$"))
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"the answer must be '{YES}', '{NO}' or a number of more than 0, not {text[:40]!r}")
    return number


def raised(submitted: Budget, now: Budget, spent: BudgetUse, answer: Literal["yes"] | float) -> Budget:
    """The new budget of a run. YES adds the submitted budget to what is spent. A number replaces the limit that is used
    up; if both are, that of the cost. Raises ValueError for a number that allows nothing more; its message is for the
    person who answered.
    """
    if answer == YES:
        cost, tokens = submitted.max_cost_usd, submitted.max_tokens
        return Budget(
            None if cost is None else round(spent.cost_usd + cost, 8), None if tokens is None else spent.tokens + tokens
        )
    assert not isinstance(answer, str)
    if _means_cost(now, spent):
        if answer <= spent.cost_usd:
            raise ValueError(f"{_dollars(answer)} USD is not more than it has cost already.")
        return Budget(answer, now.max_tokens)
    if answer != int(answer):
        raise ValueError(f"tokens are whole, and {answer:g} is not.")
    if answer <= spent.tokens:
        raise ValueError(f"{int(answer):,} tokens are not more than it has used already.")
    return Budget(now.max_cost_usd, int(answer))


def _means_cost(budget: Budget, spent: BudgetUse) -> bool:
    """Whether the used-up limit is the cost rather than tokens."""
    return budget.max_tokens is None or budget.is_cost_used_up(spent)


def _limits(budget: Budget) -> list[str]:
    cost = [] if budget.max_cost_usd is None else [f"{_dollars(budget.max_cost_usd)} USD"]
    return cost + ([] if budget.max_tokens is None else [f"{budget.max_tokens:,} tokens"])


def _dollars(amount: float) -> str:
    """Two digits after the point, more where they are not zero."""
    text = f"{amount:.4f}" if amount >= 0.001 else f"{amount:.8f}"
    dollars, _, cents = text.partition(".")
    return f"{dollars}.{cents.rstrip('0'):0<2}"
