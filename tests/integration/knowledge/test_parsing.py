"""Documents that were made to stop whoever reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content
from sleipnir_workers.knowledge.parsing import Parser
from tests.integration.knowledge.loads import loaded
from tests.integration.knowledge.site import Answer, Site

PAGE = b"<html><body><p>It is about ships.</p></body></html>"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "zlib", "unicode_escape", "raw_unicode_escape", "utf-7", "rot13"]
)
@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
def test_a_page_in_what_is_no_encoding_of_the_web_is_refused(tmp_path: Path, charset: str, kind: str) -> None:
    """Finding S11: a megabyte of `punycode` took minutes."""
    with Site({"/page": Answer(b"a" * 2_000_000 + b"-" + b"b" * 2_000_000, f"{kind}; charset={charset}")}) as site:
        load = loaded(tmp_path, [f"{site.url}/page"], private_urls=True)
    assert load.failures == {f"{site.url}/page": f"is in an unsupported encoding, {charset!r}"}


@pytest.mark.timeout(60)
def test_an_element_of_very_many_attributes_is_refused(tmp_path: Path) -> None:
    """Finding S11: libxml2 took a minute for it, and for each link of a crawl again."""
    attributes = b" ".join(b"a%d=1" % number for number in range(200_000))
    (tmp_path / "a.html").write_bytes(b"<p " + attributes + b">text</p>")
    (tmp_path / "b.html").write_bytes(b"<p " + attributes.replace(b"=1", b"") + b">text</p>")
    (tmp_path / "c.html").write_bytes(b"<p " + attributes)
    (tmp_path / "d.html").write_bytes(PAGE + b'<img src="data:image/png;base64,' + b"A" * 3_000_000 + b'==">')
    load = loaded(tmp_path, ["*.html"])
    assert load.failures == {
        str(tmp_path / name): "has an element of more than 5,000 attributes" for name in ("a.html", "b.html", "c.html")
    }
    assert "It is about ships." in load.text


def test_a_document_that_takes_too_long_fails_and_the_others_are_read(tmp_path: Path) -> None:
    """Finding S11. The libraries alone take longer to load than this deadline."""
    (tmp_path / "a.html").write_bytes(PAGE)
    (tmp_path / "b.md").write_text("Also about ships.")
    load = loaded(tmp_path, ["a.html", "b.md"], document_s=0.001)
    assert load.failures == {
        str(tmp_path / "a.html"): "took longer than 0.001 s to read (SLEIPNIR_DOCUMENT_S)",
    }
    assert load.text == "Also about ships."


def test_a_reader_that_dies_costs_one_document() -> None:
    parser = Parser(60)
    try:
        assert "ships" in parser.read(Content(PAGE), "html", print).text
        with pytest.raises(UnreadableContent, match="cannot be read: its reader ended its process"):
            parser._ask(Content(PAGE), do="what it does not know")
        assert "ships" in parser.read(Content(PAGE), "html", print).text
    finally:
        parser.close()
