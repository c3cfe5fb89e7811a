"""A model ranks the chunks that were found by how well they answer the question (spec 8.6).

Rules. One call without retries: it takes a permit, a visit that reaches a limit is put off, and a lost visit stops
waiting. Every failure is `Failed to rerank` with its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.models.limits import estimated_tokens
from sleipnir_workers.execution.execution import CallTokens, ModelPermits
from sleipnir_workers.llm import reranking
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.permit import Permit, names_of
from sleipnir_workers.llm.reranking import RerankedTexts
from sleipnir_workers.llm.resolved_model import ResolvedModel
from sleipnir_workers.llm.spans import set_usage, span_of
from sleipnir_workers.llm.transport import DetachedCall


class Reranker:
    """Asks one model (`resolve_model(model_id, host, "reranker")`). `caller` identifies it in the queue of a limit."""

    def __init__(
        self,
        model: ResolvedModel,
        *,
        permits: ModelPermits | None = None,
        caller: str = "",
        attempt: int = 1,
        timeout_s: float = reranking.CALL_TIMEOUT_S,
    ) -> None:
        self._model, self._permits = model, permits
        self._caller, self._attempt, self._timeout_s = caller, attempt, timeout_s

    def order(
        self, query: str, texts: Sequence[str], top_n: int, tick: Callable[[], None] = lambda: None
    ) -> RerankedTexts:
        """The best `top_n` of the texts, the best first. `tick` is called at least every TICK_S during the call; an
        error that it raises ends the waiting. Raises NodeFailed, PutOff, and ProcessLost without Redis."""
        if not texts:
            return RerankedTexts(())
        call = DetachedCall[RerankedTexts](lambda deliver: deliver(self._ask(query, texts, top_n)), "reranking")
        return call.result(tick)

    def _ask(self, query: str, texts: Sequence[str], top_n: int) -> RerankedTexts:
        try:
            with (
                self._permit(query, texts) as permit,
                span_of("rerank", self._model.id, self._model.endpoint) as span,
            ):
                reranked = reranking.rerank(
                    self._model.endpoint,
                    query,
                    texts,
                    top_n=top_n,
                    timeout_s=self._timeout_s,
                    clean=self._model.clean,
                )
                set_usage(span, reranked.tokens)
                permit.tokens = reranked.tokens or None
                return reranked
        except CallFailed as error:
            raise NodeFailed(str(error), error.kind, transient=error.transient) from error
        except ConfigError as error:
            raise NodeFailed(str(error), "config") from error

    def _permit(self, query: str, texts: Sequence[str]) -> AbstractContextManager[CallTokens]:
        if self._permits is None:
            return nullcontext(Permit())
        tokens = estimated_tokens(len(query) + sum(map(len, texts)), 0)
        names = names_of(self._model.id, self._model.endpoint)
        return self._permits.call(f"{self._caller}/rerank", self._attempt, names, tokens)
