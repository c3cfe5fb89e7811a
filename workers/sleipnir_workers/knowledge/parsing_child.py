"""In a helper process: documents to text (parsing.py)."""

from __future__ import annotations

from typing import Any

from sleipnir_workers.knowledge import loaders
from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content

MOST_LINKS = 20_000
MOST_LINK_CHARACTERS = 4_096


def answer(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    content = Content(body, request["charset"], request["limit"])
    try:
        match request["do"]:
            case "read":
                notices: list[str] = []
                loaded = loaders.read(content, request["extension"], notice=notices.append)
                return {"extension": loaded.extension, "notices": notices}, _bytes(loaded.text)
            case "part":
                return {}, _bytes(_part(content, request["part"]))
            case "links":
                return {"links": _links(content)}, b""
    except UnreadableContent as error:
        return {"unreadable": str(error)}, b""
    except MemoryError:
        return {"unreadable": "needs more memory than a document may use"}, b""
    raise ValueError(request["do"])


def _part(content: Content, part: str) -> str:
    from sleipnir_workers.knowledge.loaders import web_page

    tree = web_page.parse(content)
    return "" if tree is None else web_page.part_text(tree, part)


def _links(content: Content) -> list[str]:
    from sleipnir_workers.knowledge.loaders import web_page

    tree = web_page.parse(content)
    if tree is None:
        return []
    links: list[str] = []
    for link in tree.iterfind(".//a[@href]"):
        href = link.get("href")
        if len(href) <= MOST_LINK_CHARACTERS:
            links.append(href)
        if len(links) == MOST_LINKS:
            break
    return links


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
