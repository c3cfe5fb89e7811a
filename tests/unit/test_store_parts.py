"""Parts of the store are made when they are first used, and what a client makes of them without a Redis."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

from sleipnir.client.run import missing_for
from sleipnir.runs.views import MissingProcesses, Reason, RunInfo, VisitInfo
from sleipnir.settings import Settings
from sleipnir.store.store import Store


def run(id_: str, *visits: VisitInfo, agent: str = "a", created_ms: int = 0, batch: str | None = None) -> RunInfo:
    return RunInfo(id_, agent, "running", created_ms, visits=visits, batch=batch)


def visit(seq: int, node: str, reason: Reason) -> VisitInfo:
    return VisitInfo(seq, node, "script", 1, "queued", 0, reason)


def store_of(*runs: RunInfo, has_scheduler: bool = True) -> Any:
    known = {info.id: info for info in runs}
    return SimpleNamespace(
        errors=contextlib.nullcontext,
        runs=SimpleNamespace(
            find=lambda ids: [known.get(id_) for id_ in ids], recent=lambda among, status: iter(runs[:among])
        ),
        explained=lambda infos: list(infos),
        fleet=SimpleNamespace(has_scheduler=lambda: has_scheduler),
    )


def test_a_part_is_made_once_for_several_threads() -> None:
    with Store(Settings(redis_url="redis://127.0.0.1:1/0")) as store:
        assert "partitions" not in vars(store)
        found: list[object] = []
        threads = [threading.Thread(target=lambda: found.append(store.partitions)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and {id(part) for part in found} == {id(store.partitions)}
        assert store.dead_letters is store.effects.dead_letters
    assert Store.partitions is not None


def test_what_a_run_and_the_runs_below_it_lack_is_found() -> None:
    """Finding U11 of the second review."""
    top = run(
        "top", visit(1, "fetch", Reason("queued", queue="rag", consumers=0)),
        visit(2, "call", Reason("child", run="below")), visit(3, "ok", Reason("queued", queue="llm", consumers=2)),
    )  # fmt: skip
    below = run("below", visit(1, "ask", Reason("queued", queue="gpu", consumers=0)))
    assert missing_for(store_of(top, below), ["top"]) == MissingProcesses(
        False, {"rag": "fetch", "gpu": "ask of run below"}
    )
    assert missing_for(store_of(run("r"), has_scheduler=False), ["r"]) == MissingProcesses(True, {})
    assert missing_for(store_of(), ["gone"]) == MissingProcesses(False, {})
