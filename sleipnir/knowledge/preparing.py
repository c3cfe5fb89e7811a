"""Before a run: every base that its agent needs is there, and where workers find it (spec 2.7.6, 8.7).

Rules. What rules.py says is done; a base that exists costs a stat and, where `is_shelved` asks for it, a look at Redis.
Application settings are read only when a base is missing. A refusal comes before the first build.
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
    Build,
    Decision,
    Refuse,
    RunWithout,
    Use,
    decide_documents,
    decide_node,
)

Report: TypeAlias = Callable[[str, BuildMessage], None]
"""Is told what there is to know of a base, named as `pin_name` does."""

SOME_FAILED: Final = "Some documents failed to load. Continue?"
NOTHING_LOADED: Final = "No RAG files"

CarryOut: TypeAlias = Callable[[Order, Callable[[BuildMessage], None]], Mapping[str, Any]]
"""Has an order carried out (sleipnir/knowledge/builder.py). Raises KnowledgeError."""


class Asker(Protocol):
    """A person at a terminal."""

    def confirm(self, question: str, *, default: bool) -> bool:
        """False also when there is nobody who answers any more."""

    def complete(self, wanted: BaseOptions, said: Application) -> BaseOptions | None:
        """`wanted` with a value for everything that is missing; None: there is nobody who answers any more."""


def report_nothing(base: str, message: BuildMessage) -> None:
    pass


def nodes_of(graph: Graph) -> dict[str, RagNode | None]:
    """Every node of an agent that may have a base, by its id; None stands for the documents of a config.yaml agent."""
    if graph.loop is not None:
        return {DOCUMENTS: None}
    return {each.id: each for each in graph.nodes.values() if isinstance(each, RagNode)}


def documents_of(graph: Graph, node: RagNode | None) -> list[str]:
    if node is not None:
        return node.documents
    return graph.loop.documents if graph.loop is not None else []


def existing_bases(agent: AgentFolder, graph: Graph) -> dict[str, str]:
    """The digests of the bases that are there, by node. Builds nothing."""
    found = {node: digest_of(base_file(agent.path, node)) for node in nodes_of(graph)}
    return {node: digest for node, digest in found.items() if digest is not None}


def bases_of(
    agent: AgentFolder,
    graph: Graph,
    carry_out: CarryOut,
    is_shelved: Callable[[str], bool],
    ask: Asker | None = None,
    report: Report = report_nothing,
) -> dict[str, str]:
    """The digest of the base of every node that has one, each in the index store; bases that are missing are built
    first.

    `is_shelved` says whether workers find the index of a digest; if not, it is made. A node that is missing in the
    result runs without (the documents of a config.yaml agent). Raises UsageError where the rules refuse the agent,
    what `carry_out` raises, and ConfigError.
    """
    for order in _orders(agent, graph, ask, report):
        report(pin_name(agent.name, order.node), BuildDone(make(order, carry_out, ask, report)))
    found = existing_bases(agent, graph)
    for node, digest in found.items():
        if not is_shelved(digest):
            indexed = make(Order("index", agent.name, node, str(agent.path)), carry_out, ask, report)
            found[node] = str(indexed["digest"])  # a rebuild that it waited for has made another base
    return found


def make(order: Order, carry_out: CarryOut, ask: Asker | None, report: Report) -> Mapping[str, Any]:
    """Have an order carried out; where documents fail to load, a person may go on without them (spec 8.2). Which ones,
    the builder has told."""
    name = pin_name(order.agent, order.node)
    try:
        return carry_out(order, lambda message: report(name, message))
    except KnowledgeError as failed:
        nothing = str(failed).startswith(NOTHING_LOADED)
        if failed.kind != "sources" or nothing or order.recipe is None or order.go_on or ask is None:
            raise
        if not ask.confirm(SOME_FAILED, default=False):
            raise KnowledgeError("Aborted", "sources") from failed
    return carry_out(replace(order, go_on=True), lambda message: report(name, message))


def order_of(agent: AgentFolder, node: str, recipe: Recipe, said: Application) -> Order:
    """To build the base of a node."""
    return Order("build", agent.name, node, str(agent.path), recipe=recipe, loaders=dict(said.loaders))


def _orders(agent: AgentFolder, graph: Graph, ask: Asker | None, report: Report) -> list[Order]:
    orders: list[Order] = []
    for name, node in nodes_of(graph).items():
        if base_file(agent.path, name).is_file():
            continue
        said = application()
        decision = _decision(agent, graph, node, said, can_ask=ask is not None)
        recipe = _recipe(pin_name(agent.name, name), decision, said, ask, report)
        if recipe is not None:
            orders.append(order_of(agent, name, recipe, said))
    return orders


def _decision(agent: AgentFolder, graph: Graph, node: RagNode | None, said: Application, *, can_ask: bool) -> Decision:
    if node is None:
        return decide_documents(agent.name, documents_of(graph, node), said, exists=False, can_ask=can_ask)
    return decide_node(agent.name, node, said, exists=False, can_ask=can_ask)


def _recipe(base: str, decision: Decision, said: Application, ask: Asker | None, report: Report) -> Recipe | None:
    """What to build; None: nothing. Raises UsageError."""
    match decision:
        case Build(recipe):
            return recipe
        case AskToBuild(question, wanted, otherwise):
            completed = ask.complete(wanted, said) if ask and ask.confirm(question, default=True) else None
            return _recipe(base, otherwise, said, ask, report) if completed is None else completed.recipe()
        case Refuse(message, hint):
            raise UsageError(f"{message}\n{hint}" if hint else message)
        case RunWithout(notice):
            if notice:
                report(base, BuildNotice(notice))
            return None
        case Use():
            return None
