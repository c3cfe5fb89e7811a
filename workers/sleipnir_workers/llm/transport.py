"""How a model is called, whether for chat, embedding or reranking: over plain HTTP or through litellm, in a thread.

Rules. An endpoint that speaks a protocol of ours is called over plain HTTP; litellm translates for all others. A call
runs in a daemon thread. A caller that stops waiting abandons it: its answer is dropped.
"""

from __future__ import annotations

import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import NO_KEY, Endpoint

if TYPE_CHECKING:
    from sleipnir_workers.llm.json_http import Address

OPENAI_BASE = "https://api.openai.com/v1"
COHERE_BASE = "https://api.cohere.com/v2"
TICK_S = 0.25  # the longest time until a waiting caller notices that it should stop; shorter costs a tenth of the CPU

Operation: TypeAlias = Literal["chat", "embeddings", "rerank"]

T = TypeVar("T")


def is_direct(endpoint: Endpoint, operation: Operation) -> bool:
    """Whether the endpoint is called over plain HTTP; else through litellm."""
    return endpoint.speaks_openai or (operation == "rerank" and endpoint.model.startswith("cohere/"))


def openai_base(endpoint: Endpoint, default: str | None = None) -> str:
    """The base URL of an endpoint that speaks OpenAI's protocol."""
    return endpoint.api_base or default or os.environ.get("OPENAI_BASE_URL") or OPENAI_BASE


def openai_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of a request in OpenAI's protocol: the organization, and those of config.yaml."""
    organization = endpoint.options.get("organization") or os.environ.get("OPENAI_ORGANIZATION")
    headers = {"OpenAI-Organization": organization} if organization else {}
    return headers | dict(endpoint.traits.patch_headers)


def address_of(endpoint: Endpoint, url: str, *, headers: Mapping[str, str], timeout_s: float) -> Address:
    """Where a request to the endpoint is sent, with its key."""
    from sleipnir_workers.llm.json_http import Address, trusted  # lazy: workers without models have no urllib3

    key, tls = endpoint.api_key or NO_KEY, trusted(os.environ)
    return Address(url, key, headers=headers, timeout_s=timeout_s, tls=tls)


def start_thread(run: Callable[[], None], name: str) -> None:
    """Start a daemon thread, so that an abandoned call does not keep the process from stopping. It has the context of
    the visit, which logs and spans read."""
    threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()


class DetachedCall(Generic[T]):
    """`call` in a thread of its own, started at once. It passes its result to its argument, and may run on after that:
    what follows delays no caller."""

    def __init__(self, call: Callable[[Callable[[T], None]], None], name: str) -> None:
        self._call = call
        self._outcomes: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()
        start_thread(self._run, name)

    def result(self, tick: Callable[[], None], timeout_s: float = float("inf")) -> T:
        """The result of `call`. Raises what it raises, and CallFailed (`timeout`) after `timeout_s`.

        `tick` runs at least every TICK_S during the wait; what it raises ends the wait.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            tick()
            try:
                outcome = self._outcomes.get(timeout=max(0.0, min(TICK_S, deadline - time.monotonic())))
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                message = f"the model call timed out after {timeout_s:g}s"
                raise CallFailed(message, transient=True, kind="timeout") from None
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def _run(self) -> None:
        try:
            self._call(self._outcomes.put)
        except BaseException as error:
            self._outcomes.put(error)
