"""One GET: what it gives, where it does not go, and when it gives up."""

from __future__ import annotations

import contextlib
import gzip
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.failures import Unloadable, UnreadableContent
from sleipnir_workers.knowledge.web import BadStatus, Response, Web, is_private
from tests.integration.knowledge.loads import loaded
from tests.integration.knowledge.papers import docx, pdf
from tests.integration.knowledge.site import Answer, Site

Write = Callable[[bytes], Any]


def web(max_bytes: int = 10_000, **options: Any) -> Web:
    return Web(max_bytes=max_bytes, **{"refused": lambda address: False, **options})


def failure(site: Site, path: str, *, client: Web | None = None, **options: Any) -> str:
    """Without the address of the site."""
    with pytest.raises(Unloadable) as error:
        (client or web()).get(site.url + path, **options)
    assert error.value.path == site.url + path
    return error.value.reason.replace(site.url, "SITE")


# What it gives


def test_the_body_comes_with_its_kind_and_where_the_redirects_ended() -> None:
    site = Site(
        {
            "/old": Answer.redirect("new?x=1"),
            "/new": Answer(b"caf\xe9", "Text/HTML; charset=ISO-8859-1"),
        }
    )
    with site:
        assert web().get(f"{site.url}/old#part") == Response(
            f"{site.url}/new?x=1", "text/html", "iso-8859-1", b"caf\xe9"
        )
    assert site.asked == ["/old", "/new?x=1"]
    assert site.agents == {"curl/8.6.0"}


def test_letters_that_a_url_may_not_have_are_escaped() -> None:
    with Site({"/caf%C3%A9%20au/lait": "words"}) as site:
        assert web().get(f"{site.url}/café au/lait").body == b"words"


def test_a_host_may_have_such_letters_too() -> None:
    asked = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    with Site({"/": "words"}) as site:
        assert web(resolve=resolve).get(f"http://Bücher.example:{site.port}/").body == b"words"
    assert asked == ["xn--bcher-kva.example"]


@pytest.mark.parametrize(
    ("kind", "path", "extension"),
    [
        ("text/html", "/a", "html"),
        ("application/xhtml+xml", "/a", "html"),
        ("application/pdf", "/a.html", "pdf"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "/a", "docx"),
        ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "/a", "xlsx"),
        ("application/vnd.openxmlformats-officedocument.presentationml.presentation", "/a", "pptx"),
        ("application/vnd.oasis.opendocument.text", "/a", "odt"),
        ("application/vnd.oasis.opendocument.spreadsheet", "/a", "ods"),
        ("application/vnd.oasis.opendocument.presentation", "/a", "odp"),
        ("application/rtf", "/a", "rtf"),
        ("text/javascript", "/a", "js"),
        ("application/json", "/a", "json"),
        ("text/csv", "/a", "csv"),
        ("text/markdown", "/a", "md"),
        ("text/x-rst", "/a", "x-rst"),
        ("text/plain", "/a/READ.me/b", "txt"),
        ("text/plain", "/README.MD", "md"),
        ("application/octet-stream", "/a.docx", "docx"),
    ],
)
def test_the_type_of_a_page_is_that_of_the_response_header(kind: str, path: str, extension: str) -> None:
    assert Response(f"https://x.org{path}?y=z.csv", kind, None, b"").extension == extension


@pytest.mark.parametrize("kind", ["image/png", "audio/ogg", "video/mp4"])
def test_pictures_sound_and_films_are_no_documents(kind: str) -> None:
    with pytest.raises(UnreadableContent, match=f"Unexpected media type '{kind}'"):
        _ = Response("https://x.org/a", kind, None, b"").extension


# Where it does not go


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "255.255.255.255", "224.0.0.1", "240.0.0.1", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fec0::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_known(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_addresses_that_are_public_are_known_too(address: str) -> None:
    assert not is_private(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0177.0.0.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"])
def test_a_private_address_is_refused_in_any_notation(tmp_path: Path, host: str) -> None:
    load = loaded(tmp_path, [f"http://{host}:9/x"])
    [reason] = load.failures.values()
    assert "is not a public address; SLEIPNIR_PRIVATE_URLS=1 allows it" in reason or "is not known" in reason


def test_a_redirect_to_a_private_address_is_refused_and_nothing_is_asked_there() -> None:
    with Site({"/key": "secret"}) as private, Site({}) as public:
        target = f"http://127.0.0.2:{private.port}/key"
        public.pages["/a"] = Answer.redirect(target)
        client = web(refused=lambda address: address == "127.0.0.2")
        expected = f"127.0.0.2 is not a public address; SLEIPNIR_PRIVATE_URLS=1 allows it (redirected to {target})"
        assert failure(public, "/a", client=client) == expected
        assert private.asked == []


def test_one_private_address_among_those_of_a_name_is_enough() -> None:
    client = web(refused=is_private, resolve=lambda host, port: ["8.8.8.8", "10.0.0.7"])
    with pytest.raises(Unloadable, match=r"intern\.example is 10\.0\.0\.7, which is not a public address"):
        client.get("http://intern.example/")


def test_a_name_is_resolved_once_and_that_address_is_connected_to() -> None:
    """A name that means another address a moment later (DNS rebinding) gains nothing."""
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.9"]

    with Site({"/": "words"}) as site:
        client = web(refused=lambda address: address != "127.0.0.1", resolve=resolve)
        assert client.get(f"http://turncoat.example:{site.port}").body == b"words"
    assert asked == [("turncoat.example", site.port)]


def test_the_first_of_several_addresses_that_answers_is_used() -> None:
    with Site({"/": "words"}) as site:
        client = web(resolve=lambda host, port: ["127.0.0.77", "127.0.0.1"])
        assert client.get(f"http://two.example:{site.port}/").body == b"words"


def test_a_url_may_not_lead_to_files() -> None:
    with Site({"/a": Answer.redirect("file:///etc/passwd")}) as site:
        expected = "is not an address of the web (http or https) (redirected to file:///etc/passwd)"
        assert failure(site, "/a") == expected


def test_redirects_in_a_circle_end() -> None:
    with Site({"/a": Answer.redirect("/b"), "/b": Answer.redirect("/a")}) as site:
        assert failure(site, "/a") == "redirects more than 10 times (redirected to SITE/b)"


def test_who_looks_at_each_url_may_stop_it() -> None:
    seen = []

    def look(url: str) -> None:
        seen.append(url)
        if url.endswith("/b"):
            raise Unloadable(url, "not that one")

    with Site({"/a": Answer.redirect("/b"), "/b": "words"}) as site:
        assert failure(site, "/a", check=look) == "not that one (redirected to SITE/b)"
    assert seen == [f"{site.url}/a", f"{site.url}/b"]
    assert site.asked == ["/a"]


# When it gives up


@pytest.mark.parametrize(
    ("status", "said"), [(500, "500 Internal Server Error"), (404, "404 Not Found"), (304, "304 Not Modified")]
)
def test_another_status_than_2xx_is_named(status: int, said: str) -> None:
    with Site({"/a": Answer("oops", status=status)}) as site, pytest.raises(BadStatus) as error:
        web().get(f"{site.url}/a")
    assert (error.value.reason, error.value.code) == (f"Invalid status: {said}", status)


def test_a_body_with_a_too_large_content_length_is_not_read() -> None:
    with Site({"/a": Answer(b"x", headers={"Content-Length": str(2**30)})}) as site:
        assert failure(site, "/a") == "is 1 GB; at most 9.766 kB are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"


def test_a_body_that_never_ends_is_given_up_at_the_limit() -> None:
    def for_ever(write: Write) -> None:
        while True:
            write(b"more " * 1000)

    with Site({"/a": Answer(for_ever)}) as site:
        expected = "is more than 9.766 kB; at most 9.766 kB are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
        assert failure(site, "/a") == expected


def test_a_body_that_is_small_only_on_the_way_is_given_up_at_the_limit() -> None:
    body = gzip.compress(bytes(50_000_000))
    with Site({"/a": Answer(body, headers={"Content-Encoding": "gzip"})}) as site:
        assert failure(site, "/a", client=web(2**20)).startswith("is more than 1 MB")


def trickle(write: Write) -> None:
    while True:
        write(b".")
        time.sleep(0.01)


def test_a_body_that_comes_a_byte_at_a_time_is_given_up_in_time() -> None:
    with Site({"/a": Answer(trickle)}) as site:
        assert failure(site, "/a", timeout_s=0.3) == "took longer than 0.3 s"


def test_a_certificate_must_be_that_of_the_name_though_an_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bells.example"
    names = ["-addext", "subjectAltName=DNS:bells.example", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client = web(resolve=lambda host, port: ["127.0.0.1"])
    site = Site({"/": "words"})
    site.encrypt(key, certificate)
    with site:
        assert client.get(f"https://bells.example:{site.port}/").body == b"words"
        with pytest.raises(Unloadable, match=r"its certificate is not valid: Hostname mismatch"):
            client.get(f"https://other.example:{site.port}/")
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(Unloadable, match=r"its certificate is not valid: self-signed certificate"):
            web(resolve=lambda host, port: ["127.0.0.1"]).get(f"https://bells.example:{site.port}/")


@contextlib.contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Says to each connection what it likes. The URL of it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with contextlib.suppress(OSError), connection:
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/a"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_headers_that_come_a_byte_at_a_time_are_given_up_in_time() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        trickle(connection.sendall)

    with server(answer) as url, pytest.raises(Unloadable, match=r"took longer than 0\.3 s"):
        web().get(url, timeout_s=0.3)


def test_a_server_without_an_answer_is_abandoned_after_the_timeout() -> None:
    def answer(connection: socket.socket) -> None:
        while connection.recv(10_000):
            pass

    with server(answer) as url, pytest.raises(Unloadable, match=r"took longer than 0\.3 s"):
        web().get(url, timeout_s=0.3)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "invalid answer (BadStatusLine: SSH-2.0-OpenSSH"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "invalid answer (IncompleteRead"),
        (b"", "invalid answer (RemoteDisconnected"),
    ],
)
def test_a_server_that_breaks_off_or_is_none_is_named(said: bytes, expected: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(said)

    with server(answer) as url, pytest.raises(Unloadable) as error:
        web().get(url)
    assert error.value.reason.startswith(expected)


def test_an_address_without_a_server_is_named() -> None:
    with Site({}) as site:
        pass
    assert failure(site, "/a") == "no answer: Connection refused"


def test_a_host_that_is_not_known_is_named() -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Unloadable, match=r"the host 'x\.invalid' is not known"):
        web(resolve=resolve).get("http://x.invalid/")


@pytest.mark.parametrize("url", ["http://", "http://[::1/", "https://a:b:c/", "http://x.org:99999/"])
def test_a_value_that_is_no_url_is_named(url: str) -> None:
    with pytest.raises(Unloadable, match="is not"):
        web().get(url)


# Documents from the web


def test_pages_become_documents_by_their_kind(tmp_path: Path) -> None:
    site = Site(
        {
            "/page": "<html><body><main><h1>Bells</h1><p>They ring at noon.</p></main></body></html>",
            "/paper": Answer(pdf(["A paper."]), "application/pdf"),
            "/notes.rst": Answer("Notes\n=====\n", "text/plain"),
            "/word": Answer(
                docx("Word", "Text.", []), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
            ),
            "/latin": Answer(b"caf\xe9", "text/plain; charset=latin-1"),
        }
    )
    with site:
        load = loaded(tmp_path, [site.url + path for path in site.pages], private_urls=True)
    assert load.error is None
    assert load.documents == [
        Document(f"{site.url}/page", "# Bells\n\nThey ring at noon.", "md"),
        Document(f"{site.url}/paper", "A paper.", "txt"),
        Document(f"{site.url}/notes.rst", "Notes\n=====\n", "rst"),
        Document(f"{site.url}/word", "# Word\n\nText.", "md"),
        Document(f"{site.url}/latin", "café", "txt"),
    ]


def test_pages_that_fail_are_named_by_the_url_that_was_asked_for(tmp_path: Path) -> None:
    site = Site(
        {
            "/500": Answer("oops", status=500),
            "/picture": Answer.redirect("/picture.png"),
            "/picture.png": Answer(b"\x89PNG", "image/png"),
            "/odd": Answer(b"x", "text/plain; charset=klingon"),
            "/binary": Answer(b"\x7fELF\0", "application/octet-stream"),
        }
    )
    with site:
        load = loaded(
            tmp_path, [f"{site.url}/{name}" for name in ("500", "picture", "odd", "binary")], private_urls=True
        )
    assert load.failures == {
        f"{site.url}/500": "Invalid status: 500 Internal Server Error",
        f"{site.url}/picture": "Unexpected media type 'image/png'",
        f"{site.url}/odd": "is in an unknown encoding, 'klingon'",
        f"{site.url}/binary": "is a program, not text in UTF-8",
    }
