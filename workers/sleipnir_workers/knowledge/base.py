"""A knowledge base in memory: the result of a build, and the content of Loki's file and of the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sleipnir.knowledge.recipe import Recipe

    Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Document:
    """A loaded source. Citations name its `path` (absolute, or a URL). `extension`, in lower case and without its dot,
    selects the separators of the splitter (spec 8.4)."""

    path: str
    text: str
    extension: str = "txt"


@dataclass(frozen=True)
class Chunk:
    """`lines` are the first and last line in its source, counted from 1; None: unknown."""

    text: str
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class Source:
    """A document in a base: `sha256` is the hex digest of its text."""

    path: str
    sha256: str
    chunks: Sequence[Chunk]


@dataclass(frozen=True)
class Base:
    """`vectors` has a row per chunk, in the order of `sources` and their chunks: shape (chunks, dimensions), float32.
    None: the base is searched by keywords only. `recipe.documents` are as given, local ones absolute."""

    recipe: Recipe
    sources: Sequence[Source]
    vectors: Vectors | None

    def chunks(self) -> Iterator[tuple[Source, Chunk]]:
        return ((source, chunk) for source in self.sources for chunk in source.chunks)
