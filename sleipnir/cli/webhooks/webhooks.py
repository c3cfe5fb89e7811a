"""`webhooks`: tell other programs what happens, by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.access.users import REASON
from sleipnir.cli.completion import complete_tag, complete_webhook
from sleipnir.cli.fleet.services import become, sender_command
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.runs.tag_values import tag_values
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_fields, print_json, print_table
from sleipnir.runs.plain_text import duration, one_line, printable

if TYPE_CHECKING:
    from sleipnir.webhooks.records import Webhook, WebhookDelivery, WebhookInfo

OCCASIONS = ("run_ended", "gate_opened", "gate_expiring", "batch_done", "budget_reached")  # as in webhooks/records.py
SHOWN = 60  # characters of an error

_NAME = click.argument("name", shell_complete=complete_webhook)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.group()
def webhooks() -> None:
    """Tell other programs by signed HTTP requests when runs end and questions open."""


@webhooks.command()
@click.argument("name")
@click.argument("url")
@click.option("--on", "on", multiple=True, required=True, type=click.Choice(OCCASIONS), help="May be repeated.")
@click.option("--agent", metavar="NAME", help="Only about runs of this agent.")
@click.option("--namespace", metavar="NS", help="Only about runs of this namespace.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=TEXT",
    callback=tag_values,
    shell_complete=complete_tag,
    help="Only about runs with this tag; repeatable.",
)
@click.option("--links", is_flag=True, help="With signed links to questions for their assignees.")
@REASON
@_JSON
@pass_options
def add(
    options: GlobalOptions,
    name: str,
    url: str,
    on: tuple[str, ...],
    agent: str | None,
    namespace: str | None,
    tags: dict[str, str],
    links: bool,
    reason: str | None,
    as_data: bool,
) -> None:
    """Send what happens to URL, and print the secret of its signatures. It is shown this once: it is not stored."""
    with options.connected(workers=False) as client:
        made = client.webhooks.add(
            name, url, on, agent=agent, namespace=namespace, tags=tags, links=links, reason=reason
        )
        senders = client.webhooks.senders()
    if as_data:
        print_json({"secret": made.secret, **_to_data(made.info)})
        return
    print(made.secret)
    terminal.note(f"webhook {name} is added; its secret is not shown again")
    if not senders:
        terminal.note("no process sends webhooks: start `sleipnir webhooks send`, or `sleipnir up --webhooks`")


@webhooks.command()
@_JSON
@pass_options
def ls(options: GlobalOptions, as_data: bool) -> None:
    """List the webhooks with the numbers of their deliveries."""
    with options.connected(workers=False) as client:
        found, lost, now_ms = client.webhooks.all(), client.webhooks.lost_notes(), client.now_ms()
    if as_data:
        print_json([_to_data(info) for info in found])
        return
    if not found:
        terminal.note("no webhooks")
        return
    print_table(
        ("name", "state", "on", "url", "waiting", "delivered", "failed", "lost"), [_row(info, now_ms) for info in found]
    )
    if lost:
        terminal.note(f"{lost:,} times something happened of which no webhook was told, because no sender ran for long")


@webhooks.command()
@_NAME
@_JSON
@pass_options
def show(options: GlobalOptions, name: str, as_data: bool) -> None:
    """Show one webhook."""
    with options.connected(workers=False) as client:
        info, now_ms = client.webhooks.get(name), client.now_ms()
    if as_data:
        print_json(_to_data(info))
        return
    webhook = info.webhook
    fields = {
        "name": webhook.name,
        "state": _state(info, now_ms),
        "on": ", ".join(webhook.on),
        "url": webhook.url,
        "agent": webhook.agent or "",
        "namespace": webhook.namespace or "",
        "tags": ", ".join(f"{key}={value}" for key, value in webhook.tags.items()),
        "added": f"{moment(webhook.created_ms)} by {webhook.created_by}",
        "key": webhook.key,
        "sent": f"{info.waiting:,} wait, {info.delivered:,} delivered, {info.failed:,} failed, {info.lost:,} lost",
    }
    print_fields((key, value) for key, value in fields.items() if value)


@webhooks.command()
@_NAME
@REASON
@pass_options
def rm(options: GlobalOptions, name: str, reason: str | None) -> None:
    """Remove a webhook with all of its deliveries."""
    with options.connected(workers=False) as client:
        client.webhooks.remove(name, reason=reason)
    terminal.note(f"webhook {name} is removed")


@webhooks.command()
@_NAME
@REASON
@pass_options
def pause(options: GlobalOptions, name: str, reason: str | None) -> None:
    """Let the deliveries of a webhook wait."""
    with options.connected(workers=False) as client:
        client.webhooks.pause(name, reason=reason)
    terminal.note(f"webhook {name} is paused; `sleipnir webhooks resume {name}` sends what waits")


@webhooks.command()
@_NAME
@REASON
@pass_options
def resume(options: GlobalOptions, name: str, reason: str | None) -> None:
    """Send the deliveries of a paused webhook."""
    with options.connected(workers=False) as client:
        client.webhooks.resume(name, reason=reason)
    terminal.note(f"webhook {name} is resumed")


@webhooks.command()
@_NAME
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number.")
@_JSON
@pass_options
def deliveries(options: GlobalOptions, name: str, limit: int, as_data: bool) -> None:
    """List the deliveries of a webhook: those that wait, then those that are over, the last ones first."""
    with options.connected(workers=False) as client:
        found = client.webhooks.deliveries(name, limit)
    if as_data:
        print_json([as_json(each) for each in found])
    elif found:
        print_table(
            ("id", "about", "of", "status", "tries", "next or last", "error"), [_delivery_row(d) for d in found]
        )
    else:
        terminal.note("no deliveries")


@webhooks.command()
@click.argument("delivery_id", metavar="ID")
@REASON
@pass_options
def redeliver(options: GlobalOptions, delivery_id: str, reason: str | None) -> None:
    """Send a delivery again, with the same id."""
    with options.connected(workers=False) as client:
        client.webhooks.redeliver(delivery_id, reason=reason)
    terminal.note(f"delivery {delivery_id} waits to be sent")


@webhooks.command()
@pass_options
def send(options: GlobalOptions) -> None:
    """Become the process that sends webhooks. Any number may run."""
    become(sender_command(), options.settings())


def _state(info: WebhookInfo, now_ms: int) -> str:
    paused = info.webhook.paused
    if paused is not None:
        why = f": {one_line(paused.reason, SHOWN)}" if paused.reason else ""
        return f"paused by {printable(paused.by)}{why}"
    return "active" if info.failing_ms is None else f"failing for {duration(max(0, now_ms - info.failing_ms))}"


def _row(info: WebhookInfo, now_ms: int) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (info.waiting, info.delivered, info.failed, info.lost))
    webhook: Webhook = info.webhook
    return webhook.name, _state(info, now_ms), ", ".join(webhook.on), printable(webhook.url), *counts


def _delivery_row(delivery: WebhookDelivery) -> tuple[str, ...]:
    at_ms = delivery.next_ms or delivery.tried_ms or delivery.created_ms
    return (
        delivery.id, delivery.occasion, delivery.of, delivery.status, str(delivery.attempts), moment(at_ms),
        one_line(delivery.error or "", SHOWN),
    )  # fmt: skip


def _to_data(info: WebhookInfo) -> dict[str, Any]:
    counts = as_json(info)
    webhook = counts.pop("webhook")
    hidden = ("token", "changed", "v")
    return {**{name: value for name, value in webhook.items() if name not in hidden}, **counts}
