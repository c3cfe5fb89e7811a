"""When a knowledge base is built: what is to be done for a node, by what it says (spec 2.7.6, 8.1, 8.7). Pure.

Rules. A base that exists is used and never rebuilt by itself. One that is missing is built without a word if the node
is fully specified: it names embedding model, chunk size and overlap, or, added by Sleipnir, `embedding_model: none`,
which needs no more. Otherwise a person is asked, for each value that neither the node nor the application's
configuration gives; where there is nobody, the agent is refused. What the application says alone does not count for
"fully specified". The documents of a config.yaml agent are a help, not a need: without an answer it runs without them.
They have no values of their own, so here, other than in Loki, what the application says does count.
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
NO_MODEL_HINT: Final = "`embedding_model: none` on the node needs no model and no key: its base is searched by keywords"
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
    """What is said of a base that does not exist yet. None: nobody has said it. `embedding_model` may be NO_MODEL."""

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
        """What Loki says of the first value that is missing; None when the base can be built."""
        if self.embedding_model is None:
            return MISSING_MODEL
        if self.chunk_size is None and not self.is_keywords_only:
            return MISSING_SIZE
        return MISSING_OVERLAP if self.chunk_overlap is None and not self.is_keywords_only else None

    def recipe(self) -> Recipe:
        """Nothing may be `missing`."""
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
class Use:
    """The base is there."""


@dataclass(frozen=True)
class Build:
    """Without a word."""

    recipe: Recipe


@dataclass(frozen=True)
class AskToBuild:
    """Put `question`, answered yes by default; on yes ask for what `wanted` has not, and build; else do `otherwise`."""

    question: str
    wanted: BaseOptions
    otherwise: Refuse | RunWithout


@dataclass(frozen=True)
class Refuse:
    """The agent cannot run. `message` is Loki's, `hint` is not."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class RunWithout:
    """The agent runs without; people are told `notice`, if it says anything."""

    notice: str = ""


Decision: TypeAlias = Use | Build | AskToBuild | Refuse | RunWithout


def wanted_of(node: RagNode | None, documents: Sequence[str], application: Application) -> BaseOptions:
    """What the node, and where it is silent the application, says. None: the `documents` of a config.yaml agent."""
    said = node or RagNode(id=DOCUMENTS, documents=list(documents))
    return BaseOptions(
        documents=tuple(documents),
        embedding_model=said.embedding_model or application.embedding_model,
        chunk_size=application.chunk_size if said.chunk_size is None else said.chunk_size,
        chunk_overlap=application.chunk_overlap if said.chunk_overlap is None else said.chunk_overlap,
        reranker_model=said.reranker_model or application.reranker_model,
        top_k=application.top_k if said.top_k is None else said.top_k,
        batch_size=said.batch_size,
    )


def applying_to(node: RagNode | None, application: Application) -> Application:
    """What of the application's configuration concerns the node: its sizes do not where the node says
    `embedding_model: none`, which needs no more to be fully specified."""
    if node is None or node.embedding_model != NO_MODEL:
        return application
    return replace(application, chunk_size=None, chunk_overlap=None)


def decide_node(agent: str, node: RagNode, application: Application, *, exists: bool, can_ask: bool) -> Decision:
    """What a rag node needs before a run of its agent."""
    if exists:
        return Use()
    if not node.documents:
        return Refuse(NO_DOCUMENTS.format(node=node.id))
    if _is_fully_specified(node):
        return Build(wanted_of(node, node.documents, applying_to(node, application)).recipe())
    if can_ask:
        wanted = wanted_of(node, node.documents, application)
        return AskToBuild(
            INITIALISE_NODE.format(node=node.id), wanted, Refuse(DECLINED.format(agent=agent, node=node.id))
        )
    return Refuse(NOT_SPECIFIED.format(agent=agent, node=node.id), NO_MODEL_HINT)


def decide_documents(
    agent: str, documents: Sequence[str], application: Application, *, exists: bool, can_ask: bool
) -> Decision:
    """What the `documents:` of a config.yaml agent need before a run of it."""
    if exists:
        return Use()
    if not documents:
        return RunWithout()
    wanted = wanted_of(None, documents, application)
    if wanted.missing is None:
        return Build(wanted.recipe())
    return (
        AskToBuild(INITIALISE_DOCUMENTS, wanted, RunWithout()) if can_ask else RunWithout(NOT_USED.format(agent=agent))
    )


def _is_fully_specified(node: RagNode) -> bool:
    if node.embedding_model == NO_MODEL:
        return True
    return None not in (node.embedding_model, node.chunk_size, node.chunk_overlap)


def completed(
    wanted: BaseOptions,
    *,
    embedding_model: str | None = None,
    chunk_size: int | None = None,
    chunk_overlap: int | None = None,
    reranker_model: str | None = None,
    top_k: int | None = None,
    batch_size: int | None = None,
) -> BaseOptions:
    """`wanted` with what a person says; None: they say nothing of it."""
    said: dict[str, Any] = {
        "embedding_model": embedding_model,
        "chunk_size": chunk_size,
        "chunk_overlap": chunk_overlap,
        "reranker_model": reranker_model,
        "top_k": top_k,
        "batch_size": batch_size,
    }
    return replace(wanted, **{name: value for name, value in said.items() if value is not None})
