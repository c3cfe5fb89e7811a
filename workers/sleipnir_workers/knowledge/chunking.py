"""Cut a text into chunks, as Loki does (spec 8.4), with the numbers of their lines.

A text is cut at the first of its separators that occurs in it. Small pieces are merged up to the size of a chunk; a
larger one is cut at the remaining separators. The end of a chunk is repeated at the beginning of the next one, up to
`overlap`. All lengths are bytes of UTF-8, so the text is processed as bytes. Pieces are spans of it, generated lazily,
because a document may have tens of megabytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sleipnir_workers.knowledge.base import Chunk
from sleipnir_workers.knowledge.separators import separators_of

Span: TypeAlias = tuple[int, int]

_LONGEST_CHARACTER: Final = 4  # bytes of UTF-8


def split(text: str, extension: str, size: int, overlap: int) -> list[Chunk]:
    """The chunks of a text. A chunk has at most `size` bytes, unless a single character has more.

    `extension` is that of its file, without the dot and in lower case. White space at both ends of a chunk is removed.
    Raises ValueError for a size that is not positive or a negative overlap.
    """
    if size < 1 or overlap < 0:
        raise ValueError(f"chunks of {size} bytes with an overlap of {overlap} are not possible")
    separators = [separator.encode() for separator in separators_of(extension)]
    data = text.encode("utf-8", "replace")  # half a surrogate pair has no bytes
    keep = any(separator.strip() for separator in separators)
    return list(_Splitter(data, size, overlap, keep).split((0, len(data)), separators))


@dataclass(slots=True)
class _Merged:
    """Pieces that will be a chunk. `total` is the bytes of all of them, without the `between` bytes of separators."""

    between: int
    spans: deque[Span] = field(default_factory=deque)
    total: int = 0

    def length_with(self, length: int) -> int:
        return self.total + length + len(self.spans) * self.between

    def drop_first(self) -> None:
        start, end = self.spans.popleft()
        self.total -= end - start


@dataclass
class _Splitter:
    """`keep`: a piece begins with its separator. Otherwise separators are white space, and in no piece."""

    data: bytes
    size: int
    overlap: int
    keep: bool
    line: int = 1
    """The line at `counted`; chunks are in the order of their beginnings, so lines are counted once."""
    counted: int = 0

    def split(self, whole: Span, separators: Sequence[bytes]) -> Iterator[Chunk]:
        at = next(i for i, separator in enumerate(separators) if self.data.find(separator, *whole) >= 0)
        separator, finer = separators[at], separators[at + 1 :]
        if not separator and self.size > _LONGEST_CHARACTER:
            yield from self._windows(whole)
            return
        between = 0 if self.keep else len(separator)
        merged = _Merged(between)
        for piece in self._pieces(whole, separator):
            length = piece[1] - piece[0]
            if length < self.size:
                if merged.length_with(length) > self.size and merged.spans:
                    yield from self._joined(merged, separator)
                    # Keep the overlap, as far as the next piece fits.
                    while merged.total > self.overlap or (merged.spans and merged.length_with(length) > self.size):
                        merged.drop_first()
                merged.spans.append(piece)
                merged.total += length
                continue
            yield from self._joined(merged, separator)
            merged = _Merged(between)
            if finer:
                yield from self.split(piece, finer)
            else:
                yield self._chunk(piece, self.data[slice(*piece)].decode())
        yield from self._joined(merged, separator)

    def _joined(self, merged: _Merged, separator: bytes) -> Iterator[Chunk]:
        if not merged.spans:
            return
        span = (merged.spans[0][0], merged.spans[-1][1])
        between = b"" if self.keep else separator
        text = between.join(self.data[start:end] for start, end in merged.spans).decode().strip()
        if text:
            yield self._chunk(span, text)

    def _windows(self, whole: Span) -> Iterator[Chunk]:
        """The same chunks as from pieces of single characters, without a step for each of them."""
        start, end = whole
        while start < end:
            stop = self._boundary_before(min(start + self.size, end))
            text = self.data[start:stop].decode().strip()
            if text:
                yield self._chunk((start, stop), text)
            if stop == end:
                return
            following = self._boundary_after(stop + 1) - stop
            start = self._boundary_after(max(stop - self.overlap, stop + following - self.size))

    def _pieces(self, whole: Span, separator: bytes) -> Iterator[Span]:
        """The pieces between separators, without empty ones."""
        begin, end = whole
        if not separator:
            while begin < end:
                after = self._boundary_after(begin + 1)
                yield begin, after
                begin = after
            return
        search = begin
        while (position := self.data.find(separator, search, end)) >= 0:
            if position > begin:
                yield begin, position
            search = position + len(separator)
            begin = position if self.keep else search
        # White space at the very end is not a piece: it would only repeat the overlap in a chunk of its own.
        if begin < end and (search < end or separator.strip()):
            yield begin, end

    def _chunk(self, span: Span, text: str) -> Chunk:
        raw = self.data[slice(*span)].decode()
        body = raw.strip() or raw
        before, _, _ = raw.partition(body)
        first = span[0] + len(before.encode())
        self.line += self.data.count(b"\n", self.counted, first)
        self.counted = first
        return Chunk(text, (self.line, self.line + body.count("\n")))

    def _boundary_before(self, at: int) -> int:
        while at < len(self.data) and self._inside_character(at):
            at -= 1
        return at

    def _boundary_after(self, at: int) -> int:
        while at < len(self.data) and self._inside_character(at):
            at += 1
        return at

    def _inside_character(self, at: int) -> bool:
        return self.data[at] & 0xC0 == 0x80
