"""DOCX, by mammoth: headings, lists and tables by the document's styles, as Markdown. Images are left out."""

from __future__ import annotations

from collections.abc import Callable

import mammoth

from sleipnir_workers.knowledge.loaders.content import Content, LoadedText
from sleipnir_workers.knowledge.loaders.markdown import markdown


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    converted = mammoth.convert_to_html(content.archive(), convert_image=lambda _: [])
    text = markdown(converted.value)
    if not text:
        notice("has no text")
    return LoadedText(text, "md")
