"""Without an endpoint there is no tracing: nothing is imported, nothing is made, nothing is sent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sleipnir import tracing

IS_OFF = """
import sys
from sleipnir import tracing
tracing.configure("sleipnir-test")
with tracing.submitting("a", "r") as a, tracing.executing("x", ("r", 1, 1)) as b, tracing.calling("c", {}) as c:
    assert (a, b, c) == (None, None, None)
tracing.record("run", "r", 0, 1, {})
tracing.failed(None, "timeout")
tracing.flush()
assert not tracing.is_on()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
JOINS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sleipnir import tracing
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
with trace.get_tracer("program").start_as_current_span("request"):
    with tracing.submitting("work", "r1"):
        pass
with tracing.submitting("work", "r2"):
    pass
submit, request = kept.get_finished_spans()
assert (submit.name, submit.parent.span_id) == ("submit work", request.context.span_id)
assert format(submit.links[0].context.trace_id, "032x") == tracing.traceparent("r1", 1, 1)[3:35]
"""


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_of_opentelemetry_is_even_imported(env: dict[str, str]) -> None:
    run_python(IS_OFF, env)


def test_the_submit_of_a_program_that_traces_itself_is_part_of_its_trace_and_names_the_run() -> None:
    run_python(JOINS, {})


def run_python(text: str, env: dict[str, str]) -> None:
    without = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", text], env=without | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_ids_follow_from_the_run_and_differ() -> None:
    spans = {tracing._span_id(of) for of in ("r1", "r2", ("r1", 1, 1), ("r1", 1, 2), ("r1", 11, 1), ("r2", 1, 1))}
    assert len(spans) == 6
    assert tracing._trace_id("r1") == tracing._trace_id("r1") != tracing._trace_id("r2")
