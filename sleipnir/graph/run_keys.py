"""The state keys of one run (spec/graph-package.md F51): the next turn of its thread does not begin with them."""

from __future__ import annotations

from typing import Final

OF_RUN: Final = ("temp:", "invocation:")
"""What their names begin with: `temp:` for values that nodes pass on, `invocation:` for those that a run is given."""
