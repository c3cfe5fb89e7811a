"""The `validation` of an input node. Only `len(input) OP N` is supported, on purpose (spec/graph-agents.md 2.7.4).

Length counts characters. The messages are Loki's, word for word.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_OPERATORS: Mapping[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_LENGTH = "len(input)"
_COMPARISON = re.compile(r"\s*(>=|<=|==|>|<)(.*)", re.DOTALL)
_BOUND = re.compile(r"[0-9]{1,18}")  # no answer is longer; int() refuses texts of thousands of digits


class LengthRuleError(ValueError):
    """The expression does not match the grammar."""


@dataclass(frozen=True)
class LengthRule:
    """One rule about the length of an answer."""

    expression: str
    sign: str
    bound: int

    def accepts(self, answer: str) -> bool:
        return _OPERATORS[self.sign](len(answer), self.bound)

    def refusal(self, answer: str) -> str:
        """The message for an answer that is not accepted."""
        return f"Input failed validation '{self.expression}' (got {len(answer)} chars)"


def parse_length_rule(expression: str) -> LengthRule:
    """The rule of `expression`. Raises LengthRuleError."""
    rule = expression.strip()
    if not rule.startswith(_LENGTH):
        raise LengthRuleError(f"Unsupported validation expression '{expression}'; only `len(input) OP N` is supported")
    comparison = _COMPARISON.fullmatch(rule.removeprefix(_LENGTH))
    if comparison is None:
        raise LengthRuleError(f"No comparison operator in validation expression '{expression}'")
    sign, bound = comparison[1], comparison[2].strip()
    if _BOUND.fullmatch(bound) is None:
        raise LengthRuleError(f"Invalid right-hand side in validation '{expression}'")
    return LengthRule(expression, sign, int(bound))
