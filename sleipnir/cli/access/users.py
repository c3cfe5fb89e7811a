"""`users`: the users of the HTTP API. A password comes from the terminal or from stdin, never from the arguments, which
every process of the machine can read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_user
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from sleipnir.access.records import User

ROLES = ("viewer", "approver", "operator", "admin")  # those of access/records.py, which --help does not load
MOST_LINE = 10_000  # characters of stdin

REASON = click.option("--reason", metavar="TEXT", help="Why, for the audit.")
_NAME = click.argument("name", shell_complete=complete_user)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
_STDIN = click.option("--password-stdin", is_flag=True, help="Read the password from stdin: its first line.")


@click.group()
def users() -> None:
    """Users of the HTTP API, and their roles: viewer, approver, operator or admin, in each namespace."""


@users.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the user may do.")
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NS", help="Where; may be repeated. Without it: everywhere."
)
@_STDIN
@click.option("--no-password", is_flag=True, help="For a user whom a trusted proxy names.")
@REASON
@_JSON
@pass_options
def add(
    options: GlobalOptions,
    name: str,
    role: str,
    namespaces: tuple[str, ...],
    password_stdin: bool,
    no_password: bool,
    reason: str | None,
    as_data: bool,
) -> None:
    """Add the user NAME. Its password is asked for, or read from stdin with --password-stdin."""
    if no_password and password_stdin:
        raise UsageError("--no-password and --password-stdin exclude each other")
    password = None if no_password else _password(password_stdin)
    roles = dict.fromkeys(namespaces or ("*",), role)
    with options.connected(workers=False) as client:
        added = client.access.add_user(name, password, roles, reason=reason)
    _report(added, f"user {name} is added", as_data)


@users.command()
@_NAME
@_STDIN
@REASON
@_JSON
@pass_options
def passwd(options: GlobalOptions, name: str, password_stdin: bool, reason: str | None, as_data: bool) -> None:
    """Change the password of NAME. All logins of the user end; tokens stay."""
    password = _password(password_stdin)
    with options.connected(workers=False) as client:
        changed = client.access.set_password(name, password, reason=reason)
    _report(changed, f"the password of {name} is changed, and all logins have ended", as_data)


@users.command()
@_NAME
@REASON
@_JSON
@pass_options
def disable(options: GlobalOptions, name: str, reason: str | None, as_data: bool) -> None:
    """Disable NAME: its logins end, and its tokens are refused."""
    with options.connected(workers=False) as client:
        changed = client.access.set_disabled(name, True, reason=reason)
    _report(changed, f"user {name} is disabled", as_data)


@users.command()
@_NAME
@REASON
@_JSON
@pass_options
def enable(options: GlobalOptions, name: str, reason: str | None, as_data: bool) -> None:
    """Enable NAME again, and its tokens with it."""
    with options.connected(workers=False) as client:
        changed = client.access.set_disabled(name, False, reason=reason)
    _report(changed, f"user {name} is enabled", as_data)


@users.command()
@_NAME
@click.argument("role", type=click.Choice((*ROLES, "none")))
@click.option("--namespace", default="*", metavar="NS", help="Where. Without it: everywhere.")
@REASON
@_JSON
@pass_options
def role(options: GlobalOptions, name: str, role: str, namespace: str, reason: str | None, as_data: bool) -> None:
    """Give NAME the ROLE, or take its role away (none). It applies from the next request on."""
    with options.connected(workers=False) as client:
        changed = client.access.set_role(name, namespace, None if role == "none" else role, reason=reason)
    _report(changed, f"{name}: {_roles(changed) or 'no role'}", as_data)


@users.command()
@_JSON
@pass_options
def ls(options: GlobalOptions, as_data: bool) -> None:
    """List the users and their roles."""
    with options.connected(workers=False) as client:
        found = client.access.users()
    if as_data:
        print_json([_to_data(user) for user in found])
    elif found:
        rows = [(user.name, _roles(user), _state(user), moment(user.created_ms)) for user in found]
        print_table(("user", "roles", "state", "added"), rows)
    else:
        terminal.note("no users")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline(MOST_LINE).rstrip("\r\n")
    if not terminal.can_ask():
        raise UsageError("there is no terminal to ask for a password; --password-stdin reads it from stdin")
    asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return asked


def _report(user: User, text: str, as_data: bool) -> None:
    if as_data:
        print_json(_to_data(user))
    else:
        terminal.note(text)


def _to_data(user: User) -> dict[str, Any]:
    return {
        "name": user.name, "roles": dict(user.roles), "disabled": user.disabled, "has_password": bool(user.password),
        "created_ms": user.created_ms,
    }  # fmt: skip


def _roles(user: User) -> str:
    return ", ".join(
        role if name == "*" else f"{role} in {name}" for name, role in sorted(user.roles.items())
    )  # fmt: skip


def _state(user: User) -> str:
    return "disabled" if user.disabled else "" if user.password else "no password"
