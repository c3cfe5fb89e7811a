"""Before a run: ensure that every base of its agent exists and is in the index store (spec 2.7.6, 8.7).

Rules. rules.py decides what to do; an existing base costs a stat and, if `is_shelved` needs it, a read from Redis.
Application settings are read only if a base is missing. A refusal comes before the first build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from sleipnir.errors import KnowledgeError, UsageError
from sleipnir.graph.config_agent import DOCUMENTS
from sleipnir.graph.load import AgentFolder
from sleipnir.graph.model import Graph, RagNode
from sleipnir.knowledge.application import Application, application
from sleipnir.knowledge.files import base_file, digest_of, pin_name
from sleipnir.knowledge.order import BuildDone, BuildMessage, BuildNotice, Order
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.rules import (
    AskToBuild,
    BaseOptions,
    BuildBase,
    Decision,
    RefuseRun,
    RunWithout,
    UseBase,
    decide_documents,
    decide_node,
)

Report: TypeAlias = Callable[[str, BuildMessage], None]
"""Receives the messages about a base, named as by `pin_name`."""

SOME_FAILED: Final = "Some documents failed to load. Continue?"
NOTHING_LOADED: Final = "No RAG files"

CarryOut: TypeAlias = Callable[[Order, Callable[[BuildMessage], None]], Mapping[str, Any]]
"""Runs an order (sleipnir/knowledge/builder.py). Raises KnowledgeError."""


class Asker(Protocol):
    """A person at a terminal."""

    def confirm(self, question: str, *, default: bool) -> bool:
        """The answer; False also if input has ended."""

    def complete(self, options: BaseOptions, config: Application) -> BaseOptions | None:
        """`options` with all missing values; None: input has ended."""


def report_nothing(base: str, message: BuildMessage) -> None:
    pass


def nodes_of(graph: Graph) -> dict[str, RagNode | None]:
    """Every node of an agent that may have a base, by its id; None means the documents of a config.yaml agent."""
    if graph.loop is not None:
        return {DOCUMENTS: None}
    return {each.id: each for each in graph.rag_nodes}


def documents_of(graph: Graph, node: RagNode | None) -> list[str]:
    if node is not None:
        return node.documents
    return graph.loop.documents if graph.loop is not None else []


def existing_bases(agent: AgentFolder, graph: Graph) -> dict[str, str]:
    """The digests of the existing bases, by node. Builds nothing."""
    digests = {node: digest_of(base_file(agent.path, node)) for node in nodes_of(graph)}
    return {node: digest for node, digest in digests.items() if digest is not None}


def bases_of(
    agent: AgentFolder,
    graph: Graph,
    carry_out: CarryOut,
    is_shelved: Callable[[str], bool],
    ask: Asker | None = None,
    report: Report = report_nothing,
) -> dict[str, str]:
    """The digest of every node's base; missing bases are built and shared in the index store first.

    `is_shelved` says whether the index of a digest is in the store; if not, it is built. A node without an entry runs
    without a base (the documents of a config.yaml agent). Raises UsageError if the rules refuse the agent, what
    `carry_out` raises, and ConfigError.
    """
    for order in _orders(agent, graph, ask, report):
        report(pin_name(agent.name, order.node), BuildDone(make(order, carry_out, ask, report)))
    digests = existing_bases(agent, graph)
    for node, digest in digests.items():
        if not is_shelved(digest):
            indexed = make(Order("index", agent.name, node, str(agent.path)), carry_out, ask, report)
            digests[node] = str(indexed["digest"])  # another build that it waited for has changed the base
    return digests


def make(order: Order, carry_out: CarryOut, ask: Asker | None, report: Report) -> Mapping[str, Any]:
    """Run an order; if documents fail to load, a person may continue without them (spec 8.2). The builder's messages
    name them."""
    name = pin_name(order.agent, order.node)
    try:
        return carry_out(order, lambda message: report(name, message))
    except KnowledgeError as failed:
        nothing_loaded = str(failed).startswith(NOTHING_LOADED)
        if failed.kind != "sources" or nothing_loaded or order.recipe is None or order.go_on or ask is None:
            raise
        if not ask.confirm(SOME_FAILED, default=False):
            raise KnowledgeError("Aborted", "sources") from failed
    return carry_out(replace(order, go_on=True), lambda message: report(name, message))


def order_of(agent: AgentFolder, node: str, recipe: Recipe, config: Application) -> Order:
    """The order that builds the base of a node."""
    return Order("build", agent.name, node, str(agent.path), recipe=recipe, loaders=dict(config.loaders))


def _orders(agent: AgentFolder, graph: Graph, ask: Asker | None, report: Report) -> list[Order]:
    orders: list[Order] = []
    for name, node in nodes_of(graph).items():
        if base_file(agent.path, name).is_file():
            continue
        config = application()
        decision = _decision(agent, graph, node, config, can_ask=ask is not None)
        recipe = _recipe(pin_name(agent.name, name), decision, config, ask, report)
        if recipe is not None:
            orders.append(order_of(agent, name, recipe, config))
    return orders


def _decision(
    agent: AgentFolder, graph: Graph, node: RagNode | None, config: Application, *, can_ask: bool
) -> Decision:
    if node is None:
        return decide_documents(agent.name, documents_of(graph, node), config, exists=False, can_ask=can_ask)
    return decide_node(agent.name, node, config, exists=False, can_ask=can_ask)


def _recipe(base: str, decision: Decision, config: Application, ask: Asker | None, report: Report) -> Recipe | None:
    """The recipe to build; None: build nothing. Raises UsageError."""
    match decision:
        case BuildBase(recipe):
            return recipe
        case AskToBuild(question, options, otherwise):
            completed = ask.complete(options, config) if ask and ask.confirm(question, default=True) else None
            return _recipe(base, otherwise, config, ask, report) if completed is None else completed.recipe()
        case RefuseRun(message, hint):
            raise UsageError(f"{message}\n{hint}" if hint else message)
        case RunWithout(notice):
            if notice:
                report(base, BuildNotice(notice))
            return None
        case UseBase():
            return None
