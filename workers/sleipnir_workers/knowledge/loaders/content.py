"""The input and the output of loaders."""

from __future__ import annotations

import codecs
import io
import zipfile
from dataclasses import dataclass
from typing import Final

from sleipnir_workers.knowledge.failures import UnreadableContent

_SIGNATURES: Final = {
    b"%PDF-": "a PDF",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"PK\x03\x04": "a zip file",
    b"\x1f\x8b": "a gzip file",
    b"\x7fELF": "a program",
    b"\xd0\xcf\x11\xe0": "an Office file in the old format, or an encrypted one",
    b"SQLite format 3\0": "an SQLite database",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}

_ENCODINGS: Final = frozenset(
    [
        *("ascii", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"),
        *(f"iso8859-{part}" for part in (*range(1, 12), *range(13, 17))),
        *(f"cp{number}" for number in (*range(1250, 1259), 437, 850, 852, 855, 858, 862, 866, 874, 932, 949, 950)),
        *("koi8-r", "koi8-u", "kz1048", "mac-roman", "mac-cyrillic", "tis-620", "ptcp154"),
        *("gb2312", "gbk", "gb18030", "big5", "big5hkscs", "hz", "euc_jp", "euc_kr", "johab"),
        *("shift_jis", "shift_jis_2004", "shift_jisx0213", "euc_jis_2004", "euc_jisx0213", "iso2022_jp", "iso2022_kr"),
    ]
)
"""The encodings of the web, as `codecs.lookup` names them; all are decoded in linear time. Others of Python are
quadratic (`punycode`) or do not encode text (`zlib`, `unicode_escape`)."""


@dataclass(frozen=True)
class Content:
    """`charset` is declared by a server; None: it is not. `limit` is the maximum of bytes of a document."""

    data: bytes
    charset: str | None = None
    limit: int = 2**63

    def text(self) -> str:
        """Without a byte order mark, and with \\n at the ends of lines. Raises UnreadableContent if it is not text."""
        kind = self.kind()
        if kind is not None:
            raise UnreadableContent(f"is {kind}, not text in UTF-8")
        text = self._decoded()
        zero = text.find("\0")
        if zero >= 0:
            raise UnreadableContent(f"is a binary file, not text (a zero byte at offset {self.data.find(0)})")
        return text.replace("\r\n", "\n")

    def kind(self) -> str | None:
        """The kind of file by its first bytes; None: it may be text."""
        return next((name for signature, name in _SIGNATURES.items() if self.data.startswith(signature)), None)

    def encoding(self) -> str | None:
        """The server's charset by its name in Python; None: none. Raises UnreadableContent for an unsupported one."""
        if not self.charset:
            return None
        try:
            name = codecs.lookup(self.charset).name
        except (LookupError, ValueError):
            raise UnreadableContent(f"is in an unknown encoding, {self.charset[:40]!r}") from None
        if name not in _ENCODINGS:
            raise UnreadableContent(f"is in an unsupported encoding, {self.charset[:40]!r}")
        return name

    def _decoded(self) -> str:
        charset = self.encoding() or "utf-8"
        try:
            return self.data.decode("utf-8-sig" if charset == "utf-8" else charset)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
            raise UnreadableContent(f"is not valid {error.encoding.upper()} ({byte})") from None

    def archive(self) -> io.BytesIO:
        """The content, a zip file that unpacks to no more than the limit (.docx and .xlsx are zip files)."""
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile:
            raise UnreadableContent(f"is {self.kind() or 'damaged, or not an Office file'}") from None
        if unpacked > self.limit:
            raise UnreadableContent(f"unpacks to {size(unpacked)}; {limit(self.limit)}")
        return io.BytesIO(self.data)


@dataclass(frozen=True)
class LoadedText:
    """`extension` selects how the text is split (spec 8.4)."""

    text: str
    extension: str


def size(count: int) -> str:
    """A number of bytes with a unit, for people."""
    for unit, step in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if count >= step:
            return f"{count / step:.4g} {unit}"
    return f"{count} bytes"


def limit(count: int) -> str:
    """The end of a message about a document that is too large."""
    return f"at most {size(count)} are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"
