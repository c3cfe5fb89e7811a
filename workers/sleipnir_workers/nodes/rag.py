"""The rag node: it searches its knowledge base for its query (spec 2.7.6).

Rules. Every failure fails the node. The base is the one that existed when the run was submitted. A visit that reaches a
limit of its models is put off, as a visit of an llm node is. Its spending counts even if it fails. The timeout includes
fetching the base. numpy is imported by the first visit, so a worker without rag visits does not pay for it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sleipnir.errors import KnowledgeError, MachineFailed, NodeFailed, SleipnirError
from sleipnir.graph.model import RagNode
from sleipnir.graph.template import TemplateError, render
from sleipnir.knowledge.files import index_store_name
from sleipnir.knowledge.order import SearchQuery
from sleipnir.messages import VisitResult
from sleipnir.settings import Settings
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm.usage import UsageTotal
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.results import typed_state
from sleipnir_workers.results.items import with_own_output

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.open_indexes import OpenIndexes
    from sleipnir_workers.knowledge.search import SearchResult


@executor("rag")
def run_rag(node: RagNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Search. `host` None means this process's. Raises only VisitLost, ProcessLost and MachineFailed."""
    spent = UsageTotal()
    try:
        return _searched(node, execution, host or this_host(), spent)
    except PutOff as later:
        # A scheduler of an older release, which does not know `later_ms`, must see a failure, not a success.
        return VisitResult(ok=False, error=str(later), error_kind="limit", usage=spent.usage(), later_ms=later.until_ms)
    except NodeFailed as error:
        return VisitResult(
            ok=False, error=str(error), error_kind=error.kind, transient=error.transient, usage=spent.usage()
        )


def warm_up() -> None:
    """Import now the modules that the first visit would wait for. Starts no thread, so it is safe before a fork."""
    with contextlib.suppress(ModuleNotFoundError):
        import sleipnir_workers.knowledge.query  # noqa: F401


def _searched(node: RagNode, execution: Execution, host: Host, spent: UsageTotal) -> VisitResult:
    """Raises NodeFailed, PutOff, VisitLost, ProcessLost and MachineFailed."""
    try:
        query = render(node.query, execution.state)
    except TemplateError as error:
        raise NodeFailed(f"Failed to interpolate rag node query: {error}", "template") from error
    if execution.knowledge is None:
        raise NodeFailed(f"rag node '{node.id}' has no initialized knowledge base", "knowledge")
    try:
        from sleipnir_workers.knowledge.query import BaseQuery
    except ModuleNotFoundError as error:
        raise NodeFailed(f"rag nodes need the extra `rag` on their workers: {error}", "config") from error
    asking = BaseQuery(
        host,
        timeout_s=node.timeout,
        spent=spent,
        permits=execution.permits,
        caller=f"{execution.run}/{execution.seq}",
        waits=False,
        tick=execution.check,
    )
    fetch_note = (
        f": knowledge base {execution.knowledge[:12]} was still being fetched from {index_store_name(host.settings)}"
    )
    try:
        with _open_indexes(host.settings, os.getpid()).read(execution.knowledge, asking.check) as index:
            fetch_note = ""
            top_k = index.info.recipe.top_k if node.top_k is None else node.top_k
            answer = asking.search(index, SearchQuery(query, top_k, tuple(node.sources or ()), node.per_source))
    except MachineFailed:
        raise
    except SleipnirError as error:
        if isinstance(error, KnowledgeError) and error.machine is not None:
            machine = error.machine  # once the index is open, a model may have been called
            raise MachineFailed(machine.part, machine.args[0], begun=not fetch_note) from error
        raise _failure(node, error, fetch_note) from error
    output = _output(answer)
    return VisitResult(
        ok=True,
        delta=with_own_output(execution, typed_state.updates(execution, {}, value=output), output),
        usage=spent.usage(),
        notes=(f"rag lookup: node={node.id} top_k={top_k}",),
    )


def _output(answer: SearchResult) -> dict[str, Any]:
    """The value for the node's state_updates: Loki's `context` and `sources`, and our `hits`."""
    hits = [{**asdict(hit), "lines": None if hit.lines is None else list(hit.lines)} for hit in answer.hits]
    return {"context": answer.context, "sources": list(answer.sources), "hits": hits}


def _failure(node: RagNode, error: SleipnirError, fetch_note: str) -> NodeFailed:
    """`fetch_note` ends the message of a timeout; it is empty unless the base was being fetched."""
    kind = error.kind if isinstance(error, NodeFailed | KnowledgeError) else "knowledge"
    if kind == "timeout":
        return NodeFailed(f"rag node '{node.id}' timed out after {node.timeout}s{fetch_note}", "timeout")
    transient = isinstance(error, NodeFailed | KnowledgeError) and error.transient
    return NodeFailed(f"rag node '{node.id}' retrieval failed: {error}", kind, transient=transient)


@functools.lru_cache(maxsize=4)
def _open_indexes(settings: Settings, process: int) -> OpenIndexes:
    """Those of `process`, this process's number: a forked child opens its own."""
    from sleipnir_workers.knowledge.open_indexes import OpenIndexes
    from sleipnir_workers.knowledge.store_choice import index_store_of

    return OpenIndexes(index_store_of(settings))
