"""Load the sources of `documents:` as text, one document after the other (spec 8.2, 8.3).

For a local or downloaded file, a command of `document_loaders` for its extension takes precedence over our own loaders
(loaders/). The commands `url` and `recursive_url` replace our own fetching. The output of a command is split as plain
text.

A source that fails is reported and the others are loaded, so that all failures are known at the end: then LoadFailed is
raised, unless the caller wants to go on. Notices do not fail a load.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from sleipnir.knowledge.order import BuildNotice, Progress
from sleipnir.settings import Settings
from sleipnir_workers.knowledge import commands, sources
from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.crawl import CrawlLimits, FetchedPage, crawl
from sleipnir_workers.knowledge.failures import LoadFailed, Unloadable, UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText, limit, size
from sleipnir_workers.knowledge.parsing import Parser
from sleipnir_workers.knowledge.web import Response, Web, is_private

Report: TypeAlias = Callable[[Progress | BuildNotice], None]

URL_LOADER: Final = "url"
CRAWL_LOADER: Final = "recursive_url"


def load(
    documents: Sequence[str],
    folder: Path,
    *,
    loaders: Mapping[str, str],
    settings: Settings,
    report: Report,
    go_on: bool = False,
    leave_out: Collection[Path] = (),
) -> Iterator[Document]:
    """The documents of the agent in `folder`, without empty texts and without duplicate paths.

    `loaders` is `document_loaders`: commands by extension or protocol. `report` gets a Progress of stage "load" before
    each source, with each page of a crawl, and after the last source; and a BuildNotice for each failure as it happens.
    `leave_out` are files that are never documents: the agent's own bases.

    Raises UsageError at once for an invalid entry, and at the end LoadFailed: with all failures, unless `go_on`, and
    with `No RAG files` if there is no document.
    """
    loading = _Loading(folder, loaders, settings, report)
    try:
        yield from loading.documents(documents, go_on, leave_out)
    finally:
        loading.close()


class _Loading:
    def __init__(self, folder: Path, commands: Mapping[str, str], settings: Settings, report: Report) -> None:
        self._folder = folder
        self._commands = commands
        self._settings = settings
        self._max_bytes = settings.max_document_bytes
        self._report = report
        self._failures: list[Unloadable] = []
        self._done = self._total = 0
        self._parser = Parser(settings.document_s)
        self._web = Web(max_bytes=self._max_bytes, refused=(lambda _: False) if settings.private_urls else is_private)

    def documents(self, documents: Sequence[str], go_on: bool, leave_out: Collection[Path]) -> Iterator[Document]:
        origins = sources.find(
            documents, self._folder, self._commands, notice=self._notice, fail=self._fail, leave_out=leave_out
        )
        paths: set[str] = set()
        self._total = len(origins)
        for self._done, origin in enumerate(origins):
            self._progress(_name(origin))
            for document in self._load(origin):
                if document.path not in paths and document.text.strip():
                    paths.add(document.path)
                    yield document
        self._report(Progress("load", self._total, self._total))
        if self._failures and not go_on:
            count = "1 document" if len(self._failures) == 1 else f"{len(self._failures)} documents"
            raise LoadFailed(f"{count} failed to load:", self._failures)
        if not paths:
            raise LoadFailed("No RAG files", self._failures)

    def close(self) -> None:
        self._parser.close()

    def _load(self, origin: sources.Origin) -> Iterator[Document]:
        """The documents of a source. Ends early when the source fails; the failure is recorded."""
        try:
            match origin:
                case sources.CrawlSource(url):
                    yield from self._crawl(url)
                case sources.PageSource(url):
                    yield self._page(url)
                case sources.LoaderSource(loader, path):
                    output = self._run(self._commands[loader], path)
                    yield from commands.documents(output, f"{loader}:{path}", path)
                case sources.FileSource(path):
                    yield self._file(path)
        except Unloadable as failure:
            self._fail(failure)
        except UnreadableContent as error:
            self._fail(Unloadable(_name(origin), str(error)))

    def _file(self, path: Path) -> Document:
        extension = path.suffix[1:].lower() or "txt"
        command = self._commands.get(extension)
        if command is not None:
            return Document(str(path), self._run(command, str(path)))
        loaded = self._read(Content(_content(path, self._max_bytes), limit=self._max_bytes), extension, str(path))
        return Document(str(path), loaded.text, loaded.extension)

    def _page(self, url: str) -> Document:
        command = self._commands.get(URL_LOADER)
        if command is not None:
            return Document(url, self._run(command, url))
        return self._response(url, self._web.get(url))

    def _crawl(self, url: str) -> Iterator[Document]:
        command = self._commands.get(CRAWL_LOADER)
        if command is not None:
            yield from commands.crawled(self._run(command, url))
            return
        for fetched in crawl(url, self._web, self._parser, CrawlLimits.of(self._settings), notice=self._notice):
            self._progress(fetched.url)
            try:
                yield self._crawled(fetched)
            except UnreadableContent as error:
                self._notice(f"{fetched.url}: {error}; this page is left out")

    def _crawled(self, fetched: FetchedPage) -> Document:
        """All pages of a crawl are split as Markdown."""
        if fetched.part is None:
            return Document(fetched.url, self._response(fetched.url, fetched.response).text, "md")
        content = Content(fetched.response.body, fetched.response.charset, self._max_bytes)
        return Document(fetched.url, self._parser.part(content, fetched.part), "md")

    def _response(self, url: str, response: Response) -> Document:
        """The downloaded content, loaded as a file of its kind."""
        extension = response.extension
        command = self._commands.get(extension)
        if command is not None:
            with tempfile.NamedTemporaryFile(prefix="sleipnir-download-", suffix=f".{extension}") as file:
                file.write(response.body)
                file.flush()
                return Document(url, self._run(command, file.name))
        loaded = self._read(Content(response.body, response.charset, self._max_bytes), extension, url)
        return Document(url, loaded.text, loaded.extension)

    def _run(self, command: str, subject: str) -> str:
        return commands.run(command, subject, folder=self._folder, max_bytes=self._max_bytes)

    def _read(self, content: Content, extension: str, path: str) -> LoadedText:
        return self._parser.read(content, extension, lambda text: self._notice(f"{path}: {text}"))

    def _progress(self, what: str) -> None:
        self._report(Progress("load", self._done, self._total, what))

    def _notice(self, text: str) -> None:
        self._report(BuildNotice(text))

    def _fail(self, failure: Unloadable) -> None:
        self._failures.append(failure)
        self._notice(str(failure))


def _content(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file. Raises UnreadableContent; a file that is too large is not read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableContent("is not a file any more")
        if status.st_size > max_bytes:
            raise UnreadableContent(f"is {size(status.st_size)}; {limit(max_bytes)}")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableContent(f"cannot be read ({error.strerror})") from None
    if len(content) > max_bytes:  # growing files, and those of the kernel, whose size is 0
        raise UnreadableContent(f"is more than {size(max_bytes)}; {limit(max_bytes)}")
    return content


def _name(origin: sources.Origin) -> str:
    match origin:
        case sources.CrawlSource(url):
            return f"{url}**"
        case sources.PageSource(url):
            return url
        case sources.LoaderSource(loader, path):
            return f"{loader}:{path}"
        case sources.FileSource(path):
            return str(path)
