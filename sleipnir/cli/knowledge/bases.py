"""Prints a knowledge base, an estimate of one and search results: on stdout, for people.

Each has the builder's fields, as in sleipnir/knowledge/views.py. `folder` is the agent's: paths in it are shown
relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sleipnir.cli.knowledge.building import KEYWORDS_ONLY, counted, dollars, spent
from sleipnir.cli.terminal.render import print_fields, size
from sleipnir.runs.plain_text import one_line, printable

SHOWN_LINES = 6
SHOWN_WIDTH = 300


def print_base(base: Mapping[str, Any], folder: Path) -> None:
    """Print the fields of a built base; paths are relative to the agent's `folder` where possible."""
    fields = [
        ("base", f"{base['agent']}/{base['node']}"),
        ("file", f"{base['file']} ({size(base['file_bytes'])})"),
        ("digest", base["digest"]),
        ("searched", _how(base["embedding_model"], base["dimensions"])),
        ("chunks", f"{base['chunks']:,} of {base['chunk_size']} bytes, overlap {base['chunk_overlap']}"),
        ("sources", _listed(base["sources"], folder)),
        ("top_k", str(base["top_k"])),
        ("reranker", base["reranker_model"] or ""),
        ("index", size(base["index_bytes"]) if base["index_bytes"] else ""),
    ]
    fields.append(("vectors", spent(base)))
    if base["notices"]:
        fields.append(("notices", "\n".join([counted(len(base["notices"]), "notice"), *base["notices"]])))
    print_fields((name, value) for name, value in fields if value)


def print_forecast(forecast: Mapping[str, Any], folder: Path) -> None:
    """Print what a build would take, as `--dry-run` shows it."""
    fields = [
        ("base", f"{forecast['agent']}/{forecast['node']}, not built by --dry-run"),
        ("sources", _listed(forecast["sources"], folder)),
        ("chunks", f"{forecast['chunks']:,}"),
        ("searched", _how(forecast["embedding_model"], None)),
    ]
    if forecast["embedding_model"]:
        amount = f"{counted(forecast['to_embed'], 'chunk')}, about {counted(forecast['tokens'], 'token')}"
        fields.append(("to embed", f"{amount}, {dollars(forecast['cost_usd'])}"))
    if forecast["notices"]:
        fields.append(("notices", "\n".join(forecast["notices"])))
    print_fields(fields)


def _how(model: str | None, dimensions: int | None) -> str:
    if model is None:
        return f"by {KEYWORDS_ONLY}"
    return f"by keywords and {model}" + (f" ({dimensions} dimensions)" if dimensions else "")


def _listed(sources: Mapping[str, int], folder: Path) -> str:
    """Their number, and those with the most chunks."""
    most = sorted(sources.items(), key=lambda pair: -pair[1])[:SHOWN_LINES]
    more = [f"and {len(sources) - len(most):,} more"] if len(sources) > len(most) else []
    return "\n".join([f"{len(sources):,}", *(f"{count:>6,}  {_relative(name, folder)}" for name, count in most), *more])


def print_hits(hits: Sequence[Mapping[str, Any]], folder: Path, *, full: bool) -> None:
    for number, hit in enumerate(hits, 1):
        where = one_line(_relative(hit["source"], folder))
        lines = f":{hit['lines'][0]}-{hit['lines'][1]}" if hit["lines"] else ""
        click.echo(f"{number}. {click.style(f'{where}{lines}', bold=True)}  {hit['score']:.4f}")
        for line in _shown(hit["text"], full=full):
            click.echo(f"   {line}".rstrip())


def _relative(source: str, folder: Path) -> str:
    path = Path(source)
    return str(path.relative_to(folder)) if path.is_absolute() and path.is_relative_to(folder) else source


def _shown(text: str, *, full: bool) -> list[str]:
    lines = printable(text).splitlines()
    if full:
        return lines
    shown = [one_line(line, SHOWN_WIDTH) for line in lines if line.strip()]
    return shown if len(shown) <= SHOWN_LINES else [*shown[: SHOWN_LINES - 1], "…"]
