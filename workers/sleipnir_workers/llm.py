"""The llm node: one prompt to a model in a fresh context, with retries, a timeout and structured output.

Rules (spec 2.7.1, 2.9). Every failure is a failure of the node, never of the worker: its text is what
state_updates see as {{output}}. The timeout covers all attempts and the extraction of structured output.
A call runs in a thread of its own that is left behind when the visit is lost or the timeout passes;
the provider's answer is then dropped. No key ever appears in an error. Usage counts every call made.

This is the only module that imports litellm, and it does so inside functions: the import takes two seconds.
"""

from __future__ import annotations

import functools
import os
import random
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json, LlmNode
from sleipnir.graph.template import TemplateError, render
from sleipnir.messages import Usage, VisitResult
from sleipnir_workers import structured, typed_state
from sleipnir_workers.host import Host, here
from sleipnir_workers.items import with_own_output
from sleipnir_workers.models import NO_KEY, Endpoint, resolve
from sleipnir_workers.node import Visit, executor

TRANSIENT = re.compile(
    r"timed out|rate limit|(?<!\d)429(?!\d)|connection reset|connection refused|produced no output", re.IGNORECASE
)
"""An error whose text holds one of these is worth another attempt. 429 counts as a number of its own only: ports and
request ids hold those digits too."""

TICK_S = 0.1  # how late we may see that the visit was lost while a call is out
CALL_TIMEOUT_S = 600.0  # of one HTTP call when the node has no timeout; ends calls that were left behind
FIRST_PAUSE_S = 0.25  # before the second attempt; doubles, with jitter
LONGEST_PAUSE_S = 8.0

_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|KEY_ID)$")
_SHORTEST_SECRET = 6  # shorter values are words, and hiding them would hide the message
_ERROR_CHARACTERS = 2_000


@executor("llm")
def run_llm(node: LlmNode, visit: Visit, host: Host | None = None) -> VisitResult:
    """Ask the model. `host` None means this process's. Raises VisitLost, nothing else."""
    host = host or here()
    session = _Session(node, visit, host)
    try:
        text = session.converse()
    except NodeFailed as error:
        return session.failure(f"LLM node failed: {session.clean(str(error))}", error)
    if node.output_schema is None:
        return session.success(text)
    try:
        value = structured.extract(text, node.output_schema, session.extractor, session.notes.append)
    except NodeFailed as error:
        return session.failure(f"LLM node structured-extraction failed: {session.clean(str(error))}", error)
    return session.success(value)


def warm_up() -> None:
    """Import litellm now instead of during the first visit. Starts no thread, so it is safe before a fork."""
    _litellm()


class _Session:
    """One visit's conversation: the deadline, what was spent and what to tell."""

    def __init__(self, node: LlmNode, visit: Visit, host: Host) -> None:
        self._node = node
        self._visit = visit
        self._host = host
        self._deadline: float | None = None
        self._endpoint: Endpoint | None = None
        self.spent = _Spent()
        self.notes: list[str] = []

    def converse(self) -> str:
        """The model's answer to the node's prompt. Raises NodeFailed."""
        self._refuse_tools()
        messages = self._messages()
        model_id = self._model_id()
        self.notes.append(f"llm call: model={model_id} tools=<none>")
        self.spent.model = model_id
        self._endpoint = resolve(model_id, self._host.env, _providers())
        if self._node.max_iterations < 1:
            raise NodeFailed("llm node ended without producing output")
        if self._node.timeout is not None:  # only now: importing litellm is not the model's time
            self._deadline = time.monotonic() + self._node.timeout
        return self._attempts(lambda: self._ask(messages))

    def extractor(self, system: str, user: str) -> str:
        """One call of the extractor role, on the same model. Raises NodeFailed."""
        try:
            return self._ask(_chat(system, user))
        except _CallFailed as error:
            message = f"Structured-output extractor LLM call failed: {error}"
            raise NodeFailed(message, "structured", transient=error.transient) from error

    def success(self, value: Json) -> VisitResult:
        merged = value if self._node.output_schema is not None and isinstance(value, dict) else {}
        delta = {**merged, **self._updates(merged, value)}
        return VisitResult(
            ok=True,
            delta=with_own_output(self._visit, delta, value),
            usage=self.spent.usage(),
            notes=tuple(self.notes),
        )

    def failure(self, message: str, error: NodeFailed) -> VisitResult:
        return VisitResult(
            ok=False,
            delta=self._updates({}, message),
            error=message,
            error_kind=error.kind,
            transient=error.transient,
            usage=self.spent.usage(),
            notes=tuple(self.notes),
        )

    def clean(self, text: str) -> str:
        """`text` without any secret of this worker's environment."""
        secrets = {value for name, value in self._host.env.items() if _SECRET_NAME.search(name.upper())}
        if self._endpoint is not None and self._endpoint.api_key not in (None, NO_KEY):
            secrets.add(str(self._endpoint.api_key))
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[redacted]")
        return text

    def _updates(self, merged: Mapping[str, Json], output: Json) -> dict[str, Json]:
        return typed_state.updates(self._visit, merged, value=output)

    def _refuse_tools(self) -> None:
        if self._node.tools:
            raise NodeFailed(
                f"llm node '{self._node.id}' lists tools ({', '.join(self._node.tools)}), but this version of "
                f"Sleipnir runs llm nodes without tools only; remove `tools:` or use a script node",
                "tools",
            )

    def _messages(self) -> list[dict[str, str]]:
        instructions = self._rendered("instructions", self._node.instructions or "")
        prompt = self._rendered("prompt", self._node.prompt)
        if self._node.output_schema is None:
            return _chat(instructions, prompt)
        if instructions:
            return _chat(structured.with_hint(instructions, self._node.output_schema), prompt)
        return _chat(instructions, structured.with_hint(prompt, self._node.output_schema))

    def _rendered(self, what: str, template: str) -> str:
        try:
            return render(template, self._visit.state)
        except TemplateError as error:
            raise NodeFailed(f"Failed to interpolate llm node {what}: {error}", "template") from error

    def _model_id(self) -> str:
        model = self._node.model or self._visit.graph.model or self._host.settings.model
        if model is None:
            raise NodeFailed(
                "no model: name one as `model: client:model` on the node or the graph, "
                "or set SLEIPNIR_MODEL on the llm workers",
                "model",
            )
        return model

    def _attempts(self, ask: Callable[[], str]) -> str:
        """Call `ask` up to max_attempts times, while its errors are transient."""
        for attempt in range(1, self._node.max_attempts + 1):
            try:
                return ask()
            except _CallFailed as error:
                if not error.transient or attempt == self._node.max_attempts:
                    raise NodeFailed(str(error), error.kind, transient=error.transient) from error
                self._pause(attempt)
        raise NodeFailed("llm node exhausted retries")

    def _pause(self, attempt: int) -> None:
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        if self._visit.lost.wait(min(pause, self._remaining())):
            self._visit.check()
        self._check_deadline()

    def _ask(self, messages: list[dict[str, str]]) -> str:
        """One call. Raises _CallFailed for what the provider did, NodeFailed at the node's timeout, VisitLost."""
        assert self._endpoint is not None
        self._check_deadline()
        self.spent.calls += 1
        call = _Call(self._arguments(self._endpoint, messages))
        while not call.ended.wait(min(TICK_S, self._remaining())):
            self._visit.check()
            self._check_deadline()
        self._visit.check()
        if call.error is not None:
            # A provider's own timeout that struck together with ours is ours.
            self._check_deadline()
            raise _CallFailed.from_error(call.error, self.clean)
        self.spent.add(call.response)
        return _text_of(call.response)

    def _arguments(self, endpoint: Endpoint, messages: list[dict[str, str]]) -> dict[str, Any]:
        graph = self._visit.graph
        arguments: dict[str, Any] = {
            "model": endpoint.model,
            "messages": messages,
            "api_base": endpoint.api_base,
            "api_key": endpoint.api_key,
            "temperature": graph.temperature if self._node.temperature is None else self._node.temperature,
            "top_p": graph.top_p if self._node.top_p is None else self._node.top_p,
            # A little more than ours, so that it is our timeout that is reported.
            "timeout": min(CALL_TIMEOUT_S, self._remaining() + 1.0),
            # Hidden retries would be uncounted attempts.
            "max_retries": 0,
            "num_retries": 0,
        }
        return {name: value for name, value in arguments.items() if value is not None}

    def _remaining(self) -> float:
        return CALL_TIMEOUT_S if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise NodeFailed(f"llm node timed out after {self._node.timeout}s", "timeout")


class _Call:
    """One blocking litellm call in a thread that may be left behind: `ended` is set once there is an outcome."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.ended = threading.Event()
        self.response: Any = None
        self.error: BaseException | None = None
        self._arguments = arguments
        # Daemon: a call that was left behind must not keep the worker from stopping.
        threading.Thread(target=self._run, name="llm-call", daemon=True).start()

    def _run(self) -> None:
        try:
            self.response = _litellm().completion(**self._arguments)
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()


class _CallFailed(Exception):
    """A call that the provider, or the way to it, failed."""

    def __init__(self, message: str, *, transient: bool, kind: str) -> None:
        super().__init__(message)
        self.transient = transient
        self.kind = kind

    @classmethod
    def from_error(cls, error: BaseException, clean: Callable[[str], str]) -> _CallFailed:
        chain = _chain(error)
        message = str(error) or type(error).__name__
        if isinstance(chain[-1], OSError):  # litellm's "Connection error." does not say what went wrong
            message = f"{message} ({chain[-1]})"
        status = getattr(error, "status_code", None)
        text = " ".join([*map(str, chain), str(status)])
        kind = "rate_limit" if status == 429 else "model_call"
        return cls(clean(message)[:_ERROR_CHARACTERS], transient=TRANSIENT.search(text) is not None, kind=kind)


@dataclass
class _Spent:
    """What the calls of a visit cost so far. `cost_usd` is None once an answer's price was unknown."""

    model: str | None = None
    calls: int = 0
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = field(default=0.0)

    def add(self, response: Any) -> None:
        used = getattr(response, "usage", None)
        self.answers += 1
        self.input_tokens += getattr(used, "prompt_tokens", None) or 0
        self.output_tokens += getattr(used, "completion_tokens", None) or 0
        price = _price_of(response)
        self.cost_usd = None if price is None or self.cost_usd is None else self.cost_usd + price

    def usage(self) -> Usage | None:
        """None if no call was made."""
        if not self.calls:
            return None
        cost = self.cost_usd if self.answers else None
        return Usage(self.input_tokens, self.output_tokens, self.calls, self.model, cost)


def _price_of(response: Any) -> float | None:
    try:
        return float(_litellm().completion_cost(completion_response=response))
    except Exception:  # litellm raises several types, one of them plain Exception, for a model it has no price of
        return None


def _chat(system: str, user: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": user}]


def _text_of(response: Any) -> str:
    if not response.choices:
        raise _CallFailed("the model's reply holds no choices", transient=False, kind="model_call")
    text = response.choices[0].message.content or ""
    # Half of a surrogate pair, sent as a JSON escape, could not be stored.
    return str(text).encode("utf-8", "replace").decode()


def _chain(error: BaseException) -> list[BaseException]:
    """An error and everything that led to it, outermost first."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 10:
        chain.append(before)
    return chain


@functools.cache
def _providers() -> frozenset[str]:
    return frozenset(str(getattr(item, "value", item)) for item in _litellm().provider_list)


@functools.cache
def _litellm() -> Any:
    # Before the import: litellm would fetch its price map from the internet while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise NodeFailed(f"llm nodes need litellm ({error}); install sleipnir[llm] on this worker", "model") from error
    # A remark of pydantic about one of litellm's own types, on the first call of every process.
    warnings.filterwarnings("ignore", message="Item 'summary' on TypedDict class", category=UserWarning)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm
