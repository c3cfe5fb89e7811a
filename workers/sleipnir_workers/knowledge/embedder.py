"""The vectors of many texts, or of a question: in batches, a few at once, each text requested once (spec 8.5).

Rules.
1. Cached vectors are not requested; the vectors of a batch are in the cache before it counts as done.
2. All vectors of a base have the same dimensions, and each has a finite length above zero.
3. Transient failures are retried up to LOKI_EMBEDDINGS_RETRY_LIMIT times; all waits end when the caller stops.
4. A call takes a permit. A builder that is put off waits; a visit is put off itself (PutOff).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from sleipnir.agents.config_directory import variable
from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.knowledge.views import EmbeddingUsage
from sleipnir.models.limits import estimated_tokens
from sleipnir_workers.execution.execution import CallTokens, ModelPermits
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache, keys_of
from sleipnir_workers.llm import embedding, prices
from sleipnir_workers.llm.embedding import EmbeddedTexts, Purpose
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.permit import Permit, names_of
from sleipnir_workers.llm.resolved_model import ResolvedModel, resolve_model
from sleipnir_workers.llm.spans import set_usage, span_of
from sleipnir_workers.llm.transport import TICK_S, start_thread
from sleipnir_workers.machine.host import Host

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors

RETRY_VARIABLE: Final = "EMBEDDINGS_RETRY_LIMIT"
ATTEMPTS: Final = 2
IN_FLIGHT: Final = 4
FIRST_PAUSE_S: Final = 1.0  # before the second attempt; doubles
LONGEST_ASKED_S: Final = 300.0  # if a provider asks for a longer pause, the retry is made earlier
GRACE_S: Final = 10.0  # for running calls when another one failed: their answers are paid for
_SHOWN_CHARACTERS: Final = 60
_KEYS_PER_LOOKUP: Final = 1_000

Progress: TypeAlias = Callable[[int, int, int, "float | None"], None]
"""Gets the number of texts done, the total, and the tokens and USD so far (None: the price is unknown)."""
Pause: TypeAlias = Callable[[threading.Event, float], bool]


@dataclass(frozen=True)
class Estimate:
    """The cost of an `embed` of these texts: the number of `unknown` texts, which are sent, their estimated tokens, and
    USD (None: the price is unknown)."""

    unknown: int
    tokens: int
    cost_usd: float | None


@dataclass(frozen=True)
class _EmbeddingRequest:
    number: int
    keys: Sequence[bytes]
    texts: Sequence[str]


class _Stopped(Exception):
    """The caller does not wait for the batch any more."""


def open_embedder(
    host: Host,
    model_id: str,
    *,
    chunk_size: int,
    batch_size: int | None = None,
    cache: EmbeddingCache | None = None,
    permits: ModelPermits | None = None,
    caller: str = "",
    waits: bool = True,
) -> Embedder:
    """The embedder of the model with this id, as configured in this process. Raises NodeFailed (`model`, `config`)."""
    return Embedder(
        resolve_model(model_id, host, "embedding"),
        chunk_size=chunk_size,
        batch_size=batch_size,
        cache=cache,
        permits=permits,
        caller=caller,
        waits=waits,
        attempts=attempts_in(host.env),
    )


def attempts_in(env: Mapping[str, str]) -> int:
    """The maximum of attempts per batch. Raises NodeFailed (`config`)."""
    text = variable(env, RETRY_VARIABLE) or str(ATTEMPTS)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise NodeFailed(f"LOKI_{RETRY_VARIABLE}={text!r}: it must be a whole number from 1", "config")
    return int(text)


def batch_size_of(endpoint: Endpoint, chunk_size: int, configured: int | None) -> int:
    """The number of chunks per call (spec 8.5). `configured` is the base's own batch size."""
    size, tokens = configured or endpoint.traits.max_batch_size, embedding.max_input_tokens(endpoint)
    if tokens is not None:
        fitting = tokens // chunk_size
        size = fitting if size is None else min(fitting, size)
    return max(1, min(size or 1, embedding.most_texts(endpoint)))


class Embedder:
    """Asks one model. `chunk_size` is that of the base, in bytes; `caller` identifies it in the queue of a limit, and
    `waits` says whether it waits there. `pause` waits for the event or the seconds, and returns whether it is set.

    Safe to use from several threads.
    """

    def __init__(
        self,
        model: ResolvedModel,
        *,
        chunk_size: int,
        batch_size: int | None = None,
        cache: EmbeddingCache | None = None,
        permits: ModelPermits | None = None,
        caller: str = "",
        waits: bool = True,
        attempts: int = ATTEMPTS,
        in_flight: int = IN_FLIGHT,
        timeout_s: float = embedding.CALL_TIMEOUT_S,
        pause: Pause = threading.Event.wait,
    ) -> None:
        self.batch_size = batch_size_of(model.endpoint, chunk_size, batch_size)
        self._model, self._cache, self._permits = model, cache, permits
        self._caller, self._waits, self._attempts = caller, waits, attempts
        self._in_flight, self._timeout_s, self._pause = in_flight, timeout_s, pause

    def embed(
        self,
        texts: Sequence[str],
        purpose: Purpose = "document",
        *,
        dimensions: int | None = None,
        progress: Progress = lambda done, total, tokens, cost_usd: None,
        tick: Callable[[], None] = lambda: None,
    ) -> tuple[Vectors, EmbeddingUsage]:
        """A row per text, in their order. `dimensions` are those of an existing base; None: the base is new.
        `tick` is called at least every TICK_S while it waits; an error that it raises ends the waiting.

        Raises NodeFailed for failures of the provider and for unusable vectors, PutOff if the embedder does not wait,
        and ProcessLost when Redis cannot be asked for a permit.
        """
        began_s = time.monotonic()
        work = _PendingTexts(texts, keys_of(self._model.id, embedding.settings(self._model.endpoint, purpose), texts))
        rows = _Rows(self._model.id, len(texts), dimensions)
        self._take_known(work, rows)
        spent = EmbeddingUsage(reused=rows.done)
        if texts:
            progress(rows.done, len(texts), 0, 0.0)
        batches = list(self._batches(work))
        try:
            with closing(self._answers(batches, purpose, tick)) as answers:
                for batch, embedded in answers:
                    for key, vector in zip(batch.keys, embedded.vectors, strict=True):
                        rows.put(work.positions[key], vector)
                    spent = _added(spent, len(batch.texts), embedded)
                    progress(rows.done, len(texts), spent.tokens, spent.cost_usd)
        except _OtherDimensions as error:
            if self._cache is not None:
                self._cache.forget(work.positions)  # some of them are of an earlier model with this id
            raise NodeFailed(str(error), "model") from error
        reused = len(texts) - spent.embedded
        took_s = time.monotonic() - began_s
        return rows.matrix, EmbeddingUsage(spent.embedded, reused, spent.tokens, spent.cost_usd, took_s)

    def estimate(self, texts: Sequence[str], purpose: Purpose = "document") -> Estimate:
        """The cost of `embed`. Asks no model, and writes nothing."""
        keys = keys_of(self._model.id, embedding.settings(self._model.endpoint, purpose), texts)
        known = self._cache.known(keys) if self._cache is not None else set()
        unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        tokens = sum(estimated_tokens(len(text), 0) for text in unknown.values())
        cost_usd = prices.embedding_cost_usd(self._model.endpoint, tokens) if tokens else 0.0
        return Estimate(len(unknown), tokens, cost_usd)

    def _take_known(self, work: _PendingTexts, rows: _Rows) -> None:
        """Fill in the cached vectors. One with other dimensions than the base is of an earlier model with this id."""
        if self._cache is None:
            return
        keys = list(work.positions)
        for start in range(0, len(keys), _KEYS_PER_LOOKUP):
            for key, vector in self._cache.find(keys[start : start + _KEYS_PER_LOOKUP]).items():
                if rows.fits(vector):
                    rows.put(work.positions[key], vector)
                    work.known.add(key)

    def _batches(self, work: _PendingTexts) -> Iterator[_EmbeddingRequest]:
        """The batches of unknown texts, in the order of the texts."""
        keys: list[bytes] = []
        held_bytes = number = 0
        for key in work.unknown():
            size = len(work.text(key).encode(errors="replace"))
            if keys and (len(keys) == self.batch_size or held_bytes + size > embedding.MOST_BYTES):
                yield _EmbeddingRequest(number, keys, [work.text(unknown) for unknown in keys])
                keys, held_bytes, number = [], 0, number + 1
            keys.append(key)
            held_bytes += size
        if keys:
            yield _EmbeddingRequest(number, keys, [work.text(unknown) for unknown in keys])

    def _answers(
        self, batches: Sequence[_EmbeddingRequest], purpose: Purpose, tick: Callable[[], None]
    ) -> Generator[tuple[_EmbeddingRequest, EmbeddedTexts], None, None]:
        """The batches as they are answered, in any order. After a failure no other batch is started."""
        threads = min(self._in_flight, len(batches))
        flight = _RequestThreads(batches, lambda batch, stop: self._ask(batch, purpose, stop), threads)
        failed: BaseException | None = None
        until_s = float("inf")
        try:
            while flight.is_under_way and time.monotonic() < until_s:
                tick()
                outcome = flight.outcome(TICK_S)
                if isinstance(outcome, BaseException):
                    flight.stop.set()
                    if failed is None:
                        failed, until_s = outcome, time.monotonic() + GRACE_S
                elif outcome is not None:
                    yield outcome
        finally:
            flight.stop.set()
        if failed is not None:
            raise failed

    def _ask(self, batch: _EmbeddingRequest, purpose: Purpose, stop: threading.Event) -> EmbeddedTexts:
        """Request and cache the vectors of a batch. Raises NodeFailed, PutOff, ProcessLost and _Stopped."""
        for attempt in range(1, self._attempts + 1):
            try:
                embedded = self._call(batch, purpose, attempt, stop)
            except CallFailed as error:
                again = error.transient or error.status == 408 or (error.status or 0) >= 500
                if not again or attempt == self._attempts:
                    message = f"Failed to create embedding after {attempt} attempts: {error}"
                    raise NodeFailed(message, error.kind, transient=again) from error
                own_s = FIRST_PAUSE_S * 2 ** (attempt - 1)
                self._wait(stop, max(own_s, min(error.retry_after_s or 0.0, LONGEST_ASKED_S)))
                continue
            self._check(batch, embedded)
            if self._cache is not None:
                self._cache.store(dict(zip(batch.keys, embedded.vectors, strict=True)))
            return embedded
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _call(self, batch: _EmbeddingRequest, purpose: Purpose, attempt: int, stop: threading.Event) -> EmbeddedTexts:
        """One call, as soon as the limits allow it. Only the first attempt of a batch is put off: later ones wait here,
        because the number of attempts would be lost."""
        while True:
            try:
                with (
                    self._permit(batch, attempt) as permit,
                    span_of("embeddings", self._model.id, self._model.endpoint) as span,
                ):
                    embedded = embedding.embed(
                        self._model.endpoint,
                        batch.texts,
                        purpose,
                        timeout_s=self._timeout_s,
                        clean=self._model.clean,
                    )
                    set_usage(span, embedded.tokens)
                    permit.tokens = embedded.tokens or None
                    return embedded
            except PutOff as later:
                if not self._waits and attempt == 1:
                    raise
                self._wait(stop, max(0.05, later.until_ms / 1000 - time.time()))
            except ConfigError as error:
                raise NodeFailed(str(error), "config") from error

    def _permit(self, batch: _EmbeddingRequest, attempt: int) -> AbstractContextManager[CallTokens]:
        if self._permits is None:
            return nullcontext(Permit())
        tokens = sum(estimated_tokens(len(text), 0) for text in batch.texts)
        caller = f"{self._caller}/{batch.number}"
        return self._permits.call(caller, attempt, names_of(self._model.id, self._model.endpoint), tokens)

    def _wait(self, stop: threading.Event, seconds: float) -> None:
        if self._pause(stop, seconds):
            raise _Stopped

    def _check(self, batch: _EmbeddingRequest, embedded: EmbeddedTexts) -> None:
        """Raises NodeFailed (`model`) for a vector without a direction."""
        for text, vector in zip(batch.texts, embedded.vectors, strict=True):
            if flaw := _flaw(vector):
                quoted = self._model.clean(text[:_SHOWN_CHARACTERS])
                raise NodeFailed(f"embedding model '{self._model.id}' gave {flaw} for the text {quoted!r}", "model")


class _PendingTexts:
    """Texts and their positions; equal texts share a key. `known` are the keys that are done."""

    def __init__(self, texts: Sequence[str], keys: Sequence[bytes]) -> None:
        self._texts = texts
        self.known: set[bytes] = set()
        self.positions: dict[bytes, list[int]] = {}
        for position, key in enumerate(keys):
            self.positions.setdefault(key, []).append(position)

    def text(self, key: bytes) -> str:
        return self._texts[self.positions[key][0]]

    def unknown(self) -> Iterator[bytes]:
        return (key for key in self.positions if key not in self.known)


class _OtherDimensions(Exception):
    """A vector has other dimensions than those before."""


class _Rows:
    """The matrix while it is filled."""

    def __init__(self, model_id: str, count: int, dimensions: int | None) -> None:
        self._model_id, self._count, self._dimensions = model_id, count, dimensions
        self._matrix: Vectors | None = None
        self.done = 0

    @property
    def matrix(self) -> Vectors:
        return np.empty((0, self._dimensions or 0), np.float32) if self._matrix is None else self._matrix

    def fits(self, vector: bytes) -> bool:
        return self._dimensions in (None, len(vector) // 4)

    def put(self, positions: Sequence[int], vector: bytes) -> None:
        """Raises _OtherDimensions."""
        if not self.fits(vector):
            raise _OtherDimensions(
                f"embedding model '{self._model_id}' gave a vector of {len(vector) // 4} dimensions, but those before "
                f"have {self._dimensions}: the model has changed; rebuild the base with one model"
            )
        if self._matrix is None:
            self._dimensions = len(vector) // 4
            self._matrix = np.empty((self._count, self._dimensions), np.float32)
        self._matrix[positions] = np.frombuffer(vector, "<f4")
        self.done += len(positions)


class _RequestThreads:
    """Requests of batches in several threads, until all are made or `stop` is set."""

    def __init__(
        self,
        batches: Sequence[_EmbeddingRequest],
        ask: Callable[[_EmbeddingRequest, threading.Event], EmbeddedTexts],
        threads: int,
    ) -> None:
        self.stop = threading.Event()
        self._ask = ask
        self._pending = iter(batches)
        self._lock = threading.Lock()
        self._flying = threads
        self._outcomes: queue.SimpleQueue[tuple[_EmbeddingRequest, EmbeddedTexts] | BaseException | None] = (
            queue.SimpleQueue()
        )
        for _ in range(threads):
            start_thread(self._fly, "embedding")

    @property
    def is_under_way(self) -> bool:
        return self._flying > 0

    def outcome(self, wait_s: float) -> tuple[_EmbeddingRequest, EmbeddedTexts] | BaseException | None:
        """The outcome of a batch; None if there is none within `wait_s`."""
        try:
            outcome = self._outcomes.get(timeout=wait_s)
        except queue.Empty:
            return None
        if outcome is None:
            self._flying -= 1
        return outcome

    def _fly(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._outcomes.put((batch, self._ask(batch, self.stop)))
        except BaseException as error:
            self._outcomes.put(error)
        finally:
            self._outcomes.put(None)

    def _next(self) -> _EmbeddingRequest | None:
        with self._lock:
            return None if self.stop.is_set() else next(self._pending, None)


def _flaw(vector: bytes) -> str | None:
    """What is wrong with a vector without a direction; None: nothing."""
    numbers = np.frombuffer(vector, "<f4")
    if not np.isfinite(numbers).all():
        return "a vector with a number that is NaN or infinite"
    return None if numbers.any() else "a vector of zeros"


def _added(spent: EmbeddingUsage, texts: int, embedded: EmbeddedTexts) -> EmbeddingUsage:
    known = spent.cost_usd is not None and embedded.cost_usd is not None
    cost_usd = (spent.cost_usd or 0.0) + (embedded.cost_usd or 0.0) if known else None
    return EmbeddingUsage(spent.embedded + texts, spent.reused, spent.tokens + embedded.tokens, cost_usd)
