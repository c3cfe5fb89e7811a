"""The orders for the builder of knowledge bases, and its messages.

The builder is a separate process (`python -m sleipnir_workers.knowledge`), because it needs the extra `rag` and keys
of models: it reads one Order as a line of JSON from its standard input, and writes one BuildMessage per line to its
standard output, the last of which is BuildDone or BuildFailed. Its standard error is for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sleipnir.knowledge.recipe import Recipe

Task: TypeAlias = Literal["build", "rebuild", "index", "forecast", "show", "search", "shelved", "unshelve"]
"""build    build the base, unless it exists by now; unchanged chunks are not embedded again
rebuild  build the base again from the current documents, and replace the old one
index    build and share the index of an existing base (Loki's, or one whose index was dropped)
forecast estimate a build: sources, chunks, tokens, cost; calls no model and writes nothing
show     describe a base
search   search a base
shelved  list the indexes in an index store in S3
unshelve remove an index from it, unless a submission has needed it since a time"""


@dataclass(frozen=True)
class SearchQuery:
    """A search. `top_k` None: the base's own. `sources` are globs; `per_source` limits the hits of one source."""

    text: str
    top_k: int | None = None
    sources: tuple[str, ...] = ()
    per_source: int | None = None


@dataclass(frozen=True)
class Order:
    """`folder` is the agent's. `recipe` is for build, rebuild and forecast, `question` for search. `loaders` are
    commands by extension or protocol (spec 8.2, 8.3). `wait`: wait for a build that another process has begun.
    `go_on`: leave out documents that cannot be loaded, with a notice each; otherwise the build fails (`sources`).
    `digest` and `before_ms`, by Redis' clock, are for unshelve. shelved and unshelve concern no agent."""

    task: Task
    agent: str
    node: str
    folder: str
    recipe: Recipe | None = None
    question: SearchQuery | None = None
    loaders: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    go_on: bool = False
    digest: str = ""
    before_ms: int = 0

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def order_of(line: str) -> Order:
    data = json.loads(line)
    if data.get("recipe"):
        data["recipe"] = Recipe(**data["recipe"])
    if data.get("question"):
        data["question"] = SearchQuery(**{**data["question"], "sources": tuple(data["question"]["sources"])})
    return Order(**data)


Stage: TypeAlias = Literal["wait", "load", "embed", "write", "share"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total` (None: not known yet) of a stage: sources loaded, chunks embedded, bytes written or shared."""

    stage: Stage
    done: int
    total: int | None = None
    what: str = ""


@dataclass(frozen=True)
class BuildNotice:
    """A warning for people: a path that does not exist, a page that failed to load."""

    text: str


@dataclass(frozen=True)
class BuildDone:
    """`value` is the output of `--json`: a BaseInfo for build, rebuild, index and show, a Forecast for forecast,
    {hits, context, sources, embedding_model} for search (views of sleipnir/knowledge/views.py, as dicts). For shelved
    it is {bases}, a list of (digest, bytes, age in seconds), for unshelve {removed}."""

    value: Mapping[str, Any]


@dataclass(frozen=True)
class BuildFailed:
    """The order failed and changed nothing. `kind`: `usage` (the agent or the command must be changed), `sources`
    (documents), `model`, `store` (Redis or the shared store) or `bug`."""

    message: str
    kind: str = "usage"


BuildMessage: TypeAlias = Progress | BuildNotice | BuildDone | BuildFailed
_KINDS: Final[Mapping[str, type[BuildMessage]]] = {
    "progress": Progress, "notice": BuildNotice, "done": BuildDone, "failed": BuildFailed,
}  # fmt: skip
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def message_line(message: BuildMessage) -> str:
    return json.dumps({"told": _NAMES[type(message)], **asdict(message)}) + "\n"


def message_of(line: str) -> BuildMessage:
    data = json.loads(line)
    return _KINDS[data.pop("told")](**data)
