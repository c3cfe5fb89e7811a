"""Read untrusted documents in a process that is killed when one takes too long.

Hostile documents make libraries for HTML, PDF and Office files run for minutes, fill the memory, or end their process.
A child of processes/helper.py reads one document after the other. When one takes longer than `document_s`, the child is
killed, the document is unreadable, and the next one gets another child. Text is read in this process, as that takes
linear time. `parsing_child.py` is the child's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sleipnir_workers.knowledge import loaders
from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText
from sleipnir_workers.processes.helper import HelperFailed, HelperProcesses, TookTooLong


class Parser:
    """Safe to use from any thread. `close` ends its children."""

    def __init__(self, document_s: float) -> None:
        self._document_s = document_s
        self._helper = HelperProcesses("sleipnir_workers.knowledge.parsing_child")

    def read(self, content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
        """The text of a document with this extension. `notice` gets messages about parts that are missing from it.
        Raises UnreadableContent."""
        if loaders.is_plain(extension):
            return loaders.read(content, extension, notice=notice)
        answer, text = self._ask(content, do="read", extension=extension)
        for message in answer["notices"]:
            notice(message)
        return LoadedText(text, answer["extension"])

    def part(self, content: Content, part: str) -> str:
        """Markdown of the page's element with this id. Raises UnreadableContent."""
        return self._ask(content, do="part", part=part)[1]

    def links(self, content: Content) -> list[str]:
        """The targets of a page's links, as they are written. Raises UnreadableContent."""
        return [str(link) for link in self._ask(content, do="links")[0]["links"]]

    def close(self) -> None:
        self._helper.close()

    def _ask(self, content: Content, **request: Any) -> tuple[dict[str, Any], str]:
        request |= {"charset": content.charset, "limit": content.limit}
        try:
            answer, text = self._helper.ask(request, content.data, timeout_s=self._document_s)
        except TookTooLong:
            raise UnreadableContent(f"took longer than {self._document_s:g} s to read (SLEIPNIR_DOCUMENT_S)") from None
        except HelperFailed as error:
            raise UnreadableContent(f"cannot be read: its reader {error}") from None
        if "unreadable" in answer:
            raise UnreadableContent(answer["unreadable"])
        return answer, text.decode(errors="surrogatepass")
