"""A reranker as a rag visit asks it: with permits, and not longer than the visit is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.errors import NodeFailed
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.testing import ModelServer, Reply
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.knowledge.reranker import Reranker
from sleipnir_workers.llm.permits import Permits
from sleipnir_workers.llm.reranking import RerankedTexts
from sleipnir_workers.llm.resolved_model import ResolvedModel, resolve_model
from sleipnir_workers.machine.host import Host

TEXTS = ["ferries and taxes", "casting a bell", "bells of bronze are cast here"]
KEY = "sk-the-secret-key"


def model(server: ModelServer, tmp_path: Path) -> ResolvedModel:
    host = Host({"LOKI_CONFIG_DIR": str(tmp_path), **server.env("mine", KEY)}, Settings(home=tmp_path))
    return resolve_model("mine:r", host, "reranker")


def limited(store: Store, tmp_path: Path) -> Permits:
    (tmp_path / "limits.yaml").write_text(json.dumps({"models": {"mine:*": {"max_parallel": 1}}}))
    return Permits(store, Settings(home=tmp_path, limits=tmp_path / "limits.yaml"))


def test_the_best_come_first(tmp_path: Path) -> None:
    with ModelServer() as server:
        reranker = Reranker(model(server, tmp_path))
        assert sorted(reranker.order("casting bells", TEXTS, 2).order) == [1, 2]
        assert reranker.order("casting bells", [], 2) == RerankedTexts(())
    assert len(server.requests) == 1


def test_a_failure_is_one_of_the_node_and_shows_no_key(tmp_path: Path) -> None:
    busy = Reply(status=503, error=f"busy {KEY}", retry_after=1)
    with ModelServer(reranks=[busy]) as server, pytest.raises(NodeFailed) as caught:
        Reranker(model(server, tmp_path)).order("bells", TEXTS, 2)
    assert str(caught.value) == "Failed to rerank: the provider answered 503 Service Unavailable: busy [redacted]"
    assert (caught.value.transient, len(server.requests)) == (True, 1)


def test_a_lost_visit_does_not_wait_for_the_reranker(tmp_path: Path) -> None:
    class Lost(BaseException):
        pass

    with ModelServer(reranks=[Reply(hang=True)]) as server:

        def tick() -> None:
            if server.requests:
                raise Lost

        with pytest.raises(Lost):
            Reranker(model(server, tmp_path)).order("bells", TEXTS, 2, tick)


def test_a_call_takes_a_permit_or_is_put_off(store: Store, tmp_path: Path) -> None:
    permits = limited(store, tmp_path)
    [limit] = permits.limits.limits
    with ModelServer() as server:
        reranker = Reranker(model(server, tmp_path), permits=permits, caller="r1/3")
        reranker.order("bells", TEXTS, 2)
        assert store.limiter.in_use(limit).slots == ()
        store.limiter.take([limit], "somebody/else")
        with pytest.raises(PutOff, match="held by somebody/else"):
            reranker.order("bells", TEXTS, 2)
    assert len(server.requests) == 1
