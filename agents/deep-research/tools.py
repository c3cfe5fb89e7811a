"""What the model may do while it researches: search the sources, and read in them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "scripts"))
import library


def search(query: str, limit: int = 6) -> list:
    """Search the sources for passages. Finds words, not meanings: try other words when little is found.

    Args:
        query: a few words that the passage would contain
        limit: how many passages, at most 20
    """
    passages = library.search(library.documents(), query, min(max(1, limit), 20))
    return passages or ["Nothing was found. Try other words, or fewer."]


def read(source: str, line: int = 1, lines: int = 80) -> dict:
    """Read in a source, to see what stands around a passage.

    Args:
        source: its name, as search gives it
        line: the first line to read
        lines: how many lines, at most 300
    """
    document = library.named(library.documents(), source)
    if document is None:
        raise SystemExit(f"there is no source {source!r}; use a name that search has given")
    every = document.text.split("\n")
    first = max(1, line)
    last = min(len(every), first + min(max(1, lines), 300) - 1)
    return {
        "source": document.name,
        "lines": f"{first} to {last} of {len(every)}",
        "text": "\n".join(every[first - 1 : last]),
    }
