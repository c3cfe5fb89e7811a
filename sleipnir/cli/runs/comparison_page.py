"""A comparison as one HTML page: a summary, then a table of its rows.

Rules. Values were written by others: every text is escaped, and the page runs no script and loads nothing, which its
content policy also forbids. Values are shortened to MOST_CHARS; `--json` and `--csv` have them complete. Its colours
follow the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, Final

from sleipnir.cli.knowledge.building import counted, dollars
from sleipnir.cli.terminal.terminal import as_json_text
from sleipnir.runs.plain_text import duration, printable

if TYPE_CHECKING:
    from sleipnir.runs.comparison import ComparedRun, Comparison, ComparisonSummary, SideTotals

MOST_ROWS: Final = 20_000
MOST_CHARS: Final = 1_000
MOST_KEYS: Final = 50
MOST_NODES: Final = 200

COLUMNS: Final = ("row", "result", "output of a", "output of b", "tokens", "cost", "time")
_FILTERS: Final = (
    ("all", "all rows"), ("changed", "changed"), ("better", "better"), ("worse", "worse"), ("undecided", "undecided"),
    ("missing", "only in one"),
)  # fmt: skip
_WORDS: Final = {"only_a": "only in a", "only_b": "only in b"}

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1d2330; --dim: #5d6677; --line: #d9dde5; --page: #ffffff; --box: #f4f6f9;
  --good: #14743a; --bad: #b3261e; --other: #8a5a00; --mark: #e7eefc; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7ee; --dim: #99a2b3; --line: #343b48; --page: #14171d;
  --box: #1d222b; --good: #5fd08c; --bad: #ff8a80; --other: #f0b954; --mark: #232e47; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--page); color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; }
p, .dim { color: var(--dim); margin: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0; }
.tile { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: 8px 14px; min-width: 92px; }
.tile b { display: block; font-size: 20px; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .other { color: var(--other); }
table { border-collapse: collapse; width: 100%; }
.totals { width: auto; margin: 0 0 16px; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; white-space: nowrap; }
.rows > tbody > tr > td { border-bottom: 0; }
.rows > tbody { border-bottom: 1px solid var(--line); }
.rows .more > td { padding-top: 0; }
.rows th { position: sticky; top: 0; background: var(--page); }
.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.name { overflow-wrap: anywhere; min-width: 120px; }
.value { white-space: pre-wrap; overflow-wrap: anywhere; font: 12px/1.45 ui-monospace, monospace; }
.rows td.value { min-width: 160px; max-width: 420px; }
td > .value { max-height: 140px; overflow: auto; }
.tag { display: inline-block; background: var(--mark); border-radius: 4px; padding: 0 6px; margin: 0 4px 2px 0;
  font-size: 12px; }
summary { cursor: pointer; color: var(--dim); }
details table { margin: 4px 0 8px; }
.filters { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; }
.filters label { cursor: pointer; }
"""
_HIDE: Final = "".join(
    f"body:has(#show-{name}:checked) .rows tbody:not(.{name}) {{ display: none; }}\n"
    for name, _ in _FILTERS
    if name != "all"
)

END: Final = "</table>\n</body>\n</html>\n"


def head_text(kind: str, a: str, b: str, summary: ComparisonSummary, left_out: int = 0) -> str:
    """The page up to its rows."""
    kinds = "runs" if kind == "run" else "batches"
    title = f"Comparison of {kinds} {a} and {b}"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    note = f"<p>{counted(left_out, 'further row')} not shown; --json and --csv have all.</p>" if left_out else ""
    heads = "".join(f"<th>{name}</th>" for name in COLUMNS)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}{_HIDE}</style>\n</head>\n<body>\n"
        f"<h1>{_text(title)}</h1>\n<p>{_text(differing_in_words(summary))}</p>\n"
        f'<div class="tiles">{"".join(_tiles(summary)) if kind != "run" else ""}</div>\n'
        f'<table class="totals"><tr><th></th><th>rows</th><th>completed</th><th>failed</th><th>tokens</th>'
        f"<th>cost</th><th>time</th></tr>{_totals('a', a, summary.a)}{_totals('b', b, summary.b)}</table>\n"
        f"{_filters(summary)}{note}\n"
        f'<table class="rows"><thead><tr>{heads}</tr></thead>\n'
    )


def differing_in_words(summary: ComparisonSummary) -> str:
    """`output differs in 12 rows, path in 3`; what the judge could not decide."""
    counts = {aspect: count for aspect, count in summary.differing.items() if count}
    parts = [f"{aspect} in {counted(count, 'row')}" if summary.rows > 1 else aspect for aspect, count in counts.items()]
    words = f"Different: {', '.join(parts)}." if parts else "Status, output, error, state and path are the same."
    if summary.undecided_why:
        words += f" Undecided, for instance: {summary.undecided_why}."
    return words


def _tiles(summary: ComparisonSummary) -> Iterator[str]:
    yield _tile(summary.rows, "row" if summary.rows == 1 else "rows", "")
    yield _tile(summary.same, "same", "")
    yield _tile(summary.changed, "changed", "other")
    for count, word in ((summary.only_a, "only in a"), (summary.only_b, "only in b")):
        if count:
            yield _tile(count, word, "other")
    if summary.unfinished:
        yield _tile(summary.unfinished, "not over", "")
    styles = {"better": "good", "worse": "bad", "equal": "", "undecided": "other"}
    for verdict, count in (summary.verdicts or {}).items():
        if count:
            yield _tile(count, verdict, styles[verdict])


def _tile(count: int, word: str, style: str) -> str:
    return f'<div class="tile"><b class="{style if count else ""}">{count:,}</b>{word}</div>'


def _totals(side: str, name: str, totals: SideTotals) -> str:
    cells = (
        f"{totals.rows:,}", f"{totals.completed:,}", f"{totals.failed:,}", f"{totals.tokens:,}",
        dollars(totals.cost_usd), duration(totals.took_ms),
    )  # fmt: skip
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th class="name">{side}: {_text(name)}</th>{numbers}</tr>'


def _filters(summary: ComparisonSummary) -> str:
    if summary.rows < 2:
        return ""
    shown = {"all", "changed", *(["missing"] if summary.only_a or summary.only_b else [])}
    shown |= {verdict for verdict, count in (summary.verdicts or {}).items() if count and verdict != "equal"}
    first = "changed" if summary.changed else "all"
    choices = "".join(
        f'<label><input type="radio" name="show" id="show-{name}"{" checked" if name == first else ""}> {words}</label>'
        for name, words in _FILTERS
        if name in shown
    )
    return f'<div class="filters">{choices}</div>'


def row_text(row: Comparison) -> str:
    """A row of the table, with its details."""
    classes = {row.outcome, row.verdict or "", "missing" if row.outcome.startswith("only") else ""} - {""}
    outputs = "".join(f'<td class="value"><div class="value">{_output(side)}</div></td>' for side in (row.a, row.b))
    numbers = (
        _pair(row, lambda side: f"{side.tokens:,}"),
        _pair(row, lambda side: dollars(side.cost_usd)),
        _pair(row, lambda side: "" if side.took_ms is None else duration(side.took_ms)),
    )
    cells = "".join(f'<td class="number">{cell}</td>' for cell in numbers)
    return (
        f'<tbody class="{" ".join(sorted(classes))}"><tr><td class="name">{_name(row)}</td>'
        f"<td>{_result(row)}</td>{outputs}{cells}</tr>{_details(row)}</tbody>\n"
    )


def _name(row: Comparison) -> str:
    if row.key is not None:
        return _text(row.key)
    return "<br>".join(_text(side.id) for side in (row.a, row.b) if side is not None)


def _result(row: Comparison) -> str:
    tags = "".join(f'<span class="tag">{aspect}</span>' for aspect in row.changed)
    word = f'<div class="{"" if row.outcome == "same" else "other"}">{_WORDS.get(row.outcome, row.outcome)}</div>'
    if row.verdict is None:
        return f"{word}{tags}"
    style = {"better": "good", "worse": "bad", "undecided": "other"}.get(row.verdict, "")
    return f'{word}<div class="{style}" title="{_text(row.why or "")}">{row.verdict}</div>{tags}'


def _pair(row: Comparison, cell: Any) -> str:
    """The cells of both sides, one below the other if they differ."""
    cells = ["-" if side is None else cell(side) or "-" for side in (row.a, row.b)]
    return _text(cells[0]) if cells[0] == cells[1] else f"{_text(cells[0])}<br>{_text(cells[1])}"


def _output(side: ComparedRun | None) -> str:
    if side is None:
        return '<span class="dim">no such row</span>'
    if side.output is not None:
        return _text(_short(side.output))
    error = f": {_short(side.error)}" if side.error else ""
    return f'<span class="{"bad" if side.status == "failed" else "dim"}">{_text(side.status + error)}</span>'


def _details(row: Comparison) -> str:
    if row.a is None or row.b is None or not row.changed:
        return ""
    lines = list(_lines(row))
    head = "<tr><th></th><th>a</th><th>b</th></tr>"
    is_open = " open" if row.key is None else ""
    details = f"<details{is_open}><summary>details</summary><table>{head}{''.join(lines)}</table></details>"
    return f'<tr class="more"><td></td><td colspan="{len(COLUMNS) - 1}">{details}</td></tr>'


def _lines(row: Comparison) -> Iterator[str]:
    assert row.a is not None and row.b is not None
    yield _line("run", row.a.id, row.b.id)
    if "status" in row.changed:
        yield _line("status", row.a.status, row.b.status)
    if "error" in row.changed:
        yield _line("error", row.a.error or "", row.b.error or "")
    if "path" in row.changed:
        yield _line("path", _path(row.a), _path(row.b))
    state = row.state
    values = [(name, as_json_text(a), as_json_text(b)) for name, (a, b) in state.changed.items()]
    values += [(name, as_json_text(a), "(no value)") for name, a in state.removed.items()]
    values += [(name, "(no value)", as_json_text(b)) for name, b in state.added.items()]
    for name, a, b in sorted(values)[:MOST_KEYS]:
        yield _line(f"state: {name}", a, b)
    if len(values) > MOST_KEYS:
        yield _line("state", f"{len(values) - MOST_KEYS:,} more keys differ", "")


def _line(name: str, a: str, b: str) -> str:
    cells = "".join(f'<td class="value"><div class="value">{_text(_short(text))}</div></td>' for text in (a, b))
    return f'<tr><th class="name">{_text(_short(name, 100))}</th>{cells}</tr>'


def _path(side: ComparedRun) -> str:
    more = f" … {side.visits:,} visits" if side.visits > MOST_NODES else ""
    return " → ".join(side.path[:MOST_NODES]) + more


def _short(text: str | None, most: int = MOST_CHARS) -> str:
    text = text or ""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _text(text: str) -> str:
    return escape(printable(text))
