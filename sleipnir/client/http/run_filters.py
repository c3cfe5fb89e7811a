"""The parameters of the API that choose runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def filter_parameters(status: Collection[str] | None, query: Mapping[str, Any]) -> dict[str, Any]:
    """Those for the keywords of Client.runs."""
    from sleipnir.client.run_queries import NAMES

    given = {name: value for name, value in query.items() if value is not None}
    for name in given:
        if name not in NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; runs are chosen by {', '.join(sorted(NAMES))}")
    reason = given.pop("reason", ())
    tags = [f"{key}={text}" for key, text in (given.pop("tags", None) or {}).items()]
    found = {
        "status": sorted(status or ()),
        "reason": [reason] if isinstance(reason, str) else sorted(reason),
        "agent": list(given.pop("agents", ())),
        "tag": tags,
    }
    return {**given, **found}
