"""`incident`: pause everything of a namespace or of the deployment, look at it, and let it go on in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import NAMESPACE
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.deployment_holds import DEPLOYMENT, resumption_in_words, scope_in_words
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.runs.deployment_holds import ScopeHold

_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
_DEPLOYMENT = click.option("--deployment", is_flag=True, help="All namespaces, instead of one.")


@click.group()
def incident() -> None:
    """Pause everything of a namespace or of the deployment, then resume it in parts.

    Runs are still accepted, visits that run finish, answers and cancels are taken; no further visit starts. The switch
    is stored in Redis and survives every process.
    """


@incident.command()
@_JSON
@pass_options
def show(options: GlobalOptions, /, as_data: bool) -> int:
    """Show what is paused, by whom and why, and what of it goes on."""
    with options.connected(workers=False) as client:
        holds = client.holds()
    if as_data:
        print_json(holds)
        return exit_codes.COMPLETED
    if not holds:
        terminal.note("nothing is paused as a whole")
        return exit_codes.COMPLETED
    print_table(
        ("paused", "since", "by", "reason", "goes on"),
        [
            (
                scope_in_words(held.scope),
                moment(held.hold.at_ms),
                printable(held.hold.by),
                one_line(held.hold.reason or "-", 60),
                resumption_in_words(held),
            )
            for held in holds
        ],
    )
    return exit_codes.COMPLETED


@incident.command()
@click.option("--reason", required=True, metavar="TEXT", help="Why, for everybody who looks at a run meanwhile.")
@NAMESPACE
@_DEPLOYMENT
@_JSON
@pass_options
def pause(options: GlobalOptions, /, reason: str, namespace: str | None, deployment: bool, as_data: bool) -> int:
    """Pause everything of a namespace: no visit starts, also of runs that are submitted later.

    Without --namespace it is that of SLEIPNIR_NAMESPACE. What is paused already stays as it is.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty; say why, for those who look at a run meanwhile")
    with options.connected(workers=False) as client:
        scope = _scope(client, namespace, deployment)
        client.pause_all(reason=reason, namespace=scope)
        return _shown(client, scope, as_data=as_data)


@incident.command()
@click.option(
    "--agent", "agents", multiple=True, metavar="AGENT", shell_complete=complete_agent,
    help="All runs of this agent; repeatable.",
)  # fmt: skip
@click.option("--rate", type=float, metavar="N", help="N runs a second of the others, the oldest first.")
@click.option("--all", "everything", is_flag=True, help="Everything; the pause ends.")
@NAMESPACE
@_DEPLOYMENT
@_JSON
@pass_options
def resume(
    options: GlobalOptions,
    /,
    agents: tuple[str, ...],
    rate: float | None,
    everything: bool,
    namespace: str | None,
    deployment: bool,
    as_data: bool,
) -> int:
    """Let a part of what is paused go on, or all of it.

    A child run counts by its own agent. At a rate, child runs that are created later go on with their parents.
    """
    if everything and (agents or rate is not None):
        raise click.UsageError("--all is everything; leave --agent and --rate out")
    if not everything and not agents and rate is None:
        raise click.UsageError("say what goes on: --agent AGENT, --rate N, or --all")
    with options.connected(workers=False) as client:
        scope = _scope(client, namespace, deployment)
        if not everything:
            client.resume_part(agents=agents, rate=rate, namespace=scope)
            return _shown(client, scope, as_data=as_data)
        was_held = client.resume_all(namespace=None if scope == DEPLOYMENT else scope)
    if as_data:
        print_json({"scope": scope, "was_paused": was_held})
    else:
        terminal.note(f"{scope_in_words(scope)} {'is resumed' if was_held else 'was not paused'}")
    return exit_codes.COMPLETED


def _scope(client: Client, namespace: str | None, deployment: bool) -> str:
    if deployment and namespace is not None:
        raise click.UsageError("--deployment is all namespaces; leave --namespace out")
    return DEPLOYMENT if deployment else namespace or client.settings.namespace


def _shown(client: Client, scope: str, *, as_data: bool) -> int:
    """Print the hold of a scope as it is now."""
    held: ScopeHold | None = next((each for each in client.holds() if each.scope == scope), None)
    if as_data:
        print_json(held)
    elif held is None:
        terminal.note(f"{scope_in_words(scope)} is not paused any more")
    else:
        terminal.note(
            f"{scope_in_words(scope)} is paused (by {printable(held.hold.by)}); {printable(resumption_in_words(held))}"
        )
    return exit_codes.COMPLETED
