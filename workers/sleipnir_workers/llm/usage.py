"""The usage of a visit's model calls so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from sleipnir.messages import Usage
from sleipnir_workers.llm.reply import Answer


@dataclass
class UsageTotal:
    """A call counts from its start; tokens and cost count when it is answered.

    `cost_usd` is None after an answer with an unknown price.
    """

    model: str | None = None
    calls: int = 0
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = field(default=0.0)

    def add(self, answer: Answer) -> None:
        self.count(answer.input_tokens, answer.output_tokens, answer.cost_usd)

    def count(self, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        """Add one answer."""
        self.answers += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        known = cost_usd is not None and self.cost_usd is not None
        self.cost_usd = (self.cost_usd or 0.0) + (cost_usd or 0.0) if known else None

    def usage(self) -> Usage | None:
        """None without a call. Failed calls are counted, but their cost is unknown."""
        if not self.calls:
            return None
        cost = self.cost_usd if self.answers else None
        return Usage(self.input_tokens, self.output_tokens, self.calls, self.model, cost)
