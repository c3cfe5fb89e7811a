"""Spans of runs, visits and model calls, for OpenTelemetry (docs/metrics.md, Traces).

Rules. A run is one trace, whose id is derived from the run's id, as are the ids of the spans of the run and of each
attempt of a visit: so client, scheduler and workers contribute to one trace without stored trace data. (A task's
headers carry `traceparent` all the same, for other instrumentation.) Nothing is sent, imported or measured unless
`configure` found an endpoint in the OTEL_* variables. A span has ids, names and numbers: no state, prompt or error
text. Sending never delays work: spans that an endpoint does not accept in time are dropped.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

Attributes: TypeAlias = Mapping[str, str | int | float]
Place: TypeAlias = tuple[str, int, int]
"""A visit's attempt: run, seq, attempt."""

FLUSH_MS: Final = 2_000  # at the end of a process, which must not wait for an endpoint that is away
_OFF: Final = nullcontext(None)
_forced = threading.local()
_tracer: Tracer | None = None


def is_on() -> bool:
    """Whether this process sends spans."""
    return _tracer is not None


def configure(service: str) -> None:
    """Send the spans of this process according to OTEL_* variables, as `service` unless OTEL_SERVICE_NAME is set.

    Does nothing unless they name an endpoint for OTLP over HTTP. Idempotent. A pool's child keeps the configuration
    from before its fork.
    """
    global _tracer
    if _tracer is not None or not _is_wanted():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        import structlog

        structlog.get_logger().warning(
            "an endpoint for traces is set, but nothing is sent; `pip install '.[otel]'` in a checkout",
            error=str(error),
        )
        return
    from opentelemetry import trace

    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}), id_generator=_ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _tracer = provider.get_tracer("sleipnir")
    atexit.register(flush)


def flush() -> None:
    """Send the pending spans before this process ends."""
    if _tracer is not None:
        from opentelemetry import trace

        provider: Any = trace.get_tracer_provider()
        provider.force_flush(FLUSH_MS)


def traceparent(run: str, seq: int, attempt: int) -> str:
    """The context of a visit's attempt as W3C writes it, for task headers."""
    parent = _span_context((run, seq, attempt))
    return f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{int(parent.trace_flags):02x}"


def submitting(agent: str, run: str) -> AbstractContextManager[Any]:
    """Around the submission of a run: a span of the run, or a part of the program's current span, with a link to the
    run."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and api.get_current_span().is_recording():
        return _submitting(api.get_tracer("sleipnir"), agent, run, linked=True)
    return _OFF if _tracer is None else _submitting(_tracer, agent, run, linked=False)


@contextmanager
def _submitting(tracer: Tracer, agent: str, run: str, *, linked: bool) -> Iterator[Span]:
    from opentelemetry.trace import Link, SpanKind

    links = [Link(_span_context(run))] if linked else []
    context = None if linked else _context(run)
    attributes = {"sleipnir.run": run, "sleipnir.agent": agent}
    with tracer.start_as_current_span(
        f"submit {agent}", context=context, kind=SpanKind.PRODUCER, attributes=attributes, links=links,
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        yield span


def executing(name: str, place: Place) -> AbstractContextManager[Span | None]:
    """Around the execution of a visit's attempt; spans that begin inside belong to it. None: tracing is off."""
    if _tracer is None:
        return _OFF
    from opentelemetry.trace import SpanKind

    return _tracer.start_as_current_span(
        f"execute {name}",
        context=_context(place),
        kind=SpanKind.CONSUMER,
        record_exception=False,
        set_status_on_exception=False,
    )


def calling(name: str, attributes: Attributes) -> AbstractContextManager[Span | None]:
    """Around a call of an external service, within `executing`. None: tracing is off."""
    if _tracer is None:
        return _OFF
    from opentelemetry.trace import SpanKind

    return _tracer.start_as_current_span(
        name, kind=SpanKind.CLIENT, attributes=attributes, record_exception=False, set_status_on_exception=False
    )


def failed(span: Span | None, kind: str) -> None:
    """Marks the span as failed; `kind` is one word, never a message."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute("error.type", kind)


def record(
    name: str,
    place: str | Place,
    start_ms: float,
    end_ms: float,
    attributes: Attributes,
    *,
    within: str | Place | None = None,
    link: str | Place | None = None,
    error: str | None = None,
) -> None:
    """A span of the past: that of a run or of a visit's attempt, or, if it is `within` the same, a part of it."""
    if _tracer is None:
        return
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Status, StatusCode

    if within == place:
        _forced.ids = None
    else:
        _forced.ids = (_trace_id(place if isinstance(place, str) else place[0]), _span_id(place))
    try:
        span = _tracer.start_span(
            name,
            context=Context() if within is None else _context(within),
            attributes=attributes,
            links=[Link(_span_context(link))] if link is not None else [],
            start_time=int(start_ms * 1e6),
        )
    finally:
        _forced.ids = None
    if error is not None:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute("error.type", error)
    span.end(end_time=int(max(start_ms, end_ms) * 1e6))


def _is_wanted() -> bool:
    env = os.environ
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return bool(env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _context(place: str | Place) -> Context:
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(_span_context(place)))


def _span_context(place: str | Place) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    trace_id = _trace_id(place if isinstance(place, str) else place[0])
    flags = TraceFlags(TraceFlags.SAMPLED if _is_sampled(trace_id) else TraceFlags.DEFAULT)
    return SpanContext(trace_id, _span_id(place), is_remote=True, trace_flags=flags)


def _is_sampled(trace_id: int) -> bool:
    """The sampler's decision for a new trace: every process decides the same for a run."""
    from opentelemetry import trace

    sampler = getattr(trace.get_tracer_provider(), "sampler", None)
    return sampler is None or bool(sampler.should_sample(None, trace_id, "run").decision.is_sampled())


def _trace_id(run: str) -> int:
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:16])


def _span_id(place: str | Place) -> int:
    text = f"run/{place}" if isinstance(place, str) else "/".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def _ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Random ids, except for the span that `record` begins in this thread."""

        def generate_trace_id(self) -> int:
            forced: Sequence[int] | None = getattr(_forced, "ids", None)
            return forced[0] if forced else super().generate_trace_id()

        def generate_span_id(self) -> int:
            forced: Sequence[int] | None = getattr(_forced, "ids", None)
            return forced[1] if forced else super().generate_span_id()

    return Ids()
