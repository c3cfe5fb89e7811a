"""Exact search by cosine over a matrix in a file, which all processes of a machine share.

The rows have length 1. They are mapped, not read, block after block, and pages beyond the first blocks are released
after use: they stay in the system's cache for the next search, and a process does not grow by the size of the bases
that it searches.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sleipnir_workers.knowledge.base import Vectors

_BLOCK_BYTES: Final = 4 * 2**20
_KEPT_BYTES: Final = 16 * 2**20  # of each file; a small base stays mapped as a whole


def write(vectors: Vectors, file: Path) -> None:
    """Write the rows, each divided by its length. A row of zeros is kept, and is similar to no other."""
    with file.open("wb") as out:
        header = {"descr": "<f4", "fortran_order": False, "shape": vectors.shape}
        np.lib.format.write_array_header_1_0(out, header)
        for rows in _blocks(*vectors.shape):
            out.write(normalised(vectors[rows]).astype("<f4").tobytes())


def normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    result: Vectors = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return result


class Matrix:
    """The rows in a file. Threads may share it. Raises ValueError for a file that is not such a matrix."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            if np.lib.format.read_magic(opened) != (1, 0):
                raise ValueError("it has an unknown format")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(opened)
            self._start = opened.tell()
            if len(shape) != 2 or fortran or dtype != np.dtype("<f4"):
                raise ValueError("it does not hold rows of float32")
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        count, self.dimensions = shape
        if len(self._map) != self._start + count * self.dimensions * 4:
            raise ValueError("it is truncated")
        self.rows: Vectors = np.frombuffer(self._map, dtype="<f4", offset=self._start).reshape(shape)

    def similarities(self, queries: Vectors) -> NDArray[np.float32]:
        """The cosines of the queries, whose rows have length 1, with all rows: shape (queries, rows)."""
        cosines = np.empty((len(queries), len(self.rows)), dtype=np.float32)
        for rows in _blocks(*self.rows.shape):
            np.matmul(queries, self.rows[rows].T, out=cosines[:, rows])
            self._release(rows)
        return cosines

    def _release(self, rows: slice) -> None:
        """Release the whole pages of these rows beyond _KEPT_BYTES. Another thread that uses them maps them again."""
        row_bytes = self.dimensions * 4
        start = max(self._start + rows.start * row_bytes, _KEPT_BYTES)
        start += -start % mmap.PAGESIZE
        end = self._start + rows.stop * row_bytes
        if start < end:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


def _blocks(count: int, dimensions: int) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (4 * max(dimensions, 1)))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
