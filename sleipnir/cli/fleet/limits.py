"""`limits`: the use of model limits, the holders, and the number of waiting callers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_json, print_json_line, print_table
from sleipnir.runs.plain_text import duration, one_line, printable

if TYPE_CHECKING:
    from sleipnir.models.limits import Limit, LimitUse
    from sleipnir.store.limits import Limiter

LOOK_S = 1.0
MOST_HOLDERS = 3
_NAME = click.argument("name")
_REASON = click.option("--reason", default="", metavar="TEXT", help="Why, for the audit and others who look at it.")
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
SHORT = {"requests_per_minute": "rpm", "tokens_per_minute": "tpm", "max_parallel": "parallel"}
COLUMNS = ("models", "rpm", "tpm", "parallel", "cooling", "waiting", "holders")


@click.group(invoke_without_command=True)
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list; with --watch, one line per refresh.")
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.pass_context
@pass_options
def limits(options: GlobalOptions, context: click.Context, as_data: bool, watch: bool) -> int:
    """Show the use of each model limit, or change a limit at run time.

    Requests and tokens are those of the last minute, parallel calls those that hold a permit now.
    """
    if context.invoked_subcommand is not None:
        return exit_codes.COMPLETED
    return _shown(options, as_data=as_data, watch=watch)


@limits.command("set")
@_NAME
@click.option("--rate", "requests_per_minute", type=COUNT, metavar="N", help="Calls that may begin in a minute.")
@click.option("--tokens", "tokens_per_minute", type=COUNT, metavar="N", help="Tokens in a minute.")
@click.option("--concurrency", "max_parallel", type=COUNT, metavar="N", help="Simultaneous calls.")
@_REASON
@_JSON
@pass_options
def set_(options: GlobalOptions, /, name: str, reason: str, as_data: bool, **bounds: int | None) -> None:
    """Give limit NAME, a pattern in limits.yaml, other bounds: for all workers, until `limits reset`.

    It holds for each call that asks from now on. Bounds that are not given are those of limits.yaml.
    """
    with options.connected(workers=False) as client:
        show([client.set_limit(name, reason=reason, **bounds)], as_data=as_data)


@limits.command()
@_NAME
@_REASON
@_JSON
@pass_options
def reset(options: GlobalOptions, name: str, reason: str, as_data: bool) -> None:
    """Give limit NAME the bounds of limits.yaml again."""
    with options.connected(workers=False) as client:
        show([client.reset_limit(name, reason=reason)], as_data=as_data)


def _shown(options: GlobalOptions, *, as_data: bool, watch: bool) -> int:
    from sleipnir.models.limits import limits_file, load

    settings = options.settings()
    loaded, warnings = load(settings)
    for warning in warnings:
        terminal.note(printable(str(warning)))
    if not loaded.limits:
        terminal.note(f"no limits: none are written in {limits_file(settings)}")
        return exit_codes.COMPLETED
    with options.connected_if_up() as client:
        if client is None:
            terminal.note("no stack is running; the limits are:")
            print_table(("models", "rpm", "tpm", "parallel"), [_bounds(limit) for limit in loaded.limits])
            return exit_codes.COMPLETED
        if not watch:
            show(_look(client.store.limiter, loaded.limits), as_data=as_data)
            return exit_codes.COMPLETED
        try:
            _watch(client.store.limiter, loaded.limits, as_data=as_data)
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
    return exit_codes.COMPLETED


def show(uses: Sequence[LimitUse], *, as_data: bool) -> None:
    """Print the current use of all limits."""
    if as_data:
        print_json([to_data(use) for use in uses])
    else:
        print_table(COLUMNS, [row(use) for use in uses])
        for use in uses:
            if use.change is not None:
                terminal.note(f"{printable(use.limit.pattern)} was changed at {_change(use)}")


def row(use: LimitUse) -> tuple[str, ...]:
    """The cell of a limit: `used/bound`, or only the used amount without a bound."""
    limit = use.limit
    cooling = "" if use.cooling_until_ms is None else duration(use.cooling_until_ms - use.at_ms)
    return (
        limit.pattern,
        _use_text(use.requests, limit.requests_per_minute),
        _use_text(use.tokens, limit.tokens_per_minute),
        _use_text(len(use.slots), limit.max_parallel),
        cooling,
        f"{use.waiting:,}" if use.waiting else "",
        _holders(use),
    )


def to_data(use: LimitUse) -> dict[str, Any]:
    """The same for programs. Times are milliseconds since the epoch by Redis' clock."""
    data: dict[str, Any] = as_json(use)
    return {**data.pop("limit"), **data}


def _watch(limiter: Limiter, limits: Sequence[Limit], *, as_data: bool) -> None:
    while True:
        uses = _look(limiter, limits)
        if as_data:
            print_json_line([to_data(use) for use in uses])
        else:
            if sys.stdout.isatty():
                click.clear()
            show(uses, as_data=False)
        sys.stdout.flush()
        time.sleep(LOOK_S)


def _look(limiter: Limiter, limits: Sequence[Limit]) -> list[LimitUse]:
    return [limiter.in_use(limit) for limit in limits]


def _bounds(limit: Limit) -> tuple[str, ...]:
    bounds = (limit.requests_per_minute, limit.tokens_per_minute, limit.max_parallel)
    return limit.pattern, *("" if bound is None else f"{bound:,}" for bound in bounds)


def _use_text(used: int, bound: int | None) -> str:
    return f"{used:,}" if bound is None else f"{used:,}/{bound:,}"


def _change(use: LimitUse) -> str:
    """Who has changed it, and what limits.yaml says."""
    if use.change is None or use.written is None:
        return ""
    numbers = (f"{SHORT[name]} {getattr(use.written, name) or 'none'}" for name in use.change.bounds)
    why = f": {one_line(use.change.reason)}" if use.change.reason else ""
    return f"{moment(use.change.at_ms)} by {printable(use.change.by)}{why}; limits.yaml: {', '.join(numbers)}"


def _holders(use: LimitUse) -> str:
    names = [slot.holder for slot in use.slots[:MOST_HOLDERS]]
    more = len(use.slots) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")
