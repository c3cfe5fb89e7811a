"""PDF, by pypdfium2: the text of its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import pypdfium2
from pypdfium2 import raw

from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    try:
        document = pypdfium2.PdfDocument(content.data)
    except pypdfium2.PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise UnreadableContent("is encrypted, and cannot be read without its password") from None
        raise UnreadableContent("is not a PDF, or is damaged") from None
    try:
        pages = [_text(document, number) for number in range(len(document))]
    finally:
        document.close()
    empty = [number for number, text in enumerate(pages, start=1) if not text]
    if len(empty) == len(pages):
        notice("has no text; its pages may be scanned images")
    elif empty:
        notice(f"has no text on {'page' if len(empty) == 1 else 'pages'} {_ranges(empty)}")
    return LoadedText("\n\n".join(filter(None, pages)), "txt")


def _text(document: pypdfium2.PdfDocument, number: int) -> str:
    page = document[number]
    try:
        text_page = page.get_textpage()
        try:
            text = text_page.get_text_bounded()
        finally:
            text_page.close()
    finally:
        page.close()
    return str(text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip()


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1-3, 7`."""
    groups = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{range_[0]}-{range_[-1]}" if len(range_) > 1 else str(range_[0]) for range_ in ranges)
