"""The output of the bench: the machine, the table and the failures, and its place in docs/performance.md."""

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
    """Properties that may matter for the figures and do not identify the machine's owner."""
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


def text_of(content: dict[str, Any]) -> str:
    """The printed report, made from the content of the JSON file."""
    machine_facts, rounds = content["machine"], len(content["rounds"])
    lines = [
        f"{machine_facts['cores']} cores, Python {machine_facts['python']}, Redis {machine_facts['redis']}, "
        f"PostgreSQL {machine_facts['postgres'] or 'not found'}; medians of {rounds} round{'s' if rounds > 1 else ''}",
        *(f"{figures.FIGURES[name].what}: {shape} (processes x threads)" for name, shape in content["shapes"].items()),
        "",
        figures.table(content["figures"], content["not_measured"]),
        "",
        f"missed: {', '.join(content['missed']) or 'nothing that was measured'}",
        *(f"FAILED  {figures.FIGURES[name].what.strip()}: {what}" for name, what in content["failed"].items()),
    ]
    return "\n".join(lines)


def refreshed(page: str, text: str) -> str:
    """The page with `text` between its marks. Raises BenchFailed when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchFailed("the page has no marks for the figures")
    return f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}"
