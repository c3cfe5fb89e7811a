"""When a failed delivery is tried again: after 5 s, then three times as long each time, up to an hour."""

from __future__ import annotations

import hashlib
from typing import Final

FIRST_MS: Final = 5_000
MOST_MS: Final = 3_600_000
GROWTH: Final = 3


def next_ms(id_: str, attempts: int, now_ms: int, *, created_ms: int, for_ms: int, asked_ms: int = 0) -> int | None:
    """When a delivery is tried again that has failed `attempts` times; None: never, it was tried for `for_ms` since it
    was created. `asked_ms`: how long the receiver asks us to wait, which counts up to an hour. A tenth is added at
    most, by the id, so that many deliveries do not come at once."""
    wait_ms = min(MOST_MS, FIRST_MS * GROWTH ** min(attempts - 1, 20))
    digest = hashlib.sha256(f"{id_}\n{attempts}".encode()).digest()
    spread_ms = wait_ms * int.from_bytes(digest[:2]) // 655_360
    at_ms = now_ms + max(wait_ms + spread_ms, min(asked_ms, MOST_MS))
    return at_ms if at_ms - created_ms <= for_ms else None
