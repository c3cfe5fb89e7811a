"""Crawl `https://...**`: the page, and the pages that are linked below it (spec 8.3).

A page's links are followed if they begin with the URL of that page, by their path only; `x/` and `x/index.html` are
one page. Five are fetched at a time. robots.txt is respected for our user agent, and a server whose robots.txt cannot
be fetched is not crawled. A page that fails is reported and skipped; so is one that redirects to a page that is not
below the first one. A crawl ends when no page is left or at one of its limits, which is reported too.

Of the pages of `https://github.com/OWNER/REPOSITORY/wiki**` only the authors' text is taken, without histories. For
crawls of a repository's files see github.py.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit
from urllib.robotparser import RobotFileParser

from sleipnir.settings import Settings
from sleipnir_workers.knowledge import github
from sleipnir_workers.knowledge.failures import Unloadable, UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, size
from sleipnir_workers.knowledge.parsing import Parser
from sleipnir_workers.knowledge.web import TIMEOUT_S, USER_AGENT, BadStatus, Response, Web

BATCH: Final = 5
ROBOTS_BYTES: Final = 500 * 1024
"""The part of a robots.txt that must be read (RFC 9309); each page is compared with all of it."""

WIKI = re.compile(r"https://github\.com/[^/]+/[^/]+/wiki/?")


@dataclass(frozen=True)
class CrawlLimits:
    """The number of pages, the links away from the first one, the total of bytes, and the seconds."""

    pages: int
    depth: int
    bytes_: int
    seconds: float

    @classmethod
    def of(cls, settings: Settings) -> CrawlLimits:
        return cls(settings.crawl_pages, settings.crawl_depth, settings.crawl_bytes, settings.crawl_s)


@dataclass(frozen=True)
class Rules:
    """`part` is the id of the element to take of each page, None: all. Paths that end in `excluded` are skipped."""

    part: str | None = None
    excluded: frozenset[str] = frozenset()


def rules_for(url: str) -> Rules:
    if WIKI.fullmatch(url):
        return Rules(part="wiki-body", excluded=frozenset({"_history"}))
    return Rules()


@dataclass(frozen=True)
class FetchedPage:
    """`url` is the linked one; that of the response is the end of its redirects. `part`: as in Rules."""

    url: str
    response: Response
    part: str | None


class _BytesUsedUp(Exception):
    """The bytes of this crawl are used up."""


def crawl(
    url: str, web: Web, parser: Parser, limits: CrawlLimits, *, notice: Callable[[str], None]
) -> Iterator[FetchedPage]:
    """The pages, the first one first. Raises Unloadable if that one cannot be fetched: then there are no pages."""
    yield from _Crawl(url, web, parser, limits, notice).pages()


class _Crawl:
    def __init__(self, url: str, web: Web, parser: Parser, limits: CrawlLimits, notice: Callable[[str], None]) -> None:
        self._url = url
        self._parser = parser
        self._web = web
        self._limits = limits
        self._notice = notice
        self._rules = rules_for(url)
        self._origin = ""
        self._base = ""
        self._robots = RobotFileParser()
        self._paths: list[tuple[str, int]] = []
        """Paths with their distance in links; fetched ones stay at the front."""
        self._known_paths: set[str] = set()
        self._bytes = 0
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + limits.seconds
        self._too_deep = 0

    def pages(self) -> Iterator[FetchedPage]:
        tree = github.tree_of(self._url)
        done, skipped = 0, 0
        if tree is None:
            yield self._first()
            done = 1
        else:
            self._use_tree(tree)
        with ThreadPoolExecutor(BATCH, thread_name_prefix="crawl") as threads:
            while done < len(self._paths) and self._limit(done) is None:
                batch = self._paths[done : min(done + BATCH, self._limits.pages)]
                done += len(batch)
                for (path, depth), outcome in zip(batch, list(threads.map(self._fetch, batch)), strict=True):
                    match outcome:
                        case Response():
                            self._follow(self._origin + path, outcome, depth)
                            yield FetchedPage(self._origin + path, outcome, self._rules.part)
                        case Unloadable():
                            self._notice(f"{outcome}; this page is left out")
                        case _BytesUsedUp():
                            skipped += 1
        skipped += len(self._paths) - done
        if skipped:
            self._notice(f"{self._url}**: stopped at {self._limit(done)}; {skipped} known pages were not fetched")
        if self._too_deep:
            limit = f"{self._limits.depth} links away from the first page (SLEIPNIR_CRAWL_DEPTH)"
            self._notice(f"{self._url}**: stopped at {limit}; {self._too_deep} known pages were not fetched")

    def _first(self) -> FetchedPage:
        """The first page. If it redirects, the crawl continues at its target."""
        try:
            response = self._web.get(
                urlsplit(self._url)._replace(query="").geturl(), check=self._set_origin, count=self._count
            )
        except _BytesUsedUp:
            raise Unloadable(self._url, f"is larger than {size(self._limits.bytes_)} (SLEIPNIR_CRAWL_BYTES)") from None
        path = urlsplit(response.url).path or "/"
        self._paths.append((path, 0))
        self._known_paths.add(_same(path))
        self._follow(self._origin + path, response, 0)
        return FetchedPage(self._origin + path, response, self._rules.part)

    def _use_tree(self, tree: github.Tree) -> None:
        """Instead of a first page: the files of a repository, to which robots.txt does not apply."""
        self._origin = github.RAW
        self._base = tree.raw
        self._robots.parse([])
        path = tree.raw.removeprefix(github.RAW)
        self._paths = [(path + file, 0) for file in github.markdown_files(tree, self._web, notice=self._notice)]
        if not self._paths:
            self._notice(f"{self._url}**: there is no Markdown file, so it is left out")

    def _set_origin(self, url: str) -> None:
        """Crawl the server of this URL, and there the pages below the page's directory."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc.lower()}"
        if origin != self._origin:
            self._origin = origin
            self._robots = self._read_robots()
        self._base = origin + (parts.path or "/")[: parts.path.rfind("/") + 1]
        self._check_robots(url)

    def _limit(self, done: int) -> str | None:
        """The limit that is reached after `done` pages; None: no limit."""
        if done >= self._limits.pages:
            return f"{self._limits.pages} pages (SLEIPNIR_CRAWL_PAGES)"
        if self._bytes >= self._limits.bytes_:
            return f"{size(self._limits.bytes_)} (SLEIPNIR_CRAWL_BYTES)"
        if time.monotonic() >= self._deadline:
            return f"{self._limits.seconds:g} s (SLEIPNIR_CRAWL_S)"
        return None

    def _fetch(self, item: tuple[str, int]) -> Response | Unloadable | _BytesUsedUp:
        path, _ = item
        left_s = max(0.1, self._deadline - time.monotonic())
        try:
            return self._web.get(
                self._origin + path,
                timeout_s=min(TIMEOUT_S, left_s),
                check=self._check,
                count=self._count,
            )
        except (Unloadable, _BytesUsedUp) as error:
            return error

    def _check(self, url: str) -> None:
        if not url.startswith(self._base):
            raise Unloadable(url, f"is not below {self._base}")
        self._check_robots(url)

    def _check_robots(self, url: str) -> None:
        if not self._robots.can_fetch(USER_AGENT, url):
            raise Unloadable(url, "its robots.txt does not allow it")

    def _count(self, length: int) -> None:
        with self._lock:
            self._bytes += length
            if self._bytes > self._limits.bytes_:
                raise _BytesUsedUp

    def _follow(self, url: str, response: Response, depth: int) -> None:
        """Add the links of a page that are new and may be followed."""
        if response.media_type not in ("text/html", "application/xhtml+xml"):
            return
        for path in self._links(url, response):
            if _same(path) in self._known_paths or path.rstrip("/").rpartition("/")[2] in self._rules.excluded:
                continue
            self._known_paths.add(_same(path))
            if depth < self._limits.depth:
                self._paths.append((path, depth + 1))
            else:
                self._too_deep += 1

    def _links(self, url: str, response: Response) -> Iterator[str]:
        try:
            links = self._parser.links(Content(response.body, response.charset))
        except UnreadableContent:  # reported when its text is read
            return
        for link in links:
            try:
                target = urlsplit(urljoin(response.url, link))
            except ValueError:
                continue
            absolute = target._replace(netloc=target.netloc.lower(), query="", fragment="").geturl()
            if absolute.startswith(url):
                yield target.path

    def _read_robots(self) -> RobotFileParser:
        """As in RFC 9309: without such a file, all is allowed. Raises Unloadable if there is no answer."""
        robots = RobotFileParser()
        try:
            text = self._web.get(f"{self._origin}/robots.txt").body[:ROBOTS_BYTES].decode(errors="replace")
        except BadStatus as error:
            if error.code >= 500:
                raise Unloadable(self._url, f"its robots.txt cannot be fetched ({error.reason})") from None
            text = "User-agent: *\nDisallow: /" if error.code in (401, 403) else ""
        except Unloadable as error:
            raise Unloadable(self._url, f"its robots.txt cannot be fetched ({error.reason})") from None
        robots.parse(text.splitlines())
        return robots


def _same(path: str) -> str:
    return path.removesuffix("index.html").rstrip("/") or "/"
