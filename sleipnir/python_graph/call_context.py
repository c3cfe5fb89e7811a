"""What the callbacks around a call of a tool have put into `info.context`, for the Python function that is the tool."""

from __future__ import annotations

import contextvars
import json
import os
from typing import Any, Final

call_context: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "sleipnir_call_context", default=None
)
VARIABLE: Final = "LLM_CALL_CONTEXT"
"""A tool that is a command has it in its environment, as JSON."""


def get_call_context() -> dict[str, Any]:
    """A copy of it; empty outside of a tool, or without callbacks."""
    known = call_context.get()
    if known is not None:
        return dict(known)
    found: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
    return found
