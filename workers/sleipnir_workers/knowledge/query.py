"""Ask a base with the models that it was made with: its embedding model for the question, its reranker for the hits.

Rules (spec 2.7.6, 8.6). All of it must be done within the time the caller has. What the calls cost is counted as soon
as they are answered, whatever comes after. A base without an embedding model is asked by keywords, and asks nobody. Of
a visit that its reranker puts off, this process remembers the question's vectors: if the visit comes back to it, they
are not asked for again.
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
from sleipnir_workers.execution import ModelPermits
from sleipnir_workers.host import Host
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.embedder import open_embedder
from sleipnir_workers.knowledge.reranker import Reranker
from sleipnir_workers.knowledge.search import Rerank, SearchResult, search
from sleipnir_workers.llm.permits import PutOff
from sleipnir_workers.llm.resolved_model import resolve_model
from sleipnir_workers.llm.transport import TICK_S
from sleipnir_workers.llm.usage import UsageTotal

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors

MOST_KEPT: Final = 256

_Embedding: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Who asks which model for the vectors of which texts."""

_kept: OrderedDict[_Embedding, Vectors] = OrderedDict()
"""What those who were put off have been answered already."""
_kept_lock = threading.Lock()


class BaseQuery:
    """One question's way through the models. `caller` names who stands in the line of a limit, and `waits` says whether
    it waits there; `tick` is called while we wait, and what it raises ends the waiting. What it takes is in `spent`."""

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
        """Raises NodeFailed (`timeout`, `model`, `config`), PutOff where it does not wait, UnusableIndex, and what
        `tick` raises."""
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
        """Raises NodeFailed (`timeout`) when the time is over, and what `tick` raises."""
        self._outer_tick()
        if time.monotonic() >= self._until_s:
            raise NodeFailed("the time is over", "timeout")

    def _embedded(self, artefact: Artefact, texts: Sequence[str]) -> Vectors:
        recipe = artefact.info.recipe
        assert recipe.embedding_model is not None
        which = (self._caller, recipe.embedding_model, tuple(texts))
        with _kept_lock:
            vectors = _kept.pop(which, None)
        if vectors is None:
            vectors = self._asked_for(artefact, texts, recipe.embedding_model)
        self._embedding = which, vectors
        return vectors

    def _asked_for(self, artefact: Artefact, texts: Sequence[str], model: str) -> Vectors:
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
            if done:  # what its pieces have taken so far
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
        """Counts it, unless nothing was asked yet when it was put off."""
        self._spent.model = self._spent.model or model
        self._spent.calls += 1
        answers = self._spent.answers
        try:
            yield
        except PutOff:
            if self._spent.answers == answers:
                self._spent.calls -= 1
            raise


def _keep(which: _Embedding, vectors: Vectors) -> None:
    with _kept_lock:
        _kept[which] = vectors
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
