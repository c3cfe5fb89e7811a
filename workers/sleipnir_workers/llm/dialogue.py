"""One visit's part of a conversation with a model: the model, the deadline, the usage and the result.

Rules (spec 2.7.1, 2.9). Every failure is a failure of the node, never of the worker; state_updates see its text as
{{output}}. The timeout covers all attempts and the extraction of structured output. No error contains a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.graph.model import Graph, Json, LlmNode, ModelSettings
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import CallTokens, Execution, OutputStream, TextSink
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.llm import (
    chat_call,
    clients,
    litellm_compat,
    model_callbacks,
    models,
    reasoning_effort,
    recording,
    structured_output,
)
from sleipnir_workers.llm.attempts import Attempts
from sleipnir_workers.llm.chat_request import CALL_TIMEOUT_S
from sleipnir_workers.llm.conversation import chat
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.permit import Permit, names_of, tokens_of_chat
from sleipnir_workers.llm.reply import Answer, Message
from sleipnir_workers.llm.spans import set_usage, span_of
from sleipnir_workers.llm.usage import UsageTotal
from sleipnir_workers.machine import keyring
from sleipnir_workers.machine.host import Host
from sleipnir_workers.results import typed_state
from sleipnir_workers.results.items import with_own_output

if TYPE_CHECKING:
    from sleipnir.testing.tape import Tape


class Dialogue:
    """Call `ask`, then get the result of the visit: `finish`, `success` or `failure`. `notes` are narration."""

    def __init__(self, node: LlmNode, execution: Execution, host: Host) -> None:
        self._node = node
        self._execution = execution
        self._host = host
        self._keys = keyring.hidden_in(host)
        self._literal_keys: frozenset[str] = frozenset()
        self._endpoint: Endpoint | None = None
        self._deadline: float | None = None
        self._tape: Tape | None = None
        self._efforts: tuple[str | None, str | None] = None, None  # as configured, and as sent
        self.result_bytes = 0
        """How many bytes of a tool's result the model gets; 0: all. Set by `open`."""
        self.spent = UsageTotal()
        self.notes: list[str] = []

    def open(self, tools: str = "<none>") -> Endpoint:
        """Resolve the model. `tools` names its tools in the narration. The timeout begins after this.

        Raises NodeFailed (`model`, `config`). Idempotent.
        """
        if self._endpoint is not None:
            return self._endpoint
        try:
            configured = clients.clients_of(self._host)
            self._literal_keys = configured.literal_keys
            self._keys = keyring.keyring_of(self._host)
            default = self._host.settings.model or configured.model
            model_id = models.model_of(self._node.model, self._execution.graph.model, default)
            self.notes.append(f"llm call: model={model_id} tools={tools}")
            self.spent.model = model_id
            self._tape = recording.tape_of(self._host)
            is_asked = self._tape is None or self._tape.is_recording
            if is_asked:
                endpoint = models.resolve(model_id, self._keys.env, litellm_compat.providers(), configured)
            else:
                endpoint = models.replayed_endpoint(model_id, configured)
            effort = reasoning_effort.configured(self._node, self._execution.graph, configured, self._host.env)
            sent = reasoning_effort.effort_to_send(effort, model_id, endpoint, self.notes.append) if is_asked else None
            self._efforts = effort, sent
            self.result_bytes = _result_bytes(self._execution.graph, configured)
            self._endpoint = endpoint
        except ConfigError as error:
            raise NodeFailed(str(error), "config") from error
        return self._endpoint

    def begin(self, timeout_s: float | None) -> None:
        """Start the timeout for all calls; None: no limit."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """The model's answer, after up to max_attempts attempts; each is streamed to the viewers from its start.

        Only the first attempt is put off: later attempts wait here, because the number of attempts is not stored.
        Raises NodeFailed, PutOff and VisitLost.
        """
        attempts, writer = Attempts(self._node.max_attempts, self._pause), self._execution.stream_writer
        sinks: list[TextSink | OutputStream] = [
            sink for sink in (self._execution.text_sink, writer) if sink is not None
        ]
        if self._node.generation is not None and self._node.generation.stream is False:
            sinks = []

        asked_before = self.spent.calls

        def ask(messages: Sequence[Message]) -> Answer:
            for sink in sinks if self.spent.calls > asked_before else ():
                sink.restart()
            return self._ask(messages, tools, _to_all(sinks), puts_off=not self.spent.calls)

        answer = self._asked(messages, tools, lambda messages: attempts.run(lambda: ask(messages)))
        if writer is not None:
            writer.settle(answer.text)
        return answer

    def _asked(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        attempt: Callable[[Sequence[Message]], Answer],
    ) -> Answer:
        """The answer, after what callbacks of the model make of it."""
        own, sink = self._execution.callbacks, self._execution.text_sink
        if own is None or not own.has("model"):
            return attempt(messages)
        if self._node.generation is not None and self._node.generation.stream is False:
            sink = None
        return model_callbacks.asked(own, self._execution, self.spent.model or "", messages, tools, attempt, sink)

    def aside(self, messages: Sequence[Message], *, puts_off: bool = False) -> str:
        """The model's answer to a question outside the conversation; it is not streamed. Raises NodeFailed, and PutOff
        if it `puts_off`: no call of the visit has been answered."""
        try:
            return self._ask(messages, puts_off=puts_off).text
        except CallFailed as error:
            raise NodeFailed(str(error), error.kind, transient=error.transient) from error

    def finish(self, text: str, what: str = "LLM node structured-extraction failed") -> VisitResult:
        """The visit's result from the model's `text`: structured output, then state_updates. `what` is the start of the
        error message if the text holds no valid data."""
        if self._node.output_schema is None:
            return self.success(text)
        try:
            value = structured_output.extract(text, self._node.output_schema, self._extract, self.notes.append)
        except NodeFailed as error:
            return self.failure(error, what=what)
        return self.success(value)

    def success(self, value: Json) -> VisitResult:
        """The result with the state changes of a value: the keys of an object with a schema, then state_updates."""
        merged = value if self._node.output_schema is not None and isinstance(value, dict) else {}
        delta = {**merged, **typed_state.updates(self._execution, merged, value=value)}
        return VisitResult(
            ok=True,
            delta=with_own_output(self._execution, delta, value),
            usage=self.spent.usage(),
            notes=tuple(self.notes),
        )

    def failure(self, error: NodeFailed, what: str = "LLM node failed") -> VisitResult:
        """The result of a failure; state_updates see its text."""
        message = f"{what}: {self.clean(str(error))}"
        return VisitResult(
            ok=False,
            delta=typed_state.updates(self._execution, {}, value=message),
            error=message,
            error_kind=error.kind,
            transient=error.transient,
            usage=self.spent.usage(),
            notes=tuple(self.notes),
        )

    def put_off(self, later: PutOff) -> VisitResult:
        """The result of a visit that a limit of its model delays. Its usage counts."""
        usage = self.spent.usage()
        # A scheduler of an older release ignores `later_ms`; it must see a failure, not a success.
        return VisitResult(ok=False, error=str(later), error_kind="limit", usage=usage, later_ms=later.until_ms)

    def clean(self, text: str) -> str:
        """`text` without any secret of this worker."""
        own = self._endpoint.secrets if self._endpoint is not None else frozenset()
        return self._keys.clean(text, self._literal_keys | own)

    def _extract(self, system: str, user: str) -> str:
        """One call of the extractor role, on the same model. Raises NodeFailed."""
        try:
            return self._ask(chat(system, user), puts_off=False).text
        except CallFailed as error:
            message = f"Structured-output extractor LLM call failed: {error}"
            raise NodeFailed(message, "structured", transient=error.transient) from error

    def _ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        on_text: Callable[[str], None] | None = None,
        *,
        puts_off: bool,
    ) -> Answer:
        """One call, or its recorded answer. Unless it `puts_off`, it waits until the limits permit the call: to put off
        the visit would lose its earlier answers. Raises CallFailed for errors of the provider, NodeFailed at the
        node's timeout and for a request without a recording, PutOff and VisitLost."""
        endpoint = self.open()
        while True:
            self._check_deadline()
            try:
                if self._tape is None:
                    return self._ask_provider(endpoint, messages, tools, on_text)
                return self._ask_tape(self._tape, endpoint, messages, tools, on_text)
            except ConfigError as error:
                raise NodeFailed(str(error), "config") from error
            except PutOff as later:
                if puts_off:
                    raise
                self._pause(max(0.05, later.until_ms / 1000 - time.time()))

    def _ask_tape(
        self,
        tape: Tape,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        on_text: Callable[[str], None] | None,
    ) -> Answer:
        temperature, top_p = self._sampling()
        model = self.spent.model or endpoint.model
        request = recording.request(
            model,
            messages,
            tools,
            temperature=temperature,
            top_p=top_p,
            reasoning_effort=self._efforts[0],
            generation=self._generation(),
        )
        if (recorded_answer := tape.find(request)) is None:
            answer = self._ask_provider(endpoint, messages, tools, on_text)
            tape.keep(request, recording.recorded(answer, model))
            return answer
        answer = recording.replayed(recorded_answer)
        self.spent.calls += 1
        self.spent.add(answer)
        if on_text is not None and answer.text:
            on_text(answer.text)
        return answer

    def _ask_provider(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        on_text: Callable[[str], None] | None,
    ) -> Answer:
        temperature, top_p = self._sampling()
        try:
            with (
                self._permit(endpoint, messages) as permit,
                span_of(
                    "chat", self.spent.model or endpoint.model, endpoint, temperature=temperature, top_p=top_p
                ) as span,
            ):
                self.spent.calls += 1
                answer = chat_call.ask(
                    endpoint,
                    messages,
                    tools=tools,
                    temperature=temperature,
                    top_p=top_p,
                    reasoning_effort=self._efforts[1],
                    generation=self._generation(),
                    timeout_s=self._remaining_s(),
                    on_text=on_text,
                    tick=self._execution.check,
                    clean=self.clean,
                )
                set_usage(span, answer.input_tokens, answer.output_tokens)
                permit.tokens = answer.input_tokens + answer.output_tokens
        except CallFailed:
            self._check_deadline()  # if both time out together, the visit's timeout is reported
            raise
        self.spent.add(answer)
        return answer

    def _sampling(self) -> tuple[float | None, float | None]:
        """Temperature and top_p: the node's, else the graph's."""
        node, graph, own = self._node, self._execution.graph, self._node.generation or ModelSettings()
        given = (own.temperature, node.temperature, graph.temperature), (own.top_p, node.top_p, graph.top_p)
        temperature, top_p = (next((value for value in values if value is not None), None) for values in given)
        return temperature, top_p

    def _generation(self) -> dict[str, Any]:
        """The other settings of the model that the node gives."""
        own = self._node.generation or ModelSettings()
        names = ("max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty")
        return {name: value for name in names if (value := getattr(own, name)) is not None}

    def _permit(self, endpoint: Endpoint, messages: Sequence[Message]) -> AbstractContextManager[CallTokens]:
        visit, permits = self._execution, self._execution.permits
        if permits is None:
            return nullcontext(Permit())
        part = f"/{visit.part.turn}" if visit.part is not None else ""
        model = self.spent.model or endpoint.model
        tokens = tokens_of_chat(endpoint, messages)
        return permits.call(f"{visit.run}/{visit.seq}{part}", visit.attempt, names_of(model, endpoint), tokens)

    def _pause(self, wanted_s: float) -> None:
        if self._execution.lost.wait(min(wanted_s, self._remaining_s())):
            self._execution.check()
        self._check_deadline()

    def _remaining_s(self) -> float:
        return CALL_TIMEOUT_S if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise NodeFailed(f"llm node timed out after {self._node.timeout}s", "timeout")


def _to_all(sinks: Sequence[TextSink | OutputStream]) -> Callable[[str], None] | None:
    """What takes text for all of these; None: there are none."""
    if len(sinks) < 2:
        return sinks[0].write if sinks else None

    def write(text: str) -> None:
        for sink in sinks:
            sink.write(text)

    return write


def _result_bytes(graph: Graph, configured: clients.Clients) -> int:
    """`max_tool_result_chars` of the agent, else of the application; 0: no limit."""
    own = None if graph.loop is None else graph.loop.max_tool_result_chars
    return configured.max_tool_result_chars if own is None else own
