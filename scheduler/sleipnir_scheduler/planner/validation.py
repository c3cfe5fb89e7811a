"""The `validation` of an input node: `len(input) OP N`, a narrow grammar on purpose (spec 2.7.4)."""

from __future__ import annotations

import operator
import re

_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


def checked_input(expression: str | None, text: str) -> str | None:
    """None when `text` passes, else Loki's message. Length counts characters (design section 6), not bytes."""
    if expression is None:
        return None
    rule = expression.strip()
    if not rule.startswith("len(input)"):
        return f"Unsupported validation expression '{expression}'; only `len(input) OP N` is supported"
    match = re.match(r"len\(input\)\s*(>=|<=|==|>|<)(.*)", rule, re.DOTALL)
    if match is None:
        return f"No comparison operator in validation expression '{expression}'"
    bound = match[2].strip()
    if not re.fullmatch(r"\d+", bound, re.ASCII):
        return f"Invalid right-hand side in validation '{expression}'"
    if not _OPERATORS[match[1]](len(text), int(bound)):
        return f"Input failed validation '{expression}' (got {len(text)} chars)"
    return None
