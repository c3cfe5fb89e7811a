"""Imports redis-py without the parts that a short command does not need."""

from __future__ import annotations

import sys

_METRICS = "opentelemetry.sdk.metrics"


def without_metrics() -> None:
    """Import redis-py as if the SDK of OpenTelemetry were not installed, which takes a quarter less time.

    redis-py imports the SDK for its own metrics and works without it. Only for the command line: a program that uses
    Sleipnir may want these metrics.
    """
    if "redis" in sys.modules or _METRICS in sys.modules:
        return
    sys.modules[_METRICS] = None  # type: ignore[assignment]  # an import of it is an ImportError
    try:
        import redis  # noqa: F401
    finally:
        del sys.modules[_METRICS]
