"""`claim`, `assign`, `snooze`, `comment` and `link`: what people do with an open question besides answering it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, Seconds, as_person, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json
from sleipnir.errors import GateError

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.client.gate_inbox import GateInbox
    from sleipnir.runs.views import GateInfo

_RUN = click.argument("run_id", metavar="RUN", shell_complete=complete_run)
_GATE = click.argument("name", metavar="[GATE]", required=False)


@click.command()
@_RUN
@_GATE
@click.option("--for", "for_s", type=Seconds(min=1), default=900.0, show_default=True, help="How long it lasts.")
@click.option("--take-over", is_flag=True, help="Also from a person who has claimed it.")
@click.option("--release", is_flag=True, help="End your claim.")
@as_person
@pass_options
def claim(
    options: GlobalOptions,
    run_id: str,
    name: str | None,
    for_s: float,
    take_over: bool,
    release: bool,
    person: str | None,
) -> int:
    """Claim an open question of RUN: others answer it only after they have taken it over.

    A claim ends by itself; claimed again, it lasts longer. GATE is named as for `answer`.
    """
    if release and take_over:
        raise click.UsageError("give either --release or --take-over")
    with options.connected(workers=False) as client:
        gate, inbox = _gate(client, run_id, name), _inbox(client, person)
        if release:
            inbox.release(gate)
            terminal.note(f"question {gate.seq} of run {gate.run} is released")
        else:
            until = moment(inbox.claim(gate, for_s=for_s, take_over=take_over))
            terminal.note(f"you hold question {gate.seq} of run {gate.run} until {until}")
    return exit_codes.COMPLETED


@click.command()
@_RUN
@click.argument("words", metavar="[GATE] PERSON", nargs=-1)
@click.option("--nobody", is_flag=True, help="Instead of PERSON: assign it to nobody.")
@as_person
@pass_options
def assign(options: GlobalOptions, run_id: str, words: tuple[str, ...], nobody: bool, person: str | None) -> int:
    """Say whose work an open question of RUN is. Others may answer it as before.

    GATE is named as for `answer`.
    """
    assignee = None if nobody or not words else words[-1]
    named = words if nobody else words[:-1]
    if (assignee is None) != nobody or len(named) > 1:
        raise click.UsageError("give PERSON, or --nobody, and before it at most one GATE")
    with options.connected(workers=False) as client:
        gate = _gate(client, run_id, named[0] if named else None)
        _inbox(client, person).assign(gate, assignee)
    terminal.note(f"question {gate.seq} of run {gate.run} is assigned to {assignee or 'nobody'}")
    return exit_codes.COMPLETED


@click.command()
@_RUN
@_GATE
@click.option("--for", "for_s", type=Seconds(min=1), default=3600.0, show_default=True, help="How long.")
@click.option("--wake", is_flag=True, help="End it.")
@as_person
@pass_options
def snooze(options: GlobalOptions, run_id: str, name: str | None, for_s: float, wake: bool, person: str | None) -> int:
    """Hide an open question of RUN from what you have to do (`gates --view mine`), for some time.

    Others see it as before. GATE is named as for `answer`.
    """
    with options.connected(workers=False) as client:
        gate = _gate(client, run_id, name)
        until_ms = None if wake else client.now_ms() + round(for_s * 1000)
        _inbox(client, person).snooze(gate, until_ms)
    until = "is seen again" if until_ms is None else f"is snoozed until {moment(until_ms)}"
    terminal.note(f"question {gate.seq} of run {gate.run} {until}")
    return exit_codes.COMPLETED


@click.command()
@_RUN
@click.argument("words", metavar="[GATE] TEXT", nargs=-1)
@as_person
@pass_options
def comment(options: GlobalOptions, run_id: str, words: tuple[str, ...], person: str | None) -> int:
    """Say something about an open question of RUN without answering it.

    Those who look at the question see TEXT, also with `show`, and `history` keeps it. GATE is named as for `answer`.
    """
    if not 1 <= len(words) <= 2:
        raise click.UsageError("give TEXT, in quotes, and before it at most one GATE")
    with options.connected(workers=False) as client:
        gate = _gate(client, run_id, words[0] if len(words) > 1 else None)
        _inbox(client, person).comment(gate, words[-1])
    terminal.note(f"question {gate.seq} of run {gate.run} has your comment")
    return exit_codes.COMPLETED


@click.command()
@_RUN
@_GATE
@click.option("--person", required=True, metavar="NAME", help="The user for whom it is.")
@click.option(
    "--for", "for_s", type=Seconds(min=60), default=259_200.0, show_default=True, help="How long it is valid."
)
@click.option("--reason", metavar="TEXT", help="Why, for the audit.")
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
@pass_options
def link(
    options: GlobalOptions, run_id: str, name: str | None, person: str, for_s: float, reason: str | None, as_data: bool
) -> int:
    """Print a signed link that opens an open question of RUN in a browser, for one person and without a login.

    Who has it answers as that person, as far as the person may. It ends with its time, when the user is disabled, and
    with the key of webhooks. It needs SLEIPNIR_CONSOLE_URL. GATE is named as for `answer`.
    """
    with options.connected(workers=False) as client:
        made = client.gate_links.make(_gate(client, run_id, name), person, for_s=for_s, reason=reason)
    if as_data:
        print_json({"url": made.url, "person": made.person, "until_ms": made.until_ms})
    else:
        click.echo(made.url)
        terminal.note(f"for {made.person}, until {moment(made.until_ms)}")
    return exit_codes.COMPLETED


def _inbox(client: Client, person: str | None) -> GateInbox:
    return (client if person is None else client.acting_as(client.actor.named(person))).gate_inbox


def _gate(client: Client, run_id: str, name: str | None) -> GateInfo:
    """The open question that is named, or the only one. Raises GateError."""
    still_open = client.run(run_id).gates()
    fitting = [gate for gate in still_open if name is None or name == str(gate.seq) or name in gate.names]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise GateError(f"run {run_id!r} has no open question" + (f" {name!r}" if name else ""))
    numbers = ", ".join(f"{gate.seq} ({gate.address})" for gate in fitting[:10])
    raise GateError(f"run {run_id!r} has several open questions: {numbers}. Name one by its number")
