"""`https://...**`: which pages are taken, and where a crawl ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir_workers.knowledge import crawl, github
from tests.integration.knowledge.loads import Load, loaded
from tests.integration.knowledge.site import Answer, Site


def page(*links: str, text: str = "") -> str:
    anchors = "".join(f'<li><a href="{link}">to {link}</a></li>' for link in links)
    words = text or "A page of words about horses with eight legs, and about what they eat."
    return f"<html><body><main><p>{words}</p><ul>{anchors}</ul></main></body></html>"


def crawled(folder: Path, site: Site, path: str = "/docs/", **settings: Any) -> Load:
    return loaded(folder, [f"{site.url}{path}**"], **{"private_urls": True, **settings})


def paths(load: Load, site: Site) -> list[str]:
    return [document.path.removeprefix(site.url) for document in load.documents]


def tree(pages: Mapping[str, Answer | str]) -> Site:
    return Site({"/robots.txt": Answer(status=404), **pages})


@pytest.mark.conformance("K14")
def test_a_crawl_takes_the_page_and_what_is_linked_below_it(tmp_path: Path) -> None:
    site = tree(
        {
            "/docs/": page(
                "a", "/docs/b.html?x=1#part", "#top", "../other", "https://elsewhere.invalid/docs/", "mailto:x@y"
            ),
            "/docs/a": page("a/deep", "b.html", "c"),
            "/docs/b.html": page(text="The page of b."),
            "/docs/a/deep": page(text="The deep page."),
            "/docs/c": page(),
            "/other": page(),
        }
    )
    with site:
        load = crawled(tmp_path, site)
    assert paths(load, site) == ["/docs/", "/docs/a", "/docs/b.html", "/docs/a/deep"]  # c is not below /docs/a
    assert {document.extension for document in load.documents} == {"md"}
    assert load.documents[2].text == "The page of b."
    assert (load.notices, load.error) == ([], None)
    assert site.agents == {"curl/8.6.0"}
    assert sorted(site.asked) == sorted(["/robots.txt", *paths(load, site)])


@pytest.mark.conformance("K14")
def test_a_page_and_its_index_are_one(tmp_path: Path) -> None:
    pages = {"/docs/": page("index.html", "x/", "x/index.html", "x"), "/docs/x/": page(), "/docs/x": page()}
    with tree(pages) as site:
        assert paths(crawled(tmp_path, site), site) == ["/docs/", "/docs/x/"]


def test_the_query_of_the_first_url_is_nobodys(tmp_path: Path) -> None:
    with tree({"/docs": page("docs/a"), "/docs/a": page()}) as site:
        assert paths(crawled(tmp_path, site, "/docs?tab=1"), site) == ["/docs", "/docs/a"]
    with tree({"/": page("a"), "/a": page()}) as site:
        assert paths(crawled(tmp_path, site, ""), site) == ["/", "/a"]


def test_failed_pages_are_reported_and_skipped(tmp_path: Path) -> None:
    site = tree(
        {
            "/docs/": page("gone", "broken", "picture", "away", "good"),
            "/docs/broken": Answer("oops", status=500),
            "/docs/picture": Answer(b"\x89PNG", "image/png"),
            "/docs/away": Answer.redirect("/login"),
            "/docs/good": page(),
            "/login": page(),
        }
    )
    with site:
        load = crawled(tmp_path, site)
    assert paths(load, site) == ["/docs/", "/docs/good"]
    assert load.error is None
    assert [notice.replace(site.url, "") for notice in load.notices] == [
        "/docs/gone: Invalid status: 404 Not Found; this page is left out",
        "/docs/broken: Invalid status: 500 Internal Server Error; this page is left out",
        "/docs/picture: Unexpected media type 'image/png'; this page is left out",
        "/docs/away: is not below /docs/ (redirected to /login); this page is left out",
    ]
    assert "/login" not in site.asked


def test_a_first_page_that_fails_is_a_failure(tmp_path: Path) -> None:
    with tree({"/docs/": Answer("oops", status=500)}) as site:
        assert crawled(tmp_path, site).failures == {f"{site.url}/docs/": "Invalid status: 500 Internal Server Error"}


def test_a_first_page_that_is_somewhere_else_takes_the_crawl_there(tmp_path: Path) -> None:
    with tree({"/new/docs/": page("a"), "/new/docs/a": page()}) as there, Site({}) as here:
        here.pages["/robots.txt"] = "User-agent: *\nDisallow: /private"
        here.pages["/docs/"] = Answer.redirect(f"{there.url}/new/docs/")
        load = crawled(tmp_path, here)
    assert paths(load, there) == ["/new/docs/", "/new/docs/a"]
    assert there.asked == ["/robots.txt", "/new/docs/", "/new/docs/a"]


def test_pages_that_are_no_html_are_loaded_too_and_empty_ones_are_dropped(tmp_path: Path) -> None:
    site = tree(
        {
            "/docs/": page("notes.md", "empty"),
            "/docs/notes.md": Answer("# Notes\n", "text/markdown"),
            "/docs/empty": "<html><body></body></html>",
        }
    )
    with site:
        load = crawled(tmp_path, site)
    assert paths(load, site) == ["/docs/", "/docs/notes.md"]
    assert load.documents[1].text == "# Notes\n"


def test_a_crawl_does_not_leave_the_public_web(tmp_path: Path) -> None:
    with tree({"/docs/": page()}) as site:
        [reason] = crawled(tmp_path, site, private_urls=False).failures.values()
    assert "127.0.0.1 is not a public address" in reason
    assert site.asked == []


def test_each_page_of_a_crawl_is_progress(tmp_path: Path) -> None:
    with tree({"/docs/": page("a"), "/docs/a": page()}) as site:
        load = crawled(tmp_path, site)
    told = [(each.done, each.total, each.what.replace(site.url, "")) for each in load.progress]
    assert told == [(0, 1, "/docs/**"), (0, 1, "/docs/"), (0, 1, "/docs/a"), (1, 1, "")]


def test_the_case_of_a_host_does_not_matter(tmp_path: Path) -> None:
    with tree({"/docs/": page("http://LOCALHOST/docs/a", "b"), "/docs/b": page()}) as site:
        load = loaded(tmp_path, [f"HTTP://LocalHost:{site.port}/docs/**"], private_urls=True)
    assert [document.path for document in load.documents] == [
        f"http://localhost:{site.port}/docs/{name}" for name in ("", "b")
    ]


# robots.txt


def test_robots_txt_is_respected(tmp_path: Path) -> None:
    site = Site(
        {
            "/robots.txt": Answer("User-agent: *\nDisallow: /docs/private\n", "text/plain"),
            "/docs/": page("private/a", "open", "moved"),
            "/docs/moved": Answer.redirect("/docs/private/b"),
            "/docs/open": page(),
            "/docs/private/a": page(),
            "/docs/private/b": page(),
        }
    )
    with site:
        load = crawled(tmp_path, site)
    assert paths(load, site) == ["/docs/", "/docs/open"]
    assert not [path for path in site.asked if "private" in path]
    assert [notice.replace(site.url, "") for notice in load.notices] == [
        "/docs/private/a: its robots.txt does not allow it; this page is left out",
        "/docs/moved: its robots.txt does not allow it (redirected to /docs/private/b); this page is left out",
    ]


@pytest.mark.parametrize(
    ("robots", "reason"),
    [
        (Answer("User-agent: curl\nDisallow: /\n"), "its robots.txt does not allow it"),
        (Answer(status=403), "its robots.txt does not allow it"),
        (Answer(status=503), "its robots.txt cannot be fetched (Invalid status: 503 Service Unavailable)"),
    ],
)
def test_a_server_that_wants_no_crawl_gets_none(tmp_path: Path, robots: Answer, reason: str) -> None:
    with Site({"/robots.txt": robots, "/docs/": page()}) as site:
        assert crawled(tmp_path, site).failures == {f"{site.url}/docs/": reason}
    assert site.asked == ["/robots.txt"]


def test_a_single_named_page_is_no_crawl(tmp_path: Path) -> None:
    with Site({"/robots.txt": "User-agent: *\nDisallow: /", "/docs/": page()}) as site:
        assert loaded(tmp_path, [f"{site.url}/docs/"], private_urls=True).error is None
    assert site.asked == ["/docs/"]


# GitHub


def listing(*paths: str, **more: Any) -> Answer:
    entries = [{"path": path, "type": "blob"} for path in paths]
    return Answer(json.dumps({"tree": [{"path": "docs.md", "type": "tree"}, *entries], **more}), "application/json")


@pytest.fixture
def github_site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site({})
    monkeypatch.setattr(github, "API", f"{site.url}/api")
    monkeypatch.setattr(github, "RAW", f"{site.url}/raw")
    return site


def test_the_markdown_files_of_a_repository_on_github_are_taken(tmp_path: Path, github_site: Site) -> None:
    names = ("README.md", "docs/a b.md", "docs/b.md", "docs/CHANGELOG.md", "License.md", "changes.md", "setup.py")
    github_site.pages["/api/repos/o/r/git/trees/main"] = listing(*names)
    for name in ("README.md", "docs/a%20b.md", "docs/b.md"):
        github_site.pages[f"/raw/o/r/main/{name}"] = Answer(f"# {name}\n", "text/plain; charset=utf-8")
    with github_site:
        load = loaded(tmp_path, ["https://github.com/o/r/tree/main**"], private_urls=True)
        below = loaded(tmp_path, ["https://github.com/o/r/tree/main/docs/**"], private_urls=True, crawl_pages=1)
    root = f"{github_site.url}/raw/o/r/main"
    assert [(each.path, each.text, each.extension) for each in load.documents] == [
        (f"{root}/{name}", f"# {name}\n", "md") for name in ("README.md", "docs/a%20b.md", "docs/b.md")
    ]
    assert load.notices == []
    assert github_site.asked[0] == "/api/repos/o/r/git/trees/main?recursive=1"
    assert [each.path for each in below.documents] == [f"{root}/docs/a%20b.md"]
    assert below.notices == [
        "https://github.com/o/r/tree/main/docs/**: stopped at 1 pages (SLEIPNIR_CRAWL_PAGES); 1 known pages were not "
        "fetched"
    ]


def test_what_githubs_api_does_not_give_is_named(tmp_path: Path, github_site: Site) -> None:
    github_site.pages["/api/repos/o/large/git/trees/main"] = listing(truncated=True)
    github_site.pages["/api/repos/o/odd/git/trees/main"] = Answer("[]", "application/json")
    with github_site:
        none = loaded(tmp_path, ["https://github.com/o/none/tree/main**"], private_urls=True)
        odd = loaded(tmp_path, ["https://github.com/o/odd/tree/main**"], private_urls=True)
        large = loaded(tmp_path, ["https://github.com/o/large/tree/main**"], private_urls=True)
    assert list(none.failures.values()) == ["Invalid status: 404 Not Found"]
    assert list(odd.failures.values()) == ["is not a list of files of GitHub's API"]
    api = f"{github_site.url}/api/repos/o/large/git/trees/main?recursive=1"
    assert large.notices == [
        f"{api}: GitHub lists only a part of a repository of this size",
        "https://github.com/o/large/tree/main**: there is no Markdown file, so it is left out",
    ]


def test_of_a_wiki_on_github_its_authors_words_are_taken_and_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiki = (
        '<html><body><p>Sign in</p><div id="wiki-body"><h1>Home</h1><a href="/o/r/wiki/{}">next</a></div></body></html>'
    )
    site = tree({"/o/r/wiki": wiki.format("Page"), "/o/r/wiki/Page": wiki.format("Page/_history")})
    monkeypatch.setattr(crawl, "WIKI", re.compile(re.escape(site.url) + "/o/r/wiki"))
    with site:
        load = crawled(tmp_path, site, "/o/r/wiki")
    assert paths(load, site) == ["/o/r/wiki", "/o/r/wiki/Page"]
    assert load.documents[0].text == "# Home\n\nnext"
    assert "/o/r/wiki/Page/_history" not in site.asked


# Limits


def endless() -> Site:
    """Each page links to two more below it, for ever."""

    class Endless(dict[str, Answer | str]):
        def get(self, path: str, default: Any = None) -> Any:
            return super().get(path) or page(f"{path}a/", f"{path}b/")

    site = tree({})
    site.pages = Endless(site.pages)
    return site


def test_a_crawl_ends_at_its_number_of_pages(tmp_path: Path) -> None:
    with endless() as site:
        load = crawled(tmp_path, site, crawl_pages=7, crawl_depth=100)
    assert len(load.documents) == 7
    assert load.notices == [
        f"{site.url}/docs/**: stopped at 7 pages (SLEIPNIR_CRAWL_PAGES); 8 known pages were not fetched"
    ]


def test_a_crawl_ends_at_its_depth(tmp_path: Path) -> None:
    with endless() as site:
        load = crawled(tmp_path, site, crawl_depth=2)
    assert paths(load, site)[:3] == ["/docs/", "/docs/a/", "/docs/b/"]
    assert len(load.documents) == 7
    [notice] = load.notices
    limit = "stopped at 2 links away from the first page (SLEIPNIR_CRAWL_DEPTH)"
    assert notice == f"{site.url}/docs/**: {limit}; 8 known pages were not fetched"


def test_a_crawl_ends_at_its_number_of_bytes(tmp_path: Path) -> None:
    with endless() as site:
        load = crawled(tmp_path, site, crawl_depth=100, crawl_bytes=2000)
    assert 5 <= len(load.documents) <= 10
    [notice] = load.notices
    assert notice.startswith(f"{site.url}/docs/**: stopped at 1.953 kB (SLEIPNIR_CRAWL_BYTES); ")


def test_a_crawl_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with endless() as site:
        load = crawled(tmp_path, site, crawl_depth=100, crawl_pages=100_000, crawl_s=0.3)
    assert load.documents
    assert f"{site.url}/docs/**: stopped at 0.3 s (SLEIPNIR_CRAWL_S); " in load.notices[-1]
