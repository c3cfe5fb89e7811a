"""Whether a model may be called now: the limits of the whole deployment (docs/limits.md).

Rules. A call takes a permit before it is made, and gives it back with the tokens that it used; the heartbeat renews
those of this process. Who is refused is put off: a visit goes back to a timer, in the middle of nothing, and holds no
slot of a worker; a builder of knowledge bases waits. Models without limits cost nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.models.limits import GrantedPermit, LimitReached, ModelLimits, estimated_tokens, load
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.execution import ProcessLost
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import Message

ANSWER_TOKENS = 1_000  # what an answer is taken to need where the model's longest is not known


class PutOff(Exception):
    """The call may not be made before `until_ms`, by Redis' clock. The text says which limit it met."""

    def __init__(self, until_ms: int, reason: str) -> None:
        super().__init__(reason)
        self.until_ms = until_ms


class Permits:
    """Those of this process."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._held: set[GrantedPermit] = set()
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Keep what is held; with each heartbeat. A call whose permit is lost goes on: it is out already."""
        with self._lock:
            held = set(self._held)
        if lost := self._store.limiter.renew(held) if held else set():
            structlog.get_logger().warning("slots of model limits lapsed", holders=sorted(lost))

    @cached_property
    def limits(self) -> ModelLimits:
        """Read once in the life of a process. Raises ConfigError."""
        return load(self._settings)[0]

    @contextmanager
    def call(self, caller: str, attempt: int | str, names: Sequence[str], tokens: int) -> Iterator[Permit]:
        """Around one call of a model with these `names`, which may take so many `tokens`. `caller` is who comes back
        when it is put off: a visit, or a part of one, without the attempt. Raises PutOff, ConfigError, ProcessLost."""
        found = self.limits.matching(*names)
        if not found:
            yield Permit()
            return
        try:
            with self._store.errors():
                granted = self._store.limiter.take(found, f"{caller}/{attempt}", tokens, caller=caller)
        except StoreUnavailable as error:
            raise ProcessLost("Redis cannot be asked whether the model may be called") from error
        if isinstance(granted, LimitReached):
            raise PutOff(granted.retry_at_ms, granted.reason)
        permit = Permit()
        with self._lock:
            self._held.add(granted)
        try:
            yield permit
        except CallFailed as error:
            if error.kind == "rate_limit" and error.retry_after_s is not None:
                self._tell(partial(self._store.limiter.cool_down, found, int(error.retry_after_s * 1000)))
            raise
        finally:
            with self._lock:
                self._held.discard(granted)
            self._tell(partial(self._store.limiter.release, granted, permit.tokens))

    def _tell(self, tell: Callable[[], object]) -> None:
        """Redis may be away: then the lease lapses."""
        try:
            with self._store.errors():
                tell()
        except StoreUnavailable as error:
            structlog.get_logger().warning("a limit of a model cannot be told", error=str(error))


class Permit:
    """What one call used. `tokens` None: nobody knows."""

    tokens: int | None = None


def names_of(model: str, endpoint: Endpoint) -> tuple[str, str]:
    """The names by which limits.yaml may mean a model: its id, and the name of its provider with the provider's own."""
    return model, endpoint.model.replace("/", ":", 1)


def tokens_of_chat(endpoint: Endpoint, messages: Sequence[Message]) -> int:
    """What a question and its answer may take, by an estimate."""
    characters = sum(len(text) for message in messages if isinstance(text := message.get("content"), str))
    return estimated_tokens(characters, endpoint.traits.max_output_tokens or ANSWER_TOKENS)
