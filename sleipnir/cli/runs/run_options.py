"""The options that choose runs: those of `ps`, and of the commands that steer many runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sleipnir.cli.completion import complete_agent, complete_batch, complete_tag
from sleipnir.cli.options import MOMENT
from sleipnir.cli.runs.tag_values import tag_values
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.rows_bar import rows_bar

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress

    from sleipnir.client.client import Client
    from sleipnir.client.mass_requests import SteeredRuns

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)

CHILDREN = click.option("--children", is_flag=True, help="Also runs that other runs have started.")
BATCH = click.option(
    "--batch", "batch", metavar="BATCH", shell_complete=complete_batch, help="Only the runs of this batch."
)
AGENTS = click.option(
    "--agent", "agents", multiple=True, metavar="NAME", shell_complete=complete_agent,
    help="Only of this one; repeatable.",
)  # fmt: skip
SINCE = click.option(
    "--since", "since_ms", type=MOMENT, help="Only runs created since then: 90s, 2h, 3d ago, or 2026-11-22T10:00."
)
BEFORE = click.option("--before", "before_ms", type=MOMENT, help="Only runs created before then.")
ROWS = click.option("--rows", is_flag=True, help="Also rows of batches.")
TAGS = click.option(
    "--tag", "tags", multiple=True, metavar="KEY=TEXT", callback=tag_values, shell_complete=complete_tag,
    help="Only runs with this tag; repeatable, then with all of them.",
)  # fmt: skip
NAMESPACE = click.option(
    "--namespace", metavar="NAME",
    help="Only runs of this namespace; '*': of all. Default: SLEIPNIR_NAMESPACE, or `default`.",
)  # fmt: skip

NAMESPACE_HELP: Final = "Only of this namespace; '*': of all. Default: SLEIPNIR_NAMESPACE, or `default`."
NAMES: Final = ("children", "batch", "agents", "since_ms", "before_ms", "rows", "tags", "namespace")
"""The parameters of these options."""


def selecting(command: Command) -> Command:
    """A command with the options that choose runs."""
    for option in reversed((CHILDREN, BATCH, AGENTS, SINCE, BEFORE, ROWS, TAGS, NAMESPACE)):
        command = option(command)
    return command


def is_any(given: Mapping[str, Any]) -> bool:
    """Whether a person has chosen runs."""
    return any(given[name] not in (None, (), False, {}) for name in NAMES)


def refuse_both(given: Mapping[str, Any]) -> None:
    """Raises click.UsageError for options that exclude each other."""
    if given["batch"] is not None and given["children"]:
        raise click.UsageError("--batch lists only the runs of rows; omit --children")


def chosen(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of Client.runs. Raises BatchNotFound."""
    batch = given["batch"]
    return {**{name: given[name] for name in NAMES}, "batch": None if batch is None else client.open_batch(batch).id}


class SteeringView:
    """Shows how many runs have been steered: `what` is pausing, for example. On a terminal as a bar."""

    def __init__(self, what: str) -> None:
        self._what, self._drawn_s = what, time.monotonic()
        self._bar: Progress | None = None

    def see(self, done: SteeredRuns) -> None:
        """Every half second, where a line can be redrawn; else every ten."""
        now_s = time.monotonic()
        if now_s - self._drawn_s < (0.5 if terminal.can_redraw() else 10):
            return
        self._drawn_s = now_s
        amount = f"{done.requested:,} runs"
        if not terminal.can_redraw():
            terminal.narrate_lines([f"{self._what} {amount}"])
            return
        if self._bar is None:
            self._bar = rows_bar(self._what, None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], amount=amount, refresh=True)

    def __enter__(self) -> SteeringView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
