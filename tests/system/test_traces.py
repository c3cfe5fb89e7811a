"""The trace of a run, as an OpenTelemetry collector gets it from client, scheduler and worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sleipnir import tracing
from sleipnir.messages import VisitCall
from sleipnir.testing import ModelServer
from sleipnir_scheduler import dispatch
from tests.processes import RedisServer, Stack, wait_until, write_agent

WORK = """
name: work
start: a
nodes:
  a: {type: script, script: a.sh, next: say}
  say: {type: llm, model: "openai:gpt-4o-mini", prompt: "sesame", temperature: 0.5, next: e}
  e: {type: end, output: done}
"""


pytestmark = pytest.mark.timeout(300)  # its worker imports litellm, which takes long on a busy machine


class Collector:
    """Keeps the spans that are sent to it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        """Each with the service that sent it."""
        self.bodies: list[bytes] = []

    def add(self, body: bytes) -> None:
        self.bodies.append(body)
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(a.value.string_value for a in sent.resource.attributes if a.key == "service.name")
            self.spans += [(service, span) for scope in sent.scope_spans for span in scope.spans]

    def names(self) -> list[str]:
        return [span.name for _, span in self.spans]

    def span(self, name: str) -> Any:
        [found] = [span for _, span in self.spans if span.name == name]
        return found


@contextmanager
def collector() -> Iterator[tuple[Collector, str]]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.add(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield kept, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_client_scheduler_and_worker_add_to_one_trace(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "work", WORK, a_sh='echo \'{"planted": "s3cret-value"}\'\n')
    with (
        collector() as (kept, url),
        ModelServer(["open"]) as server,
        Stack(redis_server, tmp_path / "home", key_prefix="traces", log_format="json") as stack,
    ):
        sends = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        stack.start_scheduler(env=sends)
        stack.start_worker("worker", "scripts,functions,llm", env={**server.env(), **sends}, ready=False)
        stack.wait_for_worker("worker", 200)
        done = stack.sleipnir("run", str(agent), "hello", **sends)
        assert done.returncode == 0, done.stderr
        expected = {
            "submit work", "run work", "visit work.a", "visit work.say", "visit work.e", "queue", "commit",
            "execute work.a", "execute work.say", "chat openai:gpt-4o-mini",
        }  # fmt: skip
        wait_until(lambda: expected <= set(kept.names()), "all spans arrive")
        assert set(kept.names()) == expected
        assert {span.trace_id for _, span in kept.spans} == {kept.span("run work").trace_id}
        assert {service for service, _ in kept.spans} == {"sleipnir", "sleipnir-scheduler", "sleipnir-worker"}

        def parent(name: str) -> str:
            wanted = kept.span(name).parent_span_id
            return next((span.name for _, span in kept.spans if span.span_id == wanted), "")

        assert {name: parent(name) for name in sorted(expected - {"queue", "commit"})} == {
            "run work": "", "submit work": "run work", "visit work.a": "run work", "visit work.say": "run work",
            "visit work.e": "run work", "execute work.a": "visit work.a", "execute work.say": "visit work.say",
            "chat openai:gpt-4o-mini": "execute work.say",
        }  # fmt: skip
        said = attributes(kept.span("chat openai:gpt-4o-mini"))
        assert (said["gen_ai.operation.name"], said["gen_ai.provider.name"]) == ("chat", "openai")
        assert (said["gen_ai.request.model"], said["gen_ai.request.temperature"]) == ("openai:gpt-4o-mini", 0.5)
        assert said["gen_ai.usage.input_tokens"] > 0 < said["gen_ai.usage.output_tokens"]
        visit = attributes(kept.span("visit work.a"))
        assert (visit["sleipnir.node"], visit["sleipnir.queue"], visit["sleipnir.outcome"]) == ("a", "scripts", "ok")
        everything = b"".join(kept.bodies)
        assert not any(word in everything for word in (b"s3cret-value", b"sesame", b"hello"))


def test_a_collector_that_is_away_holds_up_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "short", "name: short\nstart: e\nnodes:\n  e: {type: end, output: done}\n")
    sends = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with Stack(redis_server, tmp_path / "home", key_prefix="traces-away") as stack:
        stack.start_scheduler(env=sends)
        done = stack.sleipnir("run", str(agent), **sends)
        assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_a_task_carries_the_context_of_its_visit_in_its_headers_while_tracing_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = VisitCall("run000000001", "a", 3, 2, "agent", "digest")
    assert "traceparent" not in dispatch.envelope(call, "scripts")
    monkeypatch.setattr(tracing, "_tracer", object())
    found = tracing.traceparent(call.run, call.seq, call.attempt)
    assert f'"traceparent": "{found}"' in dispatch.envelope(call, "scripts")
    assert found != tracing.traceparent(call.run, call.seq, 1)
    assert found[3:35] == tracing.traceparent(call.run, 1, 1)[3:35], "one trace for the run"
