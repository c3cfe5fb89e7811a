"""The bar that shows how many rows of many are done; rich is imported to draw it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sleipnir.cli.terminal import terminal

if TYPE_CHECKING:
    from rich.progress import Progress


def rows_bar(what: str, total: int | None) -> Progress:
    """A bar with one task, whose field `amount` is shown beside it. It is drawn from its `start` on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
    amount = TextColumn("{task.fields[amount]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
    bar.add_task(what, total=total, amount="")
    return bar
