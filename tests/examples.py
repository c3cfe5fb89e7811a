"""How many examples a property test tries."""

from __future__ import annotations

import hypothesis

UNIT_EXAMPLES = 25


def examples(most: int) -> int:
    """`most`, or a few in the profile `unit`: `make test-unit` takes a minute at most."""
    return min(most, UNIT_EXAMPLES) if hypothesis.settings.get_current_profile_name() == "unit" else most
