"""Webhooks and their deliveries, as they are stored. Times are milliseconds since the epoch by Redis' clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from sleipnir.errors import UsageError

OccasionName: TypeAlias = Literal["run_ended", "gate_opened", "gate_expiring", "batch_done", "budget_reached"]
OCCASIONS: Final[tuple[OccasionName, ...]] = get_args(OccasionName)
"""What a webhook can be about."""

DeliveryStatus: TypeAlias = Literal["waiting", "delivered", "failed"]
"""`waiting` for its first or next try; `failed`: it was tried for too long, and is not tried again by itself."""

MOST_WEBHOOKS: Final = 100
MOST_WAITING: Final = 100_000
"""Deliveries of a webhook that wait. What happens then is counted as lost."""
MOST_KEPT: Final = 10_000
"""Deliveries of a webhook that are over and are kept, the newest."""
MOST_URL: Final = 2_000
MOST_REASON: Final = 500
EXPIRING_MS: Final = 3_600_000
"""How long before the end of a question `gate_expiring` comes."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class WebhookPause:
    """Who has paused a webhook, when and why."""

    by: str
    at_ms: int
    reason: str = ""


@dataclass(frozen=True)
class Webhook:
    """A webhook. `token` tells it from others that had its name. `key` is the id of the key from which its secret is
    derived. `agent`, `namespace` and `tags` bound what it is about; None: anything. With `links`, deliveries about
    questions have signed links for those who are asked. `changed` is a random text that each change replaces."""

    name: str
    url: str
    on: tuple[str, ...]
    token: str
    key: str
    created_ms: int
    created_by: str
    agent: str | None = None
    namespace: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    paused: WebhookPause | None = None
    changed: str = ""
    links: bool = False
    v: int = 1


@dataclass(frozen=True)
class WebhookDelivery:
    """One delivery. `of` is the run or the batch that it is about; those of one go one after the other. `body` is what
    is sent, the same in each try. `status_code` and `error` are those of the last of `attempts` tries."""

    id: str
    occasion: str
    of: str
    body: str
    created_ms: int
    status: str = "waiting"
    attempts: int = 0
    tried_ms: int | None = None
    next_ms: int | None = None
    status_code: int | None = None
    error: str | None = None
    v: int = 1


@dataclass(frozen=True)
class WebhookInfo:
    """A webhook as people see it. `waiting` deliveries are to come, `delivered` and `failed` ones were; `lost` were
    never queued, because too many waited; `failing_ms`: since when every try has failed."""

    webhook: Webhook
    waiting: int = 0
    delivered: int = 0
    failed: int = 0
    lost: int = 0
    failing_ms: int | None = None


def checked_name(name: object) -> str:
    """Raises UsageError for what is no name of a webhook."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80} cannot name a webhook: up to 64 letters, digits, '.', '_' and '-' can")
    return name


def checked_occasions(on: object) -> tuple[str, ...]:
    """Each once, in their order. Raises UsageError."""
    names = tuple(dict.fromkeys(on)) if isinstance(on, (list, tuple, set, frozenset)) else ()
    if not names:
        raise UsageError(f"a webhook needs what it is about: one or more of {', '.join(OCCASIONS)}")
    for name in names:
        if name not in OCCASIONS:
            raise UsageError(f"{name!r:.60} is nothing that a webhook can be about: {', '.join(OCCASIONS)} are")
    return tuple(str(name) for name in OCCASIONS if name in names)


def checked_url(url: object) -> str:
    """Raises UsageError for what is no address of a receiver."""
    if not isinstance(url, str) or len(url) > MOST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"the address of a webhook is a URL of up to {MOST_URL:,} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UsageError(f"{url!r:.200} is no URL: {error}") from None
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise UsageError(f"{url!r:.200} is no address of a webhook: write https://host/path")
    if "@" in parts.netloc:
        raise UsageError("the address of a webhook has no user and no password: it is stored, and shown in lists")
    if parts.fragment:
        raise UsageError("the address of a webhook has no fragment (#...): it would not be sent")
    return url
