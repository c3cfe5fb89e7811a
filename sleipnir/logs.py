"""Logs of the services: structlog, one event per line; JSON unless a person reads it.

Values whose name says secret are masked before they are rendered. `trace` is debug plus the one record that asks the
setting itself: the full state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from sleipnir import failpoints
from sleipnir.settings import Settings

_LEVELS = {"trace": 10, "debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRET_WORDS = ("key", "token", "password", "secret", "authorization")
_NOT_SECRET = {"key_prefix", "keys", "tokens_in", "tokens_out"}


def configure(settings: Settings) -> None:
    """Set up structlog and the standard library's logging for a service process. Call once, at start."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = _LEVELS[settings.log_level]
    logging.basicConfig(level=max(level, logging.INFO), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _mask_secrets,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    if failpoints.ACTIVE:
        structlog.get_logger().warning(
            f"{failpoints.VARIABLE} is set: this process fails on purpose", points=sorted(failpoints.ACTIVE)
        )


def _mask_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in event:
        if name not in _NOT_SECRET and any(word in name.lower() for word in _SECRET_WORDS):
            event[name] = "***"
    return event
