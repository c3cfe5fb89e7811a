"""Permits for calls of models, under the limits of the deployment (docs/limits.md).

Rules. A call takes a permit before it starts, and releases it with the tokens that it used; the heartbeat renews the
permits of this process. A refused caller is put off: a visit waits for a timer and occupies no worker; a builder of
knowledge bases waits in place. Models without limits need no request to Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.models.limits import GrantedPermit, Limit, LimitReached, ModelLimits, load
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.execution.execution import ProcessLost
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.permit import Permit


class Permits:
    """The permits of this process."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._held: set[GrantedPermit] = set()
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Renew the permits in use, at each heartbeat. A call whose permit has lapsed continues."""
        with self._lock:
            held = set(self._held)
        if lost := self._store.limiter.renew(held) if held else set():
            structlog.get_logger().warning("slots of model limits lapsed", holders=sorted(lost))

    @cached_property
    def limits(self) -> ModelLimits:
        """Read once per process. Raises ConfigError."""
        return load(self._settings)[0]

    @contextmanager
    def call(self, caller: str, attempt: int | str, names: Sequence[str], tokens: int) -> Iterator[Permit]:
        """Hold a permit during one call of a model with these `names`, which takes about `tokens`. `caller` keeps its
        place when it is put off: a visit or a part of one, without the attempt. Raises PutOff, ConfigError and
        ProcessLost."""
        limits = self.limits.matching(*names)
        if not limits:
            yield Permit()
            return
        with self._held_in(limits, caller, attempt, tokens) as permit:
            yield permit

    @contextmanager
    def tool(self, caller: str, attempt: int | str, name: str) -> Iterator[None]:
        """Hold a permit during one call of a tool. Raises as `call` does."""
        limits = self.limits.of_tool(name)
        if not limits:
            yield
            return
        with self._held_in(limits, caller, attempt, 0):
            yield

    @contextmanager
    def _held_in(self, limits: tuple[Limit, ...], caller: str, attempt: int | str, tokens: int) -> Iterator[Permit]:
        try:
            with self._store.errors():
                granted = self._store.limiter.take(limits, f"{caller}/{attempt}", tokens, caller=caller)
        except StoreUnavailable as error:
            raise ProcessLost("Redis cannot be asked whether the call may be made") from error
        if isinstance(granted, LimitReached):
            raise PutOff(granted.retry_at_ms, granted.reason)
        permit = Permit()
        with self._lock:
            self._held.add(granted)
        try:
            yield permit
        except CallFailed as error:
            if error.kind == "rate_limit" and error.retry_after_s is not None:
                self._try(partial(self._store.limiter.cool_down, limits, int(error.retry_after_s * 1000)))
            raise
        finally:
            with self._lock:
                self._held.discard(granted)
            self._try(partial(self._store.limiter.release, granted, permit.tokens))

    def _try(self, update: Callable[[], object]) -> None:
        """Without Redis the permit lapses by itself."""
        try:
            with self._store.errors():
                update()
        except StoreUnavailable as error:
            structlog.get_logger().warning("a model limit cannot be updated", error=str(error))
