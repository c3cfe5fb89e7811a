"""`batch submit`: adds rows of a file to a batch, and shows the progress.

A submission is identified by its name, or without one by the contents of the file: the same command again continues the
same batch, and adds the missing rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sleipnir.batches.records import DEFAULT_PARALLEL, DEFAULT_PRIORITY, PRIORITIES, submission_id
from sleipnir.cli import exit_codes
from sleipnir.cli.knowledge.building import BuildView, counted
from sleipnir.cli.options import COUNT, Amount, GlobalOptions, pass_options
from sleipnir.cli.runs import agent_warnings
from sleipnir.cli.runs.parameters import (
    AGENT,
    AGENT_VARIABLE,
    BREAK_AFTER,
    BREAK_BEFORE,
    CONTEXT,
    CWD,
    NAMESPACE,
    OVERRIDE,
    PATCH,
    RECURSION_LIMIT,
    STRICT,
    TAG,
    USER,
    VAR,
    RunParameters,
)
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.cli.terminal.rows_bar import rows_bar
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.errors import SleipnirError, UsageError
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from sleipnir.batches.rows import BadRow
    from sleipnir.client.batch import Batch, SubmittedRows
    from sleipnir.client.client import Client

SAY_S: Final = 10.0
DRAW_S: Final = 0.1
STDIN: Final = "-"

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class RowSource:
    """Rows to read, from an open file. `size` and `digest` are of its bytes, None for a pipe, which is read once."""

    file: BufferedReader
    name: str
    as_csv: bool = False
    size: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class BatchRequest(RunParameters):
    """The parameters of `batch submit`."""

    agent: str
    rows: str
    key: str | None
    name: str
    parallel: int | None
    priority: int
    canary: int | None
    max_cost_usd: float | None
    max_tokens: int | None

    def batch_id(self, agent: str, source: RowSource) -> str:
        """The id of the batch of rows of `agent`, the name of the folder."""
        if self.name:
            return submission_id(agent, "name", self.name)
        user = () if self.user is None else (self.user,)
        return submission_id(agent, "rows", source.digest or os.urandom(16).hex(), self.key or "", *user)

    def submit(self, client: Client, batch_id: str, source: RowSource, view: SubmitView) -> Batch:
        """Add the rows; on a terminal, ask for missing values and show the progress of building bases."""
        from sleipnir.batches.rows import read_from

        with BuildView() as building:
            return client.batch(
                self.agent,
                read_from(source.file, source.name, self.key, as_csv=source.as_csv),
                id=batch_id,
                key=self.key,
                name=self.name,
                priority=self.priority,
                parallel=self.parallel,
                canary=self.canary,
                max_cost_usd=self.max_cost_usd,
                max_tokens=self.max_tokens,
                on_bad=view.refuse,
                on_progress=view.see,
                **self.options(building),
            )


def plan_options(command: Command) -> Command:
    """The options of all commands that make a batch."""
    for option in reversed(_PLAN_OPTIONS):
        command = option(command)
    return command


_PLAN_OPTIONS: Final[Sequence[Callable[[Any], Any]]] = (
    click.option(
        "--parallel", type=COUNT, metavar="N",
        help=f"Maximum number of simultaneously active rows. Default: {DEFAULT_PARALLEL:,}.",
    ),
    click.option(
        "--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), default=DEFAULT_PRIORITY, show_default=True,
        help="Its share relative to other batches: priority 3 gets three rows for each row of priority 1.",
    ),
    click.option("--canary", type=COUNT, metavar="N", help="Run N rows, then wait for `batch resume`."),
    click.option(
        "--max-cost", "max_cost_usd", type=Amount(min=0, min_open=True), metavar="USD",
        help="Start no more rows when ended rows have cost this amount.",
    ),
    click.option("--max-tokens", type=COUNT, metavar="N", help="The same, by tokens of prompts and answers."),
)  # fmt: skip


@click.command()
@AGENT
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key", metavar="COLUMN", help="The column that identifies rows. Default: their numbers.")
@click.option("--name", default="", help="The name of the batch. A new name creates another batch of the same rows.")
@plan_options
@VAR
@AGENT_VARIABLE
@CONTEXT
@CWD
@RECURSION_LIMIT
@BREAK_BEFORE
@BREAK_AFTER
@OVERRIDE
@PATCH
@USER
@TAG
@NAMESPACE
@STRICT
@click.option("--json", "as_data", is_flag=True, help="Print one JSON document on stdout instead of the id.")
@pass_options
def submit(options: GlobalOptions, /, as_data: bool, **given: Any) -> int:
    """Start a run of AGENT for each row of a file, and print the id of the batch.

    ROWS is a file of JSON lines, or of CSV if it ends in .csv; `-` reads JSON lines from standard input. The column
    `prompt` is the prompt, the others are initial values of the state. Rows that cannot run are reported on stderr and
    left out.

    Safe to repeat: the same command adds only missing rows, also of a file that has grown since, if the batch has a
    name. Other options apply only when the batch is created.

    Exit codes: 0 every row is in the batch, 1 some could not be, 2 wrong usage, a broken agent or no good row at all,
    130 interrupted (rows that are in the batch run).
    """
    from sleipnir.agents.finding import look_up

    request, settings = BatchRequest(**given), options.settings()
    found = look_up(request.agent, settings)  # before a stack is started for an agent that does not exist
    agent_warnings.warn(request.agent, found, settings)
    with _opened(request.rows) as source, options.connected(workers=False) as client, SubmitView(source) as view:
        agent_warnings.tell_warnings(client, request.agent, None)
        batch_id = request.batch_id(found.name, source)
        try:
            batch = request.submit(client, batch_id, source, view)
        except KeyboardInterrupt:
            view.hide()
            _say_it_is_unfinished(batch_id, source, view, options)
            return exit_codes.INTERRUPTED
        except SleipnirError:
            view.hide()
            if view.so_far is not None:
                _say_it_is_unfinished(batch_id, source, view, options)
            raise
    return print_submitted(batch, options, as_data=as_data)


def print_submitted(batch: Batch, options: GlobalOptions, *, as_data: bool) -> int:
    """Returns the exit code."""
    submitted = batch.submitted
    assert submitted is not None, "this process has submitted it"
    terminal.narrate_lines([f"{MARK}{in_words(submitted, batch.id)}"])
    if as_data:
        print_json({"id": batch.id, "added": submitted.added, "known": submitted.known, "bad": submitted.bad})
    else:
        click.echo(batch.id)
    if options.is_embedded:
        watch = options.command("batch", "watch", batch.id)
        terminal.note(f"it runs while `sleipnir up` runs; or follow it here: {watch}")
    return exit_codes.FAILED if submitted.bad else exit_codes.COMPLETED


def in_words(submitted: SubmittedRows, batch_id: str) -> str:
    """The outcome of a submission."""
    bad = f"; {counted(submitted.bad, 'bad row')} left out" if submitted.bad else ""
    if submitted.known and not submitted.added:
        have = f"nothing is added: batch {batch_id} has {counted(submitted.known, 'row')} of these already"
        return f"{have}{bad}; use another --name for another batch"
    known = f", {submitted.known:,} were already present" if submitted.known else ""
    return f"{counted(submitted.added, 'row')} added to batch {batch_id}{known}{bad}"


@contextlib.contextmanager
def _opened(rows: str) -> Iterator[RowSource]:
    if rows == STDIN:
        yield RowSource(cast(BufferedReader, sys.stdin.buffer), "standard input")
        return
    try:
        file = Path(rows).open("rb")  # noqa: SIM115  (closed below; errors while rows are read are others)
    except OSError as error:
        raise UsageError(f"{rows} cannot be read: {error.strerror or error}") from error
    as_csv = Path(rows).suffix.lower() == ".csv"
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield RowSource(file, rows, as_csv)
            return
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        file.seek(0)
        yield RowSource(file, rows, as_csv, size, digest)


def _say_it_is_unfinished(batch_id: str, source: RowSource, view: SubmitView, options: GlobalOptions) -> None:
    """After Ctrl-C, or when Redis went away."""
    if view.so_far is None:
        terminal.note("\nnothing was submitted")
        return
    there = view.so_far.added + view.so_far.known
    terminal.note(f"\nbatch {batch_id} has {counted(there, 'row')} of these, which run")
    if source.digest is not None:
        terminal.note("  the same command again adds the others")
    terminal.note(f"  {options.command('batch', 'cancel', batch_id)}   to stop it")


class SubmitView:
    """A context manager. On a terminal it shows the read part of the file as a bar, otherwise a line every SAY_S
    seconds; bad rows are reported immediately."""

    def __init__(self, source: RowSource | None = None) -> None:
        """`source` None: the rows come from no file."""
        self._source, self._began_s = source, time.monotonic()
        self._said_s, self._drawn_s = self._began_s, 0.0
        self._progress: Progress | None = None
        self.so_far: SubmittedRows | None = None

    def refuse(self, bad: BadRow) -> None:
        terminal.note(printable(str(bad)))

    def see(self, submitted: SubmittedRows) -> None:
        """Show the progress."""
        self.so_far = submitted
        now_s = time.monotonic()
        if terminal.can_redraw():
            if now_s - self._drawn_s >= DRAW_S:
                self._drawn_s = now_s
                self._draw(self._amount(now_s))
        elif now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            terminal.narrate_lines([f"{MARK}{self._amount(now_s)}"])

    def _amount(self, now_s: float) -> str:
        assert self.so_far is not None
        done = self.so_far.added + self.so_far.known + self.so_far.bad
        rate = done / max(now_s - self._began_s, 0.001)
        bad = f", {self.so_far.bad:,} bad" if self.so_far.bad else ""
        return f"{counted(done, 'row')}{bad}, {rate:,.0f}/s"

    def _draw(self, amount: str) -> None:
        if self._progress is None:
            self._progress = rows_bar("submitting", self._source.size if self._source is not None else None)
            self._progress.start()
        [bar] = self._progress.task_ids
        read = 0 if self._source is None or self._source.size is None else self._source.file.tell()
        self._progress.update(bar, completed=read, amount=amount, refresh=True)

    def hide(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None

    def __enter__(self) -> SubmitView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hide()
