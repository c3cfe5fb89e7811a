"""`tokens`: access tokens for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.access.users import REASON, ROLES
from sleipnir.cli.completion import complete_access_token, complete_user
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from sleipnir.access.records import AccessToken

DAY_S = 24 * 3600
MOST_DAYS = 3_650
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.group()
def tokens() -> None:
    """Tokens for programs that use the HTTP API. Each acts for a user, and may be bound further."""


@tokens.command()
@click.argument("user", shell_complete=complete_user)
@click.option("--role", type=click.Choice(ROLES), default="admin", help="At most this role; without it the user's.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NS",
    help="Only there; may be repeated. Without it: everywhere.",
)
@click.option(
    "--days", type=click.IntRange(1, MOST_DAYS), default=90, show_default=True, help="It expires after so many days."
)
@click.option("--label", default="", metavar="TEXT", help="What it is for, in lists.")
@REASON
@_JSON
@pass_options
def create(
    options: GlobalOptions,
    user: str,
    role: str,
    namespaces: tuple[str, ...],
    days: int,
    label: str,
    reason: str | None,
    as_data: bool,
) -> None:
    """Print a new token that acts for USER. It is shown this once: only its hash is stored."""
    with options.connected(workers=False) as client:
        made = client.access.create_token(
            user, role=role, namespaces=namespaces or ("*",), expires_s=days * DAY_S, label=label, reason=reason
        )
    if as_data:
        print_json({"token": made.text, **_to_data(made.info)})
        return
    print(made.text)
    terminal.note(f"token {made.info.id} of {user} expires {moment(made.info.expires_ms)}; it is not shown again")


@tokens.command()
@_JSON
@pass_options
def ls(options: GlobalOptions, as_data: bool) -> None:
    """List the tokens, the oldest first, with their last use."""
    with options.connected(workers=False) as client:
        found, now_ms = client.access.tokens(), client.now_ms()
    if as_data:
        print_json([_to_data(token) for token in found])
    elif found:
        print_table(("id", "user", "role", "namespaces", "expires", "used", "label"), [_row(t, now_ms) for t in found])
    else:
        terminal.note("no tokens")


@tokens.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_access_token)
@REASON
@_JSON
@pass_options
def revoke(options: GlobalOptions, ids: tuple[str, ...], reason: str | None, as_data: bool) -> None:
    """Revoke tokens: they are refused from the next request on."""
    with options.connected(workers=False) as client:
        gone = [client.access.revoke_token(id_, reason=reason) for id_ in dict.fromkeys(ids)]
    if as_data:
        print_json([_to_data(token) for token in gone])
    else:
        for token in gone:
            terminal.note(f"token {token.id} of {token.user} is revoked")


def _row(token: AccessToken, now_ms: int) -> tuple[str, ...]:
    expires = moment(token.expires_ms) if token.expires_ms else "never"
    is_over = token.expires_ms is not None and now_ms >= token.expires_ms
    return (
        token.id, token.user, token.role, ", ".join(token.namespaces), f"expired {expires}" if is_over else expires,
        moment(token.used_ms) if token.used_ms else "", printable(token.label),
    )  # fmt: skip


def _to_data(token: AccessToken) -> dict[str, Any]:
    """All but the hash."""
    return {
        "id": token.id, "user": token.user, "role": token.role, "namespaces": list(token.namespaces),
        "created_ms": token.created_ms, "expires_ms": token.expires_ms, "used_ms": token.used_ms, "label": token.label,
    }  # fmt: skip
