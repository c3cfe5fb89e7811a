"""The records of failures in the state of a run (`errors:` of its graph). It imports nothing: clients read them."""

from __future__ import annotations

from typing import Final

ERRORS_KEY: Final = "execution_errors"
"""The state key of the records."""
