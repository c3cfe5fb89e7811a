"""Text, Markdown, source code, and files without a loader of their own: valid UTF-8, not converted."""

from __future__ import annotations

from collections.abc import Callable

from sleipnir_workers.knowledge.loaders.content import Content, LoadedText


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    return LoadedText(content.text(), extension)
