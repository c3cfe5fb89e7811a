"""Look for the help articles that a ticket is about, by its words.

In:  `words` and `gist`, from the model; `ticket`; LLM_AGENT_VAR_ARTICLES, LLM_AGENT_VAR_PRODUCT.
Out: `articles`, their names, best first; `articles_text`, what the model reads of them; `product`, for prompts.

An article's score is that of its words: each counts more the fewer articles have it, three times in a title, and the
model's own words three times as much as those of the ticket.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from pathlib import Path

SUFFIXES = (".md", ".txt")
MOST_FILES = 5_000
MAX_FILE_BYTES = 200_000
MAX_ARTICLES = 3
MAX_ARTICLE = 8_000  # characters of one article that the model reads
IN_TITLE = 3
BY_MODEL = 3
ENOUGH = 0.25  # of the best score; what is below has a word or two in common by chance

WORD = re.compile(r"\w{3,}")
COMMON = set(
    "the and for you your with that this have has had was were are not but can cannot from they our out all any how"
    " when what why who will would there their been about which into than then them also please hello thanks".split()
)


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    library = {name: text for name, text in read_all(folder())}
    wanted = Counter(dict.fromkeys(words_of(f"{state['gist']} {state['ticket'][:4000]}"), 1))
    wanted.update(dict.fromkeys(words_of(" ".join(state["words"])), BY_MODEL))
    articles = best(library, wanted)
    text = "\n\n".join(f'<article name="{name}">\n{library[name][:MAX_ARTICLE]}\n</article>' for name in articles)
    result = {
        "articles": articles,
        "articles_text": text or "No article fits this ticket.",
        "product": os.environ.get("LLM_AGENT_VAR_PRODUCT", ""),
    }
    print(json.dumps(result, ensure_ascii=False))


def folder() -> Path:
    """Ends the script, with a message that the run shows, if the variable names no folder."""
    asked = os.environ.get("LLM_AGENT_VAR_ARTICLES", "").strip()
    if not asked:
        return Path(os.environ["LLM_AGENT_DATA_DIR"], "articles")
    chosen = Path(os.environ.get("GRAPH_CALLER_DIR") or ".", os.path.expanduser(asked))
    if not chosen.is_dir():
        sys.exit(f"{chosen} is no folder; name one: --var articles=DIR")
    return chosen


def read_all(where: Path):
    files = sorted(file for file in where.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    for file in files[:MOST_FILES]:
        if file.stat().st_size <= MAX_FILE_BYTES:
            yield file.relative_to(where).as_posix(), file.read_text("utf-8", errors="replace").strip()


def best(library: dict[str, str], wanted: Counter) -> list[str]:
    counts = {name: count(name, text) for name, text in library.items()}
    spread = Counter(word for words in counts.values() for word in words)
    scores = {
        name: sum(
            weight * math.log(1 + len(library) / spread[word]) * words[word] / (words[word] + 1)
            for word, weight in wanted.items()
            if word in words
        )
        for name, words in counts.items()
    }
    ranked = sorted((name for name in scores if scores[name] > 0), key=lambda name: (-scores[name], name))
    return [name for name in ranked[:MAX_ARTICLES] if scores[name] >= ENOUGH * scores[ranked[0]]]


def count(name: str, text: str) -> Counter:
    title = f"{Path(name).stem.replace('-', ' ').replace('_', ' ')} {text.partition(chr(10))[0]}"
    words = Counter(words_of(text))
    for word in words_of(title):
        words[word] += IN_TITLE
    return words


def words_of(text: str) -> list[str]:
    """Lower case, without the commonest words; the plural of a word is that word."""
    words = (word for word in WORD.findall(text.lower()) if word not in COMMON)
    return [word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word for word in words]


if __name__ == "__main__":
    main()
