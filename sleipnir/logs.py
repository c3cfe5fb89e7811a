"""Logs of the services: structlog, one event per line; JSON unless written to a terminal.

Records within `handling` have the ids of the visit, also those of libraries, and records of the standard library are
rendered the same. Values with secret-like names are masked before rendering. `trace` is debug plus one record: the full
state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar, Token
from typing import Any

import structlog

from sleipnir import failpoints
from sleipnir.redaction import is_secret_name
from sleipnir.settings import Settings
from sleipnir.store.address import masked

_LEVELS = {"trace": 10, "debug": 10, "info": 20, "warning": 30, "error": 40}
_shows_debug = True
_handled: ContextVar[tuple[str, str | None, int | None, int | None] | None] = ContextVar("handled", default=None)


def configure(settings: Settings) -> None:
    """Set up structlog and the standard library's logging for a service process. Call once, at start."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = _LEVELS[settings.log_level]
    global _shows_debug
    _shows_debug = level <= logging.DEBUG
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(ensure_ascii=False)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _say_visit,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _mask_secrets,
        structlog.processors.format_exc_info,
        _mask_addresses,
    ]
    others = logging.StreamHandler(sys.stderr)
    others.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=max(level, logging.INFO), handlers=[others])
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    if failpoints.ACTIVE:
        structlog.get_logger().warning(
            f"{failpoints.VARIABLE} is set: this process fails on purpose", points=sorted(failpoints.ACTIVE)
        )


def shows_debug() -> bool:
    """Whether records of the level debug are written: for callers that make thousands of them."""
    return _shows_debug


class handling:
    """A context in which every record has the ids of the visit. It takes half a microsecond, for each visit and each
    commit."""

    __slots__ = ("_place", "_token")

    def __init__(self, run: str, node: str | None = None, visit: int | None = None, attempt: int | None = None) -> None:
        self._place = (run, node, visit, attempt)

    def __enter__(self) -> None:
        self._token: Token[Any] = _handled.set(self._place)

    def __exit__(self, *_: object) -> None:
        _handled.reset(self._token)


def _say_visit(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if (place := _handled.get()) is None:
        return event
    run, node, visit, attempt = place
    event.setdefault("run", run)
    if visit is not None and event.get("visit", visit) == visit:  # else it is about another one
        for name, value in (("node", node), ("visit", visit), ("attempt", attempt)):
            if value is not None:
                event.setdefault(name, value)
    return event


def _mask_addresses(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Errors of libraries may contain an address with its password."""
    for name, value in event.items():
        if isinstance(value, str) and "://" in value and "@" in value:
            event[name] = masked(value)
    return event


def _mask_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in event:
        if is_secret_name(name):
            event[name] = "***"
    return event
