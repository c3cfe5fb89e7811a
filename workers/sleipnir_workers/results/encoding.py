"""The JSON form of what a visit writes, as it is stored: texts by state key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.plain import compact_json
from sleipnir.messages import INSTEAD, MOST_KEYS, OVERLAY_END, OVERLAYS, SAID, VisitResult, overlay_text


def encoded(result: VisitResult, node: str, limit_bytes: int) -> tuple[VisitResult, dict[str, str]]:
    """The JSON texts that the visit writes, by state key, and under OVERLAYS the updates of its commands.

    A value that cannot be stored fails the visit; the message names its key. A reserved key is left out.
    """
    if OVERLAYS in result.delta:
        result = replace(result, delta={key: value for key, value in result.delta.items() if key != OVERLAYS})
    try:
        values = {key: _json(key, value) for key, value in result.delta.items()}
        if len(values) > MOST_KEYS:
            raise NodeFailed(
                f"writes {len(values):,} state keys, at most {MOST_KEYS:,} are possible; nest them", "too_large"
            )
        if result.sends and any(send.update for send in result.sends):
            overlays = ({key: _json(key, value) for key, value in send.update.items()} for send in result.sends)
            values[OVERLAYS] = OVERLAY_END.join(map(overlay_text, overlays))
        if result.said is not None:
            lines = [_json(SAID, message) for message in result.said.messages]
            values[SAID] = "\n".join([INSTEAD, *lines] if result.said.instead else lines)
        size = sum(len(key) + len(text) for key, text in values.items())
        if size > limit_bytes:
            raise NodeFailed(
                f"writes {size:,} bytes to the state, more than SLEIPNIR_MAX_OUTPUT_BYTES={limit_bytes:,}; "
                f"the largest {_largest(values)}. Store the data in a file and write its path",
                "too_large",
            )
        return result, values
    except NodeFailed as error:
        message = f"node '{node}' {error}"
        delta = {"_error": {"node": node, "message": message}, "last_error": message}
        failure = VisitResult(ok=False, delta=delta, error=message, error_kind=error.kind, usage=result.usage)
        return failure, {key: json.dumps(value) for key, value in delta.items()}


def _largest(values: Mapping[str, str]) -> str:
    largest = max(values, key=lambda key: len(values[key]))
    return "part are the updates of its commands" if largest == OVERLAYS else f"key is {largest!r}"


def _json(key: str, value: Any) -> str:
    try:
        text = compact_json(value, allow_nan=False)
        if not (text.isascii() and key.isascii()):
            f"{key}{text}".encode()  # refuses half a surrogate pair, which could not be stored
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise NodeFailed(f"state key {key!r} is not JSON: {error}", "not_json") from None
