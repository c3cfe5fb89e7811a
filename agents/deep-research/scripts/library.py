"""The sources, and the common code of the scripts and tools of this agent.

A source is a file or a page. Its name is its address, or its path: from the directory in which the run was started, or
from the agent's folder, if it lies below one of them. Pages are fetched once a day, into the cache directory of this
agent. Only addresses that the variable `sources` names are ever fetched: no model chooses one.
"""

from __future__ import annotations

import hashlib
import html.parser
import json
import math
import os
import re
import time
import unicodedata
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".md", ".markdown", ".txt", ".rst", ".adoc", ".org", ".html", ".htm", ".csv", ".tex")
MOST_FILES = 2_000
MAX_FILE_BYTES = 2_000_000
MAX_CHARACTERS = 50_000_000  # of all files of one folder
PAGE_TIMEOUT_S = 20
PAGE_LIFE_S = 24 * 3600
PASSAGE = 700  # characters, about

WORD = re.compile(r"\w{2,}")
COMMON = set(
    "an and are as at be by for from has have in is it its of on or that the their this to was were which with".split()
)


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    @property
    def title(self) -> str:
        """Its first line that says something."""
        lines = (line.strip("#=*-_ \t") for line in self.text.split("\n"))
        return next((line[:100] for line in lines if line), self.name)


def state() -> dict:
    return json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))


def finish(**output: object) -> None:
    """A script speaks once: one JSON object on stdout."""
    print(json.dumps(output, ensure_ascii=False))


def documents(problems: list[str] | None = None) -> list[Document]:
    """All sources that can be read, sorted as they are named. The reasons why others cannot be read are added to
    `problems`."""
    troubles = [] if problems is None else problems
    by_name: dict[str, Document] = {}
    asked = re.split(r"[,\n]", os.environ.get("LLM_AGENT_VAR_SOURCES") or ".")
    for entry in filter(None, (part.strip() for part in asked)):
        some = page(entry, troubles) if re.match(r"https?://", entry) else files(entry, troubles)
        for document in some:
            by_name.setdefault(document.name, document)
    return list(by_name.values())


def named(library: list[Document], name: str) -> Document | None:
    return next((document for document in library if document.name == name.strip()), None)


def files(entry: str, problems: list[str]) -> list[Document]:
    """The file, or those of the folder: here, or in the agent's folder. Names that begin with a dot are left out."""
    caller = Path(os.environ.get("GRAPH_CALLER_DIR") or ".").absolute()
    agent = Path(os.environ.get("LLM_AGENT_ROOT_DIR") or ".")
    place = next((p for p in (caller / os.path.expanduser(entry), agent / entry) if p.exists()), None)
    if place is None:
        problems.append(f"{entry} does not exist")
        return []
    paths = [place] if place.is_file() else sorted(below(place))
    if len(paths) > MOST_FILES:
        problems.append(f"{entry} has more than {MOST_FILES:,} files; the others were left out")
    readable: list[Document] = []
    size = 0
    for path in paths[:MOST_FILES]:
        document = document_of(path, (caller, agent))
        size += len(document.text) if document else 0
        if size > MAX_CHARACTERS:
            problems.append(f"{entry} has more text than {MAX_CHARACTERS:,} characters; the rest was left out")
            break
        if document is not None:
            readable.append(document)
    return readable


def below(folder: Path):
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(where, name)


def document_of(path: Path, homes: tuple[Path, ...]) -> Document | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    if b"\0" in data:
        return None
    text = data.decode("utf-8", errors="replace")
    home = next((home for home in homes if path.is_relative_to(home)), None)
    name = path.relative_to(home).as_posix() if home else str(path)
    return Document(name, plain(text) if path.suffix in (".html", ".htm") else text)


def page(address: str, problems: list[str]) -> list[Document]:
    kept = Path(
        os.environ.get("LLM_ROOT_DIR") or ".", "cache", os.environ.get("LLM_AGENT_NAME") or "deep-research",
        f"{hashlib.sha256(address.encode()).hexdigest()}.txt",
    )  # fmt: skip
    try:
        if kept.is_file() and time.time() - kept.stat().st_mtime < PAGE_LIFE_S:
            return [Document(address, kept.read_text("utf-8"))]
        request = urllib.request.Request(address, headers={"User-Agent": "deep-research (sleipnir)"})
        with urllib.request.urlopen(request, timeout=PAGE_TIMEOUT_S) as answer:
            kind = answer.headers.get_content_type()
            text = answer.read(MAX_FILE_BYTES).decode(answer.headers.get_content_charset() or "utf-8", errors="replace")
    except (OSError, ValueError, LookupError, urllib.error.URLError) as error:
        problems.append(f"{address} cannot be read ({error})")
        return []
    if not kind.startswith("text/"):
        problems.append(f"{address} is {kind}, not text")
        return []
    text = plain(text) if kind == "text/html" else text
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = kept.with_name(f"{kept.name}.{os.getpid()}")
    new.write_text(text, "utf-8")
    new.replace(kept)
    return [Document(address, text)]


class Text(html.parser.HTMLParser):
    """The text of a page, without its code."""

    SILENT = {"script", "style", "noscript", "template", "svg", "nav", "footer"}
    BLOCKS = {"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "pre"}

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag, attrs):
        self.silent += tag in self.SILENT
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.silent -= tag in self.SILENT and self.silent > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.silent:
            self.parts.append(data)


def plain(source: str) -> str:
    reader = Text()
    reader.feed(source)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def search(library: list[Document], query: str, limit: int) -> list[dict]:
    """The best passages. A word counts more the fewer passages have it; several words more than one word often."""
    wanted = set(words_of(query))
    every = [(document, line, text) for document in library for line, text in passages(document.text)]
    counts = [Counter(words_of(f"{document.title} {text}")) for document, _, text in every]
    spread = Counter(word for words in counts for word in words.keys() & wanted)
    scores = [
        sum(math.log(1 + len(every) / spread[word]) * words[word] / (words[word] + 1) for word in wanted & words.keys())
        for words in counts
    ]
    ranked = sorted(
        (place for place, score in enumerate(scores) if score > 0), key=lambda place: (-scores[place], place)
    )
    return [
        {"source": every[place][0].name, "line": every[place][1], "text": every[place][2]} for place in ranked[:limit]
    ]


def passages(text: str):
    """Paragraphs, small ones together, with the number of their first line."""
    start, lines = 1, []
    for number, line in enumerate(text.split("\n"), 1):
        if not lines:
            start = number
        full = sum(len(kept) + 1 for kept in lines) >= PASSAGE
        if lines and (full or (not line.strip() and sum(map(len, lines)) >= PASSAGE / 3)):
            yield start, "\n".join(lines).strip()[: 2 * PASSAGE]
            start, lines = number, []
        if line.strip() or lines:
            lines.append(line)
    if "".join(lines).strip():
        yield start, "\n".join(lines).strip()[: 2 * PASSAGE]


def words_of(text: str) -> list[str]:
    words = (word for word in WORD.findall(text.lower()) if word not in COMMON)
    return [word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word for word in words]


def stands_in(quote: str, text: str) -> bool:
    """Whether the text has the words of the quotation in this order; `...` leaves some out."""
    pieces = [even(piece) for piece in re.split(r"\.\.\.|…|\[\.\.\.\]", quote)]
    pieces = [piece for piece in pieces if piece]
    place, whole = 0, even(text)
    for piece in pieces:
        start = whole.find(piece, place)
        if start < 0:
            return False
        place = start + len(piece)
    return sum(map(len, pieces)) >= 12


def even(text: str) -> str:
    """Letters and digits, with one space between words: Markdown and typography do not make another text."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded.replace("_", " ")))
