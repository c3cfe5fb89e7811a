"""Decides whether to build the knowledge base of a node (spec 2.7.6, 8.1, 8.7). Pure.

Rules. An existing base is used and never rebuilt automatically. A missing one is built without a question if the node
is fully specified: it sets embedding model, chunk size and overlap, or only `embedding_model: none` (added by
Sleipnir). Otherwise a person is asked for each value that neither the node nor the application's configuration sets;
without a terminal the agent is refused. The application's values do not make a node "fully specified". The documents
of a config.yaml agent are optional: without an answer it runs without them. They have no values of their own, so here,
unlike in Loki, the application's values are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from sleipnir.graph.config_agent import DOCUMENTS
from sleipnir.graph.model import RagNode
from sleipnir.knowledge.application import Application
from sleipnir.knowledge.recipe import CHUNK_SIZE, NO_MODEL, TOP_K, Recipe

INITIALISE_NODE: Final = "Initialize RAG knowledge base for rag node '{node}'?"
INITIALISE_DOCUMENTS: Final = "The agent has documents attached, init RAG?"
DECLINED: Final = (
    "Agent '{agent}' has rag node '{node}' but its RAG was not initialized. "
    "RAG initialization is required for this agent."
)
NOT_SPECIFIED: Final = (
    "Agent '{agent}' requires RAG for rag node '{node}', but its knowledge base is not built and the node does not "
    "fully specify how to build it. Set `embedding_model`, `chunk_size`, and `chunk_overlap` on the node, or run the "
    "agent once interactively."
)
NO_MODEL_HINT: Final = "`embedding_model: none` on the node needs no model and no key: the base is searched by keywords"
NO_DOCUMENTS: Final = "Cannot build RAG knowledge base '{node}' with no documents"
MISSING_MODEL: Final = (
    "RAG knowledge base needs an embedding model. Set `embedding_model` on the rag node, or run the agent "
    "interactively once."
)
MISSING_SIZE: Final = (
    "RAG knowledge base needs a chunk_size. Set `chunk_size` on the rag node, or run the agent interactively once."
)
MISSING_OVERLAP: Final = (
    "RAG knowledge base needs a chunk_overlap. Set `chunk_overlap` on the rag node, or run the agent interactively "
    "once."
)
NOT_USED: Final = (
    "agent '{agent}' runs without its documents: there is no knowledge base of them yet. "
    "`sleipnir kb build {agent}` builds it"
)


@dataclass(frozen=True)
class BaseOptions:
    """The options of a base that does not exist yet. None: not set. `embedding_model` may be NO_MODEL."""

    documents: Sequence[str]
    embedding_model: str | None = None
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    reranker_model: str | None = None
    top_k: int = TOP_K
    batch_size: int | None = None

    @property
    def is_keywords_only(self) -> bool:
        return self.embedding_model == NO_MODEL

    @property
    def missing(self) -> str | None:
        """Loki's message for the first missing value; None if the base can be built."""
        if self.embedding_model is None:
            return MISSING_MODEL
        if self.chunk_size is None and not self.is_keywords_only:
            return MISSING_SIZE
        return MISSING_OVERLAP if self.chunk_overlap is None and not self.is_keywords_only else None

    def recipe(self) -> Recipe:
        """The recipe. `missing` must be None."""
        size = self.chunk_size or CHUNK_SIZE
        return Recipe(
            documents=tuple(self.documents),
            embedding_model=None if self.is_keywords_only else self.embedding_model,
            chunk_size=size,
            chunk_overlap=usual_overlap(size) if self.chunk_overlap is None else self.chunk_overlap,
            reranker_model=self.reranker_model,
            top_k=self.top_k,
            batch_size=self.batch_size,
        )


def usual_overlap(chunk_size: int) -> int:
    return chunk_size // 20


@dataclass(frozen=True)
class UseBase:
    """Use the existing base."""


@dataclass(frozen=True)
class BuildBase:
    """Build without a question."""

    recipe: Recipe


@dataclass(frozen=True)
class AskToBuild:
    """Ask `question` (default: yes). On yes ask for the missing `options` and build; on no do `otherwise`."""

    question: str
    options: BaseOptions
    otherwise: RefuseRun | RunWithout


@dataclass(frozen=True)
class RefuseRun:
    """The agent cannot run. `message` is Loki's, `hint` is not."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class RunWithout:
    """The agent runs without a base. `notice` is shown to people unless it is empty."""

    notice: str = ""


Decision: TypeAlias = UseBase | BuildBase | AskToBuild | RefuseRun | RunWithout


def options_of(node: RagNode | None, documents: Sequence[str], application: Application) -> BaseOptions:
    """The options of the node, else of the application. `node` None: the `documents` of a config.yaml agent."""
    declared = node or RagNode(id=DOCUMENTS, documents=list(documents))
    return BaseOptions(
        documents=tuple(documents),
        embedding_model=declared.embedding_model or application.embedding_model,
        chunk_size=application.chunk_size if declared.chunk_size is None else declared.chunk_size,
        chunk_overlap=application.chunk_overlap if declared.chunk_overlap is None else declared.chunk_overlap,
        reranker_model=declared.reranker_model or application.reranker_model,
        top_k=application.top_k if declared.top_k is None else declared.top_k,
        batch_size=declared.batch_size,
    )


def applying_to(node: RagNode | None, application: Application) -> Application:
    """The application's configuration for the node: without sizes if the node has `embedding_model: none`, which is
    fully specified."""
    if node is None or node.embedding_model != NO_MODEL:
        return application
    return replace(application, chunk_size=None, chunk_overlap=None)


def decide_node(agent: str, node: RagNode, application: Application, *, exists: bool, can_ask: bool) -> Decision:
    """The decision for a rag node before a run of its agent."""
    if exists:
        return UseBase()
    if not node.documents:
        return RefuseRun(NO_DOCUMENTS.format(node=node.id))
    if _is_fully_specified(node):
        return BuildBase(options_of(node, node.documents, applying_to(node, application)).recipe())
    if can_ask:
        options = options_of(node, node.documents, application)
        return AskToBuild(
            INITIALISE_NODE.format(node=node.id), options, RefuseRun(DECLINED.format(agent=agent, node=node.id))
        )
    return RefuseRun(NOT_SPECIFIED.format(agent=agent, node=node.id), NO_MODEL_HINT)


def decide_documents(
    agent: str, documents: Sequence[str], application: Application, *, exists: bool, can_ask: bool
) -> Decision:
    """The decision for the `documents:` of a config.yaml agent before a run."""
    if exists:
        return UseBase()
    if not documents:
        return RunWithout()
    options = options_of(None, documents, application)
    if options.missing is None:
        return BuildBase(options.recipe())
    return (
        AskToBuild(INITIALISE_DOCUMENTS, options, RunWithout()) if can_ask else RunWithout(NOT_USED.format(agent=agent))
    )


def _is_fully_specified(node: RagNode) -> bool:
    if node.embedding_model == NO_MODEL:
        return True
    return None not in (node.embedding_model, node.chunk_size, node.chunk_overlap)


def completed(
    options: BaseOptions,
    *,
    embedding_model: str | None = None,
    chunk_size: int | None = None,
    chunk_overlap: int | None = None,
    reranker_model: str | None = None,
    top_k: int | None = None,
    batch_size: int | None = None,
) -> BaseOptions:
    """`options` with the values that a person gives; None: no value given."""
    answers: dict[str, Any] = {
        "embedding_model": embedding_model,
        "chunk_size": chunk_size,
        "chunk_overlap": chunk_overlap,
        "reranker_model": reranker_model,
        "top_k": top_k,
        "batch_size": batch_size,
    }
    return replace(options, **{name: value for name, value in answers.items() if value is not None})
