"""Reading documents that anybody may have written, in a process that is ended when one takes too long.

Libraries for HTML, PDF and Office files take minutes for documents that were made for that, fill the memory, or end
their process. A child of helper.py reads one document after the other; when one takes longer than `document_s` the
child is killed, the document is unreadable, and the next one gets another child. Text is read here: that takes linear
time. `parsing_child.py` is the child's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sleipnir_workers.helper import HelperFailed, HelperProcesses, TookTooLong
from sleipnir_workers.knowledge import loaders
from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText


class Parser:
    """Safe to use from any thread. `close` ends its children."""

    def __init__(self, document_s: float) -> None:
        self._document_s = document_s
        self._helper = HelperProcesses("sleipnir_workers.knowledge.parsing_child")

    def read(self, content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
        """The text of a document of that extension. `notice` is told what is missing from it. Raises
        UnreadableContent."""
        if loaders.is_plain(extension):
            return loaders.read(content, extension, notice=notice)
        answer, text = self._ask(content, do="read", extension=extension)
        for each in answer["notices"]:
            notice(each)
        return LoadedText(text, answer["extension"])

    def part(self, content: Content, part: str) -> str:
        """Markdown of the element of that id of a page. Raises UnreadableContent."""
        return self._ask(content, do="part", part=part)[1]

    def links(self, content: Content) -> list[str]:
        """Where the links of a page lead, as they are written. Raises UnreadableContent."""
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
