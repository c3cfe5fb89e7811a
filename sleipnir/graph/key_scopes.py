"""The scopes of state keys: what the names of some begin with (spec/graph-package.md F21, F51).

A run has such keys like all others, in its journal too, but the next turn of its thread does not begin with them:
values of one run are gone, and those of a user or an agent are shared by all their runs (runs/shared_values.py).
"""

from __future__ import annotations

from typing import Final

OF_RUN: Final = ("temp:", "invocation:")
"""Of one run: `temp:` for values that nodes pass on, `invocation:` for those that a run is given."""

OF_USER: Final = "user:"
OF_AGENT: Final = "app:"

SHARED: Final = (OF_USER, OF_AGENT)
"""Of a user of an agent, and of an agent."""

NOT_OF_THREAD: Final = (*OF_RUN, *SHARED)
"""What the next turn of a thread does not begin with, as lua/shared/turns.lua has it."""
