"""Carry out orders (knowledge/order.py): a build loads, splits, embeds, writes and shares a base.

A build works in staging folders until the base's file is renamed into place: before that there is no base, or the old
one; after it there is the new one, whose index is already in the index store. Vectors are in the cache as soon as they
are paid for. So a build that dies at any line can be ordered again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from sleipnir.errors import KnowledgeError, StoreUnavailable
from sleipnir.knowledge.files import base_file, digest_of
from sleipnir.knowledge.order import BuildDone, BuildMessage, BuildNotice, Order, Progress
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.views import BaseInfo, EmbeddingUsage, Forecast
from sleipnir.staging import PREFIX, clear_up, put_in_place, staging
from sleipnir.store.store import Store
from sleipnir_workers.knowledge import loki_file, sources
from sleipnir_workers.knowledge.artefact import IndexInfo, UnusableIndex
from sleipnir_workers.knowledge.base import Base, Document, Source
from sleipnir_workers.knowledge.chunking import split
from sleipnir_workers.knowledge.embedder import Embedder, Estimate, open_embedder
from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache
from sleipnir_workers.knowledge.index_store import DamagedIndex, disk_error
from sleipnir_workers.knowledge.indexes import Indexes
from sleipnir_workers.knowledge.lease import Lease, leased
from sleipnir_workers.knowledge.loading import load
from sleipnir_workers.knowledge.query import BaseQuery
from sleipnir_workers.knowledge.store_choice import index_store_of
from sleipnir_workers.llm.permits import Permits
from sleipnir_workers.machine.host import Host

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors


NOTHING = EmbeddingUsage()


SEARCH_S = 120.0
BASES_BEGIN = b"embedding_model:"


def run(order: Order, host: Host, report: Callable[[BuildMessage], None]) -> BuildDone:
    """Carry out an order. `report` gets Progress and BuildNotice. Nothing is changed when this raises: any
    SleipnirError, ProcessLost, or an error of `report`."""
    job = _Job(order, host, report)
    match order.task:
        case "build" | "rebuild" | "index":
            return BuildDone(asdict(job.build()))
        case "forecast":
            return BuildDone(asdict(job.forecast()))
        case "show":
            return BuildDone(asdict(job.show()))
        case "search":
            return BuildDone(job.search())
    raise KnowledgeError(f"the order to {order.task} is not for a builder of bases", "bug")


class _Job:
    def __init__(self, order: Order, host: Host, report: Callable[[BuildMessage], None]) -> None:
        self.order, self.host, self.settings = order, host, host.settings
        self.folder = Path(order.folder)
        self.file = base_file(self.folder, order.node)
        self.indexes = Indexes(index_store_of(host.settings), self.report)
        self.notices: list[str] = []
        self._report = report

    def report(self, message: BuildMessage) -> None:
        if isinstance(message, BuildNotice):
            self.notices.append(message.text)
        self._report(message)

    # Build, rebuild and index.

    def build(self) -> BaseInfo:
        with self._store() as store:
            permits = Permits(store, self.settings)
            with leased(store, self.order, self.settings, self.report, permits.renew) as lease:
                clear_up(self.folder)
                if self.order.task == "index" or (self.order.task == "build" and self.file.exists()):
                    return self._index(store)
                return self._make(store, permits, lease)

    def _old(self) -> Base | None:
        """The present base, for its vectors."""
        if not self.file.exists():
            return None
        try:
            return loki_file.read(self.file)
        except loki_file.UnreadableBase as error:
            self.report(BuildNotice(f"{error}; it is replaced"))
            return None

    def _make(self, store: Store, permits: Permits, lease: Lease) -> BaseInfo:
        recipe = self._recipe()
        loaded = self._sources(recipe)
        vectors, spent = self._embed(recipe, _texts(loaded), permits, lease)
        base = Base(recipe, loaded, vectors)
        with _naming_the_disk(self.file), staging(self.folder) as folder:
            self.report(Progress("write", 0, None, str(self.file)))
            staged = folder / self.file.name
            loki_file.write(base, staged)
            digest = str(digest_of(staged))
            self._use(store, digest)
            info = self.indexes.share(base, digest)
            lease.keep()
            lease.check()
            put_in_place(staged, self.file)
        written_bytes = self.file.stat().st_size
        self.report(Progress("write", written_bytes, written_bytes, str(self.file)))
        self._list(store, info)
        return self._info(info, spent)

    def _recipe(self) -> Recipe:
        """The order's recipe, with documents as the base stores them."""
        recipe = self.order.recipe
        if recipe is None:
            raise KnowledgeError(f"the order to {self.order.task} {self.order.node!r} has no recipe", "bug")
        if not recipe.documents:
            raise KnowledgeError(f"Cannot build RAG knowledge base '{self.order.node}' with no documents")
        if not 0 <= recipe.chunk_overlap < recipe.chunk_size:  # each chunk would begin one character after the last
            raise KnowledgeError(
                f"knowledge base '{self.order.node}' has chunk_overlap {recipe.chunk_overlap}, which is not less than "
                f"its chunk_size {recipe.chunk_size}; a twentieth of it is usual"
            )
        return replace(recipe, documents=sources.absolute(recipe.documents, self.folder, self.order.loaders))

    def _sources(self, recipe: Recipe) -> list[Source]:
        documents = load(
            recipe.documents,
            self.folder,
            loaders=self.order.loaders,
            settings=self.settings,
            report=self.report,
            go_on=self.order.go_on,
            leave_out=list(self._bases()),
        )
        return [_source(document, recipe) for document in documents]

    def _bases(self) -> Iterator[Path]:
        """The bases of the agent, and files of other builders beside them, which the document `.` would include."""
        yield self.file
        yield from self.folder.glob(f"{PREFIX}*/*")
        yield from (file for file in self.folder.glob("*.yaml") if _is_base(file))

    def _embed(
        self, recipe: Recipe, texts: Sequence[str], permits: Permits, lease: Lease
    ) -> tuple[Vectors | None, EmbeddingUsage]:
        """The vectors of all chunks. The present base is read for its vectors only if some are not in the cache,
        because it may be large."""
        if recipe.embedding_model is None:
            lease.check()
            return None, NOTHING
        embedder = self._embedder(recipe, permits)
        known = _known(self._old() if embedder.estimate(texts).unknown else None, recipe.embedding_model)
        missing = [number for number, text in enumerate(texts) if text not in known.rows]

        def progress(done: int, total: int, tokens: int, cost_usd: float | None) -> None:
            price = "" if cost_usd is None else f", {cost_usd:.4f} USD"
            self.report(Progress("embed", len(texts) - total + done, len(texts), f"{tokens} tokens{price}"))

        vectors, spent = embedder.embed(
            [texts[number] for number in missing], dimensions=known.dimensions, progress=progress, tick=lease.check
        )
        return known.completed(texts, missing, vectors), replace(spent, reused=len(texts) - spent.embedded)

    def _embedder(self, recipe: Recipe, permits: Permits | None) -> Embedder:
        assert recipe.embedding_model is not None
        return open_embedder(
            self.host,
            recipe.embedding_model,
            chunk_size=recipe.chunk_size,
            batch_size=recipe.batch_size,
            cache=EmbeddingCache(self.settings.home, notice=lambda text: self.report(BuildNotice(text))),
            permits=permits,
            caller=f"knowledge/{self.order.agent}/{self.order.node}",
        )

    def _index(self, store: Store) -> BaseInfo:
        """Share the index of the present base."""
        digest = self._digest()
        self._use(store, digest)
        info = self.indexes.usable(digest)
        if info is None:
            base = loki_file.read(self.file)
            if digest_of(self.file) != digest:
                raise KnowledgeError(f"{self.file} was changed while it was read; try again", "store", transient=True)
            info = self.indexes.share(base, digest)
        self._list(store, info)
        return self._info(info)

    def _digest(self) -> str:
        digest = digest_of(self.file)
        if digest is None:
            raise KnowledgeError(
                f"{self.file} does not exist: knowledge base {self.order.node!r} is not built", "usage"
            )
        return digest

    def _use(self, store: Store, digest: str) -> None:
        """Mark it as used before it is looked up in the index store, so that `gc` does not remove it meanwhile."""
        with _tolerated("a base is not marked as used", digest), store.errors():
            store.knowledge.use(digest)

    def _list(self, store: Store, info: IndexInfo) -> None:
        """Record that it is shared. If the record is lost, the next run that needs the base has it indexed again."""
        agent, node, index_store = self.order.agent, self.order.node, self.indexes.index_store.name
        with _tolerated("a shared base is not listed", info.digest), store.errors():
            store.knowledge.share(info.digest, agent=agent, node=node, bytes_=info.index_bytes, shelf=index_store)

    # Forecast, show and search, which change no base.

    def forecast(self) -> Forecast:
        recipe = self._recipe()
        loaded = self._sources(recipe)
        texts = _texts(loaded)
        estimate = Estimate(0, 0, 0.0)
        if recipe.embedding_model is not None:
            known = _known(self._old(), recipe.embedding_model).rows
            estimate = self._embedder(recipe, None).estimate([text for text in texts if text not in known])
        return Forecast(
            self.order.agent,
            self.order.node,
            recipe.embedding_model,
            {source.path: len(source.chunks) for source in loaded},
            len(texts),
            to_embed=estimate.unknown,
            tokens=estimate.tokens,
            cost_usd=estimate.cost_usd,
            notices=tuple(self.notices),
        )

    def show(self) -> BaseInfo:
        digest = self._digest()
        if self.indexes.index_store.has(digest):
            with suppress(DamagedIndex, UnusableIndex), self.indexes.open(digest) as index:
                return self._info(index.info)
        return self._info_of(loki_file.read(self.file), digest)

    def search(self) -> Mapping[str, Any]:
        question = self.order.question
        if question is None:
            raise KnowledgeError(f"the order to search {self.order.node!r} has no question", "bug")
        digest = self._digest()
        with self._store() as store:
            if self.indexes.usable(digest) is None:
                with leased(store, self.order, self.settings, self.report):
                    self._index(store)
            caller = f"knowledge/{self.order.agent}/{self.order.node}"
            query = BaseQuery(self.host, timeout_s=SEARCH_S, permits=Permits(store, self.settings), caller=caller)
            with self.indexes.open(digest) as index:
                result = query.search(index, question)
                model = index.info.recipe.embedding_model
        hits = [asdict(hit) for hit in result.hits]
        return {"hits": hits, "context": result.context, "sources": list(result.sources), "embedding_model": model}

    def _info(self, info: IndexInfo, spent: EmbeddingUsage = NOTHING) -> BaseInfo:
        return BaseInfo(
            agent=self.order.agent,
            node=self.order.node,
            file=str(self.file),
            digest=info.digest,
            embedding_model=info.recipe.embedding_model,
            dimensions=info.dimensions,
            chunk_size=info.recipe.chunk_size,
            chunk_overlap=info.recipe.chunk_overlap,
            reranker_model=info.recipe.reranker_model,
            top_k=info.recipe.top_k,
            documents=tuple(info.recipe.documents),
            sources=dict(info.sources),
            chunks=info.chunks,
            file_bytes=self.file.stat().st_size,
            index_bytes=info.index_bytes,
            spent=spent,
            notices=tuple(self.notices),
        )

    def _info_of(self, base: Base, digest: str) -> BaseInfo:
        """The information about a base without an index."""
        chunks: Counter[str] = Counter()
        for source in base.sources:
            chunks[source.path] += len(source.chunks)
        dimensions = None if base.vectors is None else base.vectors.shape[1]
        return self._info(IndexInfo(digest, base.recipe, dimensions, chunks.total(), chunks, words=0, index_bytes=0))

    def _store(self) -> Store:
        return Store.open(self.settings, client_name="sleipnir-builder")


def _is_base(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(len(BASES_BEGIN)) == BASES_BEGIN
    return False


def _source(document: Document, recipe: Recipe) -> Source:
    try:
        chunks = split(document.text, document.extension, recipe.chunk_size, recipe.chunk_overlap)
    except ValueError as error:
        raise KnowledgeError(str(error), "usage") from error
    sha256 = hashlib.sha256(document.text.encode(errors="replace")).hexdigest()
    return Source(document.path, sha256, chunks)


def _texts(loaded: Sequence[Source]) -> list[str]:
    return [chunk.text for source in loaded for chunk in source.chunks]


class _Known:
    """The vectors of a base, by their texts."""

    def __init__(self, rows: Mapping[str, int], vectors: Vectors | None) -> None:
        self.rows, self._vectors = rows, vectors

    @property
    def dimensions(self) -> int | None:
        return None if self._vectors is None else self._vectors.shape[1]

    def completed(self, texts: Sequence[str], missing: Sequence[int], vectors: Vectors) -> Vectors:
        """The vectors of all texts: `vectors` of the `missing` ones, and the known ones."""
        if self._vectors is None:
            return vectors
        rows = np.empty((len(texts), self._vectors.shape[1]), np.float32)
        rows[missing] = vectors
        known = [number for number, text in enumerate(texts) if text in self.rows]
        rows[known] = self._vectors[[self.rows[texts[number]] for number in known]]
        return rows


def _known(old: Base | None, model: str) -> _Known:
    if old is None or old.vectors is None or old.recipe.embedding_model != model:
        return _Known({}, None)
    return _Known({chunk.text: row for row, (_, chunk) in enumerate(old.chunks())}, old.vectors)


@contextmanager
def _tolerated(what: str, digest: str) -> Iterator[None]:
    """Log that Redis is away: no build fails because of it."""
    try:
        yield
    except StoreUnavailable as error:
        structlog.get_logger().warning(what, digest=digest, error=str(error))


@contextmanager
def _naming_the_disk(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(error, file) from error
