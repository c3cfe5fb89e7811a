"""Ask a base with the models that it was made with: its embedding model for the question, its reranker for the hits.

Rules (spec 2.7.6, 8.6). All of it must be done within the time the caller has. What the calls cost is counted. A base
without an embedding model is asked by keywords, and asks nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sleipnir.errors import NodeFailed
from sleipnir.knowledge.order import Question
from sleipnir.messages import Usage
from sleipnir_workers.host import Host
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.embedder import TICK_S, open_embedder
from sleipnir_workers.knowledge.reranker import Reranker
from sleipnir_workers.knowledge.search import Found, Rerank, search
from sleipnir_workers.llm.permits import Permits, PutOff
from sleipnir_workers.llm.reach import reach

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors


class Asking:
    """One question's way through the models. `caller` names who stands in the line of a limit, and `waits` says whether
    it waits there; `tick` is called while we wait, and what it raises ends the waiting."""

    def __init__(
        self,
        host: Host,
        *,
        timeout_s: float,
        permits: Permits | None = None,
        caller: str = "",
        waits: bool = True,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._host, self._permits, self._caller, self._waits = host, permits, caller, waits
        self._until_s, self._outer_tick = time.monotonic() + timeout_s, tick
        self._calls = self._tokens = 0
        self._cost_usd: float | None = 0.0
        self._model: str | None = None

    def search(self, artefact: Artefact, question: Question) -> Found:
        """Raises NodeFailed (`timeout`, `model`, `config`), PutOff where it does not wait, UnusableIndex, and what
        `tick` raises."""
        recipe = artefact.info.recipe
        by_vector = recipe.embedding_model is not None and artefact.info.dimensions is not None
        return search(
            artefact,
            question,
            (lambda texts: self._embedded(artefact, texts)) if by_vector else None,
            self._reranked(recipe.reranker_model) if recipe.reranker_model is not None else None,
        )

    def usage(self) -> Usage | None:
        """What it took; None if nobody was asked."""
        return Usage(self._tokens, 0, self._calls, self._model, self._cost_usd) if self._calls else None

    def _embedded(self, artefact: Artefact, texts: Sequence[str]) -> Vectors:
        recipe = artefact.info.recipe
        assert recipe.embedding_model is not None
        embedder = open_embedder(
            self._host,
            recipe.embedding_model,
            chunk_size=recipe.chunk_size,
            batch_size=recipe.batch_size,
            permits=self._permits,
            caller=f"{self._caller}/embed",
            waits=self._waits,
        )
        vectors, spent = embedder.embed(texts, "query", tick=self._tick)
        self._count(recipe.embedding_model, spent.tokens, spent.cost_usd)
        return vectors

    def _reranked(self, model: str) -> Rerank:
        reranker = Reranker(reach(model, self._host, "reranker"), permits=self._permits, caller=self._caller)

        def ask(query: str, texts: list[str], count: int) -> list[int]:
            while True:
                try:
                    answer = reranker.order(query, texts, count, tick=self._tick)
                except PutOff as later:
                    if not self._waits:
                        raise
                    self._wait_until(later.until_ms / 1000)
                else:
                    self._count(model, answer.tokens, answer.cost_usd)
                    return list(answer.order)

        return ask

    def _wait_until(self, time_s: float) -> None:
        pause = threading.Event()
        while (left_s := time_s - time.time()) > 0:
            self._tick()
            pause.wait(min(TICK_S, left_s))

    def _tick(self) -> None:
        """Raises NodeFailed (`timeout`) when the time is over."""
        self._outer_tick()
        if time.monotonic() >= self._until_s:
            raise NodeFailed("the time is over", "timeout")

    def _count(self, model: str, tokens: int, cost_usd: float | None) -> None:
        self._calls, self._tokens, self._model = self._calls + 1, self._tokens + tokens, self._model or model
        known = cost_usd is not None and self._cost_usd is not None
        self._cost_usd = (self._cost_usd or 0.0) + (cost_usd or 0.0) if known else None
