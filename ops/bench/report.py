"""What the bench prints: on which machine, the table, what went wrong; and how that gets into docs/performance.md."""

from __future__ import annotations

import os
import platform
from typing import Any

from ops.bench import figures, postgres
from ops.bench.figures import BenchFailed, NotMeasured
from ops.bench.processes import version_of
from sleipnir.local.supervisor import find_server

BEGIN, END = "<!-- figures: make bench ARGS=--docs writes what is between these marks -->", "<!-- end of figures -->"


def machine() -> dict[str, Any]:
    """What may matter for the figures and says nothing about whose machine it is."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "redis": version_of(find_server()),
        "postgres": _postgres_version(),
    }


def _postgres_version() -> str | None:
    try:
        return version_of(postgres.find() / "postgres")
    except NotMeasured:
        return None


def text_of(found: dict[str, Any]) -> str:
    """What the command prints, from what the JSON file holds."""
    here, rounds = found["machine"], len(found["rounds"])
    lines = [
        f"{here['cores']} cores, Python {here['python']}, Redis {here['redis']}, "
        f"PostgreSQL {here['postgres'] or 'not found'}; medians of {rounds} round{'s' if rounds > 1 else ''}",
        *(f"{figures.FIGURES[name].what}: {shape} (processes x threads)" for name, shape in found["shapes"].items()),
        "",
        figures.table(found["figures"], found["not_measured"]),
        "",
        f"missed: {', '.join(found['missed']) or 'nothing that was measured'}",
        *(f"FAILED  {figures.FIGURES[name].what.strip()}: {what}" for name, what in found["failed"].items()),
    ]
    return "\n".join(lines)


def refreshed(page: str, text: str) -> str:
    """The page with `text` between its marks. Raises BenchFailed when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchFailed("the page has no marks for the figures")
    return f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}"
