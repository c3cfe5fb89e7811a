"""The text of evidence for a model."""

from __future__ import annotations


def text_of(evidence: list[dict]) -> str:
    return "\n\n".join("\n".join([head(source), *map(line, source["quotes"])]) for source in evidence)


def head(source: dict) -> str:
    trust = f" (trust: {source['trust']}. {source['why']})" if source["trust"] else ""
    return f"[{source['number']}] {source['name']}: {source['title']}{trust}"


def line(quote: dict) -> str:
    return f'- on "{quote["question"]}": {quote["says"]} Quote: "{" ".join(quote["quote"].split())}"'
