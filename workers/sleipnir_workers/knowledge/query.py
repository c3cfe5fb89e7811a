"""Search a base with the models that it was made with: its embedding model for the question, its reranker for the hits.

Rules (spec 2.7.6, 8.6). All calls together must end within the caller's timeout. The cost of a call is counted as soon
as it is answered, even if a later call fails. A base without an embedding model is searched by keywords, without a
call. If the reranker puts a visit off, this process keeps the question's vectors, so that they are not requested again
when the visit returns to it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from sleipnir.errors import NodeFailed
from sleipnir.knowledge.order import SearchQuery
from sleipnir_workers.execution.execution import ModelPermits
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.embedder import open_embedder
from sleipnir_workers.knowledge.reranker import Reranker
from sleipnir_workers.knowledge.search import Rerank, SearchResult, search
from sleipnir_workers.llm.resolved_model import resolve_model
from sleipnir_workers.llm.transport import TICK_S
from sleipnir_workers.llm.usage import UsageTotal
from sleipnir_workers.machine.host import Host

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors

MOST_KEPT: Final = 256

_Embedding: TypeAlias = tuple[str, str, tuple[str, ...]]
"""The caller, the model and the texts of a request for vectors."""

_kept: OrderedDict[_Embedding, Vectors] = OrderedDict()
"""The vectors of visits that were put off."""
_kept_lock = threading.Lock()


class BaseQuery:
    """The model calls of one question. `caller` identifies them in the queue of a limit, and `waits` says whether they
    wait there. `tick` is called while they wait; an error that it raises ends the waiting. `spent` gets their cost."""

    def __init__(
        self,
        host: Host,
        *,
        timeout_s: float,
        spent: UsageTotal | None = None,
        permits: ModelPermits | None = None,
        caller: str = "",
        waits: bool = True,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._host, self._permits, self._caller, self._waits = host, permits, caller, waits
        self._until_s, self._outer_tick = time.monotonic() + timeout_s, tick
        self._spent = spent or UsageTotal()
        self._embedding: tuple[_Embedding, Vectors] | None = None

    def search(self, artefact: Artefact, question: SearchQuery) -> SearchResult:
        """Raises NodeFailed (`timeout`, `model`, `config`), PutOff if it does not wait, UnusableIndex, and errors of
        `tick`."""
        recipe = artefact.info.recipe
        by_vector = recipe.embedding_model is not None and artefact.info.dimensions is not None
        try:
            return search(
                artefact,
                question,
                (lambda texts: self._embedded(artefact, texts)) if by_vector else None,
                self._reranked(recipe.reranker_model) if recipe.reranker_model is not None else None,
            )
        except PutOff:
            if self._embedding is not None:
                _keep(*self._embedding)
            raise

    def check(self) -> None:
        """Raises NodeFailed (`timeout`) after the timeout, and errors of `tick`."""
        self._outer_tick()
        if time.monotonic() >= self._until_s:
            raise NodeFailed("timed out", "timeout")

    def _embedded(self, artefact: Artefact, texts: Sequence[str]) -> Vectors:
        recipe = artefact.info.recipe
        assert recipe.embedding_model is not None
        key = (self._caller, recipe.embedding_model, tuple(texts))
        with _kept_lock:
            vectors = _kept.pop(key, None)
        if vectors is None:
            vectors = self._requested(artefact, texts, recipe.embedding_model)
        self._embedding = key, vectors
        return vectors

    def _requested(self, artefact: Artefact, texts: Sequence[str], model: str) -> Vectors:
        recipe = artefact.info.recipe
        embedder = open_embedder(
            self._host,
            model,
            chunk_size=recipe.chunk_size,
            batch_size=recipe.batch_size,
            permits=self._permits,
            caller=f"{self._caller}/embed",
            waits=self._waits,
        )

        def count(done: int, _: int, tokens: int, cost_usd: float | None) -> None:
            if done:  # the cost of its pieces so far
                self._spent.answers, self._spent.input_tokens, self._spent.cost_usd = 1, tokens, cost_usd

        with self._one_call(model):
            return embedder.embed(texts, "query", progress=count, tick=self.check)[0]

    def _reranked(self, model: str) -> Rerank:
        reranker = Reranker(resolve_model(model, self._host, "reranker"), permits=self._permits, caller=self._caller)

        def ask(query: str, texts: list[str], count: int) -> list[int]:
            while True:
                try:
                    with self._one_call(model):
                        answer = reranker.order(query, texts, count, tick=self.check)
                except PutOff as later:
                    if not self._waits:
                        raise
                    self._wait_until(later.until_ms / 1000)
                else:
                    self._spent.count(answer.tokens, 0, answer.cost_usd)
                    return list(answer.order)

        return ask

    def _wait_until(self, time_s: float) -> None:
        pause = threading.Event()
        while (left_s := time_s - time.time()) > 0:
            self.check()
            pause.wait(min(TICK_S, left_s))

    @contextmanager
    def _one_call(self, model: str) -> Iterator[None]:
        """Count the call, unless it was put off before any request."""
        self._spent.model = self._spent.model or model
        self._spent.calls += 1
        answers = self._spent.answers
        try:
            yield
        except PutOff:
            if self._spent.answers == answers:
                self._spent.calls -= 1
            raise


def _keep(key: _Embedding, vectors: Vectors) -> None:
    with _kept_lock:
        _kept[key] = vectors
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
