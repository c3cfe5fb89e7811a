"""The deployment's cache, for the visits of a worker process."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from itertools import count
from pathlib import Path

from sleipnir.graph.cache_key import KeyProblem
from sleipnir.graph.load import GRAPH_FILE
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.visits.caching import VisitCache, default_model_here


def fleet_cache(store: Store, settings: Settings) -> VisitCache:
    executions = count()
    return VisitCache(
        store.cache,
        lambda: f"{_process(os.getpid())}-{next(executions)}",
        settings.cache_entry_bytes,
        default_model_here,
        code=_code_of,
    )


def renew(store: Store, user: VisitCache) -> None:
    """Renew the leases of what runs now, at each heartbeat. One that has lapsed does no harm: two visits execute."""
    if leases := user.leases():
        store.cache.renew(leases)


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """A name for this process that no other has."""
    return f"{pid}-{os.urandom(12).hex()}"


def _code_of(execution: Execution) -> str:
    """The digest of the code of a visit on a worker: of all files of its bundle but the graph, because scripts and
    functions may read any. Raises KeyProblem."""
    try:
        return _code_digest(execution.folder.parent.parent)
    except OSError as error:
        raise KeyProblem(f"the agent's files cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _code_digest(tree: Path) -> str:
    """Once per bundle: its tree is read-only, and named by its digest."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(folder, name) for name in sorted(names) if name != GRAPH_FILE):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(tree).as_posix()}\n{digest}\n".encode(errors="replace"))
    return total.hexdigest()
