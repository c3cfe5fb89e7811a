"""What the builder of knowledge bases is asked to do, and what it tells meanwhile.

The builder is a process of its own (`python -m sleipnir_workers.knowledge`), because it needs the extra `rag` and keys
of models: it reads one Order as a line of JSON from its standard input, and writes one Told per line of its standard
output, the last of which is BuildDone or BuildFailed. Its standard error is for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sleipnir.knowledge.recipe import Recipe

Task: TypeAlias = Literal["build", "rebuild", "index", "forecast", "show", "search", "shelved", "unshelve"]
"""build    make the base, unless it is there meanwhile; what is not changed is not embedded again
rebuild  make the base anew from its documents as they are now, in place of the old one
index    make what workers search from a base that is there (Loki's, or one whose index was dropped), and share it
forecast say what a build would take: sources, chunks, tokens, cost; asks no model and writes nothing
show     say what is in a base
search   ask a base
shelved  say what lies in an index store in S3
unshelve remove a base from it, unless a submit has asked for it since a time"""


@dataclass(frozen=True)
class SearchQuery:
    """A search. `top_k` None: the base's own. `sources` are globs; `per_source`: at most so many hits of one source."""

    text: str
    top_k: int | None = None
    sources: tuple[str, ...] = ()
    per_source: int | None = None


@dataclass(frozen=True)
class Order:
    """`folder` is the agent's. `recipe` is for build, rebuild and forecast, `question` for search. `loaders` are
    commands by extension or protocol (spec 8.2, 8.3). `wait`: a build that somebody else has begun is waited for.
    `go_on`: documents that cannot be loaded are left out, with a notice each; otherwise the build fails (`sources`).
    `digest` and `before_ms`, by Redis' clock, are for unshelve, which as shelved is about no agent."""

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
    given = json.loads(line)
    if given.get("recipe"):
        given["recipe"] = Recipe(**given["recipe"])
    if given.get("question"):
        given["question"] = SearchQuery(**{**given["question"], "sources": tuple(given["question"]["sources"])})
    return Order(**given)


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
    """Something that people should know and that stops nothing: a path that does not exist, a page that failed."""

    text: str


@dataclass(frozen=True)
class BuildDone:
    """`value` is what `--json` shows: of a build, rebuild, index or show a BaseInfo, of a forecast a Forecast, of a
    search {hits, context, sources, embedding_model} (views of sleipnir/knowledge/views.py, as dicts). Of shelved it is
    {bases}, a list of (digest, bytes, age in seconds), of unshelve {removed}."""

    value: Mapping[str, Any]


@dataclass(frozen=True)
class BuildFailed:
    """Nothing was changed. `kind`: `usage` (the agent or the command must be changed), `sources` (documents), `model`,
    `store` (Redis or the shared store) or `bug`."""

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
    given = json.loads(line)
    return _KINDS[given.pop("told")](**given)
