"""`batch`: submit many runs of one agent at once, watch and steer them, and fetch their results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.batches import results as batch_results
from sleipnir.cli.batches import view as batch_view
from sleipnir.cli.batches.fork import fork
from sleipnir.cli.batches.submit import submit
from sleipnir.cli.completion import complete_batch
from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import COUNT, Amount, GlobalOptions, Seconds, pass_options
from sleipnir.cli.runs.delays import DelayNotice, missing_in_words, notes, patience_s
from sleipnir.cli.runs.run_options import NAMESPACE_HELP, SteeringView
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_fields, print_json, print_json_line, print_table
from sleipnir.cli.terminal.terminal import MARK

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo, ErrorGroup
    from sleipnir.client.batch import Batch
    from sleipnir.client.client import Client

SHOWN_RUNS = 3


@click.group()
def batch() -> None:
    """Run an agent on each row of a file: submit, watch and steer them, fetch the results.

    BATCH is an id, the beginning of one (6 characters at least), or a name.
    """


batch.add_command(submit)
batch.add_command(fork)

_BATCH = click.argument("batch_id", metavar="BATCH", shell_complete=complete_batch)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@batch.command()
@click.option(
    "--limit", type=COUNT, default=50, show_default=True, help="Show at most this number of batches, the newest."
)
@click.option("--namespace", metavar="NAME", help=NAMESPACE_HELP)
@_JSON
@pass_options
def ls(options: GlobalOptions, limit: int, namespace: str | None, as_data: bool) -> None:
    """List batches, the newest first."""
    with options.connected(workers=False) as client:
        batches = client.batches(limit, namespace=namespace)
    if as_data:
        print_json([batch_view.to_data(info) for info in batches])
    elif batches:
        print_table(batch_view.COLUMNS, [batch_view.row(info) for info in batches])
    else:
        terminal.note("no batches; `sleipnir batch submit AGENT ROWS` starts one")


@batch.command()
@_BATCH
@_JSON
@pass_options
def show(options: GlobalOptions, batch_id: str, as_data: bool) -> None:
    """Show one batch: state, rows by state, pace, cost, and what it waits for."""
    with options.connected(workers=False) as client:
        info = client.open_batch(batch_id).info()
    if as_data:
        print_json(batch_view.to_data(info))
    else:
        print_fields(batch_view.fields(info, options))


@batch.command()
@_BATCH
@click.option("--json", "as_data", is_flag=True, help="Print a JSON object on a line for each change.")
@pass_options
def watch(options: GlobalOptions, batch_id: str, as_data: bool) -> int:
    """Follow BATCH until it ends.

    Exit codes: 0 all rows completed, 1 some failed or were cancelled, 130 interrupted (the batch continues).
    """
    with options.connected(workers=True) as client:
        watched = client.open_batch(batch_id)
        try:
            info = _follow(client, watched, options, as_data=as_data)
        except KeyboardInterrupt:
            _say_it_goes_on(watched.id, options)
            return exit_codes.INTERRUPTED
    terminal.narrate_lines([f"{MARK}{batch_view.line(info)}"])
    if what := batch_view.what_next(info, options):
        terminal.note(what)
    return exit_codes.COMPLETED if info.completed == info.total else exit_codes.FAILED


def _follow(client: Client, watched: Batch, options: GlobalOptions, *, as_data: bool) -> BatchInfo:
    def look() -> list[str]:
        from sleipnir.client.run import missing_for

        active = client.runs(SHOWN_RUNS, {"submitted", "running"}, batch=watched.id)
        return missing_in_words(missing_for(client.store, [run.id for run in active]), options)

    with batch_view.WatchView(options) as view, DelayNotice(look, notes, patience_s(options)) as delays:
        for info in watched.watch():
            delays.moved()
            view.see(info)
            if as_data:
                print_json_line(batch_view.to_data(info))
                sys.stdout.flush()
    return info


def _say_it_goes_on(batch_id: str, options: GlobalOptions) -> None:
    if options.is_embedded:
        terminal.note(f"\nbatch {batch_id} is kept; it continues while `sleipnir up` runs, or while it is watched")
    else:
        terminal.note(f"\nbatch {batch_id} continues without this terminal")
    terminal.note(f"  {options.command('batch', 'watch', batch_id)}    to see it")
    terminal.note(f"  {options.command('batch', 'cancel', batch_id)}   to stop it")


@batch.command()
@_BATCH
@click.option(
    "--timeout", "timeout_s", type=Seconds(min=0),
    help="Pause active rows too, and stop visits that still run after this time; they run again later.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
@pass_options
def pause(options: GlobalOptions, batch_id: str, timeout_s: float | None, as_data: bool) -> None:
    """Start no more rows; active rows continue, or with --timeout are paused as single runs are.

    `batch resume` resumes the rows that this has paused.
    """
    with options.connected(workers=False) as client:
        paused = client.open_batch(batch_id)
        with SteeringView("pausing") as view:
            rows = paused.pause(timeout=timeout_s, on_progress=view.see).requested
        active = paused.info().active
    if as_data:
        print_json({"batch": paused.id, "active": active, "paused_rows": rows})
        return
    still = f"; {counted(active, 'row')} active will end" if active and timeout_s is None else ""
    still = f"; {counted(rows, 'active row')} will pause" if timeout_s is not None else still
    terminal.note(f"batch {paused.id} is paused{still}")


@batch.command()
@_BATCH
@click.option(
    "--max-cost", "max_cost_usd", type=Amount(min=0, min_open=True), metavar="USD",
    help="The new limit of its total cost.",
)  # fmt: skip
@click.option("--max-tokens", type=COUNT, metavar="N", help="The new limit of its total tokens.")
@pass_options
def resume(options: GlobalOptions, batch_id: str, max_cost_usd: float | None, max_tokens: int | None) -> None:
    """Resume a batch that is paused, has run its canary rows, or is over its budget."""
    with options.connected(workers=False) as client:
        resumed = client.open_batch(batch_id)
        resumed.resume(max_cost_usd=max_cost_usd, max_tokens=max_tokens)
    terminal.note(f"batch {resumed.id} is resumed")


@batch.command()
@_BATCH
@click.argument("most", metavar="N", type=COUNT)
@pass_options
def parallel(options: GlobalOptions, batch_id: str, most: int) -> None:
    """Set the maximum number of simultaneously active rows of BATCH to N."""
    with options.connected(workers=False) as client:
        changed = client.open_batch(batch_id)
        changed.set_parallel(most)
    terminal.note(f"batch {changed.id}: at most {counted(most, 'row')} at once")


@batch.command()
@_BATCH
@pass_options
def cancel(options: GlobalOptions, batch_id: str) -> None:
    """Cancel BATCH: no more rows start, active rows are cancelled."""
    with options.connected(workers=False) as client:
        cancelled = client.open_batch(batch_id)
        was_open = cancelled.cancel()
    terminal.note(f"batch {cancelled.id} " + ("is being cancelled" if was_open else "had already ended"))


@batch.command("retry-failed")
@_BATCH
@pass_options
def retry_failed(options: GlobalOptions, batch_id: str) -> None:
    """Let all failed rows continue from where they failed, after the waiting rows."""
    with options.connected(workers=False) as client:
        retried = client.open_batch(batch_id)
        rows = retried.retry_failed()
    if not rows:
        terminal.note(f"batch {retried.id} has no failed rows")
        return
    terminal.note(f"batch {retried.id}: {counted(rows, 'failed row')} will continue")
    if options.is_embedded:
        watch = options.command("batch", "watch", retried.id)
        terminal.note(f"while `sleipnir up` runs; or follow it here: {watch}")


@batch.command()
@_BATCH
@click.option(
    "-o", "--output", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file, and continue at its end. Default: all to stdout.",
)  # fmt: skip
@click.option(
    "--format", "format_", type=click.Choice(["jsonl", "csv"]),
    help="Default: by the name of the file (.jsonl or .csv); JSON lines on stdout.",
)  # fmt: skip
@click.option("--as-they-come", is_flag=True, help="In the order in which rows ended.")
@click.option("--follow", is_flag=True, help="Wait for rows that have not ended.")
@click.option("--overwrite", is_flag=True, help="Start the file again.")
@pass_options
def results(
    options: GlobalOptions,
    batch_id: str,
    path: Path | None,
    format_: str | None,
    as_they_come: bool,
    follow: bool,
    overwrite: bool,
) -> int:
    """Write the results of ended rows: number, key, status, output, error, node and run of each.

    Safe to interrupt and to repeat: the file has whole lines only, and the same command adds the missing rows,
    including rows that ended or were retried since: if a row appears twice, the last line counts.
    """
    kind = batch_results.format_of(path, format_)
    if path is None and overwrite:
        raise click.UsageError("--overwrite needs a file; name one with -o")
    with options.connected(workers=follow) as client:
        read = client.open_batch(batch_id)
        if path is None:
            _print_results(read, kind, as_they_come=as_they_come, follow=follow)
            return exit_codes.COMPLETED
        with batch_results.ResultFile(path, kind, read.run_id, overwrite=overwrite) as file:
            try:
                start = 0 if as_they_come else file.held.next_row
                for result in read.results("done" if as_they_come else "row", start=start, follow=follow):
                    file.add(result)
            except KeyboardInterrupt:
                terminal.note(f"\n{path} holds {counted(file.held.count, 'result')}; the same command continues there")
                return exit_codes.INTERRUPTED
        info = read.info()
    now = f"{counted(file.added, 'result')} written, {file.held.count:,} of {counted(info.total, 'row')} in all"
    left = info.total - info.ended
    terminal.note(f"{path}: {now}" + (f"; {left:,} have not ended (--follow waits for them)" if left else ""))
    return exit_codes.COMPLETED


def _print_results(read: Batch, kind: batch_results.Format, *, as_they_come: bool, follow: bool) -> None:
    terminal.result(batch_results.head(kind), end="")
    for result in read.results("done" if as_they_come else "row", follow=follow):
        terminal.result(batch_results.line_of(result, kind), end="")
        if follow:
            sys.stdout.flush()


@batch.command()
@_BATCH
@_JSON
@pass_options
def errors(options: GlobalOptions, batch_id: str, as_data: bool) -> None:
    """Show why rows of BATCH failed, by node and message, the most frequent first."""
    with options.connected(workers=False) as client:
        failed = client.open_batch(batch_id)
        groups = failed.errors()
    if as_data:
        print_json(groups)
    elif groups:
        print_table(("rows", "node", "runs", "message"), [error_row(group) for group in groups])
        terminal.note(f"`{options.command('batch', 'retry-failed', failed.id)}` continues them from where they failed")
    else:
        terminal.note("no row has failed")


def error_row(group: ErrorGroup) -> tuple[str, ...]:
    """The lines of `errors` for rows with the same failure, with the runs of the first ones."""
    return f"{group.count:,}", group.node or "", ", ".join(group.runs[:SHOWN_RUNS]), group.message
