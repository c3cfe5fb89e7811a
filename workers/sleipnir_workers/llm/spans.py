"""Spans of model calls, named by OpenTelemetry's conventions (docs/metrics.md, Traces)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sleipnir import tracing
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.transport import Operation

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@contextmanager
def span_of(operation: Operation, model: str, endpoint: Endpoint, **request: float | None) -> Iterator[Span | None]:
    """A span around one call, within the span of its visit; CallFailed marks it as failed. None: tracing is off.

    `model` is its id in graphs; `request` are the parameters of the call, None: not set.
    """
    attributes: dict[str, str | float] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": endpoint.model.partition("/")[0],
        "gen_ai.request.model": model,
    }
    attributes |= {f"gen_ai.request.{name}": value for name, value in request.items() if value is not None}
    with tracing.calling(f"{operation} {model}", attributes) as span:
        try:
            yield span
        except CallFailed as error:
            tracing.failed(span, error.kind)
            raise


def set_usage(span: Span | None, input_tokens: int, output_tokens: int | None = None) -> None:
    """Set the tokens of a call. `output_tokens` None: the answer is not text."""
    if span is not None:
        span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
        if output_tokens is not None:
            span.set_attribute("gen_ai.usage.output_tokens", output_tokens)
