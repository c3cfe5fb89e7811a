"""`hooks`: let other programs start runs and send signals, by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.access.users import REASON
from sleipnir.cli.options import COUNT, GlobalOptions, Seconds, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from sleipnir.client.hooks import NewHook
    from sleipnir.webhooks.hooks import Hook

FORMS = ("standard", "github", "stripe", "token")  # as in webhooks/hooks.py

_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.group()
def hooks() -> None:
    """Let requests of other programs start runs and send signals."""


@hooks.command()
@click.argument("name")
@click.option("--agent", metavar="NAME", help="Start a run of this agent.")
@click.option("--signal", metavar="EVENT", help="Send this signal, with the body as its data.")
@click.option(
    "--form", type=click.Choice(FORMS), default="standard", show_default=True, help="How requests prove who made them."
)
@click.option("--prompt", metavar="TEXT", help="The prompt of the run, with {{body...}} and {{headers...}}.")
@click.option("--input", "inputs", multiple=True, metavar="KEY=TEXT", help="A state key of the run; repeatable.")
@click.option("--header", default="", metavar="NAME", help="Where the proof is. Default: that of the form.")
@click.option("--algorithm", type=click.Choice(["sha256", "sha512"]), default="sha256", help="With --form github.")
@click.option("--id-header", metavar="NAME", help="The header by which a request is known when it comes again.")
@click.option("--id-field", metavar="PATH", help="The same, in the body: event.id")
@click.option("--namespace", metavar="NS", help="Of its runs. Default: that of the server.")
@click.option("--per-minute", type=COUNT, default=600, show_default=True, help="More requests are refused.")
@click.option("--own-secret", is_flag=True, help="The sender has chosen it: it is in a file (SLEIPNIR_HOOK_SECRETS).")
@REASON
@_JSON
@pass_options
def add(options: GlobalOptions, /, name: str, inputs: tuple[str, ...], as_data: bool, **given: Any) -> None:
    """Add a hook, at /hooks/NAME of the HTTP API, and print its secret. It is shown this once: it is not stored."""
    values = {}
    for each in inputs:
        key, equals, template = each.partition("=")
        if not (key and equals):
            raise UsageError(f"--input is KEY=TEXT, not {each!r:.80}")
        values[key] = template
    with options.connected(workers=False) as client:
        _print_secret(client.hooks.add(name, inputs=values, **given), "is added", as_data=as_data)


@hooks.command()
@click.argument("name")
@click.option(
    "--overlap", type=Seconds(), default=0.0, metavar="DURATION", help="The secret before is valid for so long more."
)
@REASON
@_JSON
@pass_options
def rotate(options: GlobalOptions, name: str, overlap: float, reason: str | None, as_data: bool) -> None:
    """Give a hook a new secret, and print it."""
    with options.connected(workers=False) as client:
        made = client.hooks.rotate(name, overlap_s=overlap, reason=reason)
    _print_secret(made, "has a new secret", as_data=as_data)


@hooks.command()
@_JSON
@pass_options
def ls(options: GlobalOptions, as_data: bool) -> None:
    """List the hooks."""
    with options.connected(workers=False) as client:
        found = client.hooks.all()
    if as_data:
        print_json([_to_data(hook) for hook in found])
    elif found:
        print_table(("name", "form", "does", "known by", "per minute", "added"), [_row(hook) for hook in found])
    else:
        terminal.note("no hooks")


@hooks.command()
@click.argument("name")
@REASON
@pass_options
def rm(options: GlobalOptions, name: str, reason: str | None) -> None:
    """Remove a hook: its requests are refused."""
    with options.connected(workers=False) as client:
        client.hooks.remove(name, reason=reason)
    terminal.note(f"hook {name} is removed")


def _print_secret(made: NewHook, done: str, *, as_data: bool) -> None:
    if as_data:
        print_json({"secret": made.secret, **_to_data(made.hook)})
        return
    if made.secret is None:
        terminal.note(f"hook {made.hook.name} {done}; write its secret into the file {made.hook.name} of "
                      "SLEIPNIR_HOOK_SECRETS")  # fmt: skip
        return
    print(made.secret)
    terminal.note(f"hook {made.hook.name} {done}; its secret is not shown again")


def _row(hook: Hook) -> tuple[str, ...]:
    does = f"run of {hook.agent}" if hook.agent else f"signal {hook.signal}"
    known = f"header {hook.id_header}" if hook.id_header else f"field {hook.id_field}"
    added = f"{moment(hook.created_ms)} by {printable(hook.created_by)}"
    return hook.name, hook.form, printable(does), known, f"{hook.per_minute:,}", added


def _to_data(hook: Hook) -> dict[str, Any]:
    hidden = ("token", "secrets", "changed", "v")
    return {name: value for name, value in as_json(hook).items() if name not in hidden}
