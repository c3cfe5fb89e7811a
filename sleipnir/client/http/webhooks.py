"""Webhooks and hooks over HTTP, for admins of the whole deployment. The tokens and the ids of the keys of their records
stay on the server: these fields are empty."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sleipnir.client.hooks import Hooks, NewHook
from sleipnir.client.http.connections import ApiRequest, ServerConnections, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.unserved import not_served, refusing
from sleipnir.client.webhooks import NewWebhook, Webhooks
from sleipnir.errors import HookNotFound, UsageError, WebhookNotFound
from sleipnir.webhooks.hooks import PER_MINUTE, Hook
from sleipnir.webhooks.records import Webhook, WebhookDelivery, WebhookInfo

_OF_INFO = ("waiting", "delivered", "failed", "lost", "failing_ms")


@refusing("Webhooks")
class HttpWebhooks(Webhooks):
    """The webhooks of a server."""

    def __init__(self, server: ServerConnections) -> None:
        self._server = server

    def add(
        self,
        name: str,
        url: str,
        on: Collection[str],
        *,
        agent: str | None = None,
        namespace: str | None = None,
        tags: Mapping[str, str] | None = None,
        links: bool = False,
        reason: str | None = None,
        by: str = "",
    ) -> NewWebhook:
        """As Webhooks.add. Not repeated: after a lost answer its name may be taken, and its secret is not known."""
        _refuse_by(by)
        body = {
            "name": name, "url": url, "on": list(on), "agent": agent, "namespace": namespace, "tags": dict(tags or {}),
            "links": links, "reason": reason,
        }  # fmt: skip
        made = _call(self._server, "POST", "/webhooks", body)
        return NewWebhook(made["secret"], _info(made["webhook"]))

    def all(self) -> list[WebhookInfo]:
        """As Webhooks.all."""
        return [_info(each) for each in self._server.get("/webhooks")]

    def get(self, name: str) -> WebhookInfo:
        """As Webhooks.get."""
        return _info(self._server.get(f"/webhooks/{part(name)}", missing=WebhookNotFound))

    def remove(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """As Webhooks.remove, without a reason. Not repeated."""
        _refuse_by(by)
        _refuse_reason("Webhooks.remove", reason)
        removed = self.get(name).webhook
        _call(self._server, "DELETE", f"/webhooks/{part(name)}", missing=WebhookNotFound)
        return removed

    def pause(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """As Webhooks.pause."""
        return self._steer(name, "pause", reason, by)

    def resume(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """As Webhooks.resume."""
        return self._steer(name, "resume", reason, by)

    def deliveries(self, name: str, limit: int = 50) -> list[WebhookDelivery]:
        """As Webhooks.deliveries, up to 500."""
        found = self._server.get(f"/webhooks/{part(name)}/deliveries", {"limit": limit}, missing=WebhookNotFound)
        return decoded(list[WebhookDelivery], found)

    def redeliver(self, delivery_id: str, *, reason: str | None = None, by: str = "") -> WebhookDelivery:
        """As Webhooks.redeliver."""
        _refuse_by(by)
        path = f"/webhook-deliveries/{part(delivery_id)}/redeliver"
        return decoded(WebhookDelivery, _call(self._server, "POST", path, {"reason": reason}, repeats=True))

    def _steer(self, name: str, verb: str, reason: str | None, by: str) -> Webhook:
        _refuse_by(by)
        path, body = f"/webhooks/{part(name)}/{verb}", {"reason": reason}
        return _info(_call(self._server, "POST", path, body, repeats=True, missing=WebhookNotFound)).webhook


@refusing("Hooks")
class HttpHooks(Hooks):
    """The hooks of a server."""

    def __init__(self, server: ServerConnections) -> None:
        self._server = server

    def add(
        self,
        name: str,
        *,
        form: str = "standard",
        agent: str | None = None,
        signal: str | None = None,
        prompt: str | None = None,
        inputs: Mapping[str, str] | None = None,
        header: str = "",
        algorithm: str = "sha256",
        id_header: str | None = None,
        id_field: str | None = None,
        namespace: str | None = None,
        per_minute: int = PER_MINUTE,
        own_secret: bool = False,
        reason: str | None = None,
    ) -> NewHook:
        """As Hooks.add. Not repeated: after a lost answer its name may be taken, and its secret is not known."""
        body = {
            "name": name, "form": form, "agent": agent, "signal": signal, "prompt": prompt,
            "inputs": dict(inputs or {}), "header": header, "algorithm": algorithm, "id_header": id_header,
            "id_field": id_field, "namespace": namespace, "per_minute": per_minute, "own_secret": own_secret,
            "reason": reason,
        }  # fmt: skip
        return _new_hook(_call(self._server, "POST", "/hooks", body))

    def all(self) -> list[Hook]:
        """As Hooks.all."""
        return [_hook(each) for each in self._server.get("/hooks")]

    def get(self, name: str) -> Hook:
        """As Hooks.get."""
        return _hook(self._server.get(f"/hooks/{part(name)}", missing=HookNotFound))

    def remove(self, name: str, *, reason: str | None = None) -> Hook:
        """As Hooks.remove, without a reason. Not repeated."""
        _refuse_reason("Hooks.remove", reason)
        removed = self.get(name)
        _call(self._server, "DELETE", f"/hooks/{part(name)}", missing=HookNotFound)
        return removed

    def rotate(self, name: str, *, overlap_s: float = 0.0, reason: str | None = None) -> NewHook:
        """As Hooks.rotate. Not repeated: each time makes another secret."""
        body = {"overlap_s": overlap_s, "reason": reason}
        return _new_hook(_call(self._server, "POST", f"/hooks/{part(name)}/rotate", body, missing=HookNotFound))


def _info(view: Mapping[str, Any]) -> WebhookInfo:
    fields = {name: value for name, value in view.items() if name not in (*_OF_INFO, "paused_by")}
    webhook = decoded(Webhook, {**fields, "token": "", "key": ""})
    return WebhookInfo(webhook, **{name: view[name] for name in _OF_INFO})


def _hook(view: Mapping[str, Any]) -> Hook:
    return decoded(Hook, {**view, "token": ""})


def _new_hook(made: Mapping[str, Any]) -> NewHook:
    return NewHook(_hook(made["hook"]), made["secret"])


def _refuse_by(by: str) -> None:
    if by:
        raise not_served("`by`", "who acts is said by the token")


def _refuse_reason(what: str, reason: str | None) -> None:
    if reason is not None:
        raise not_served(f"{what} with `reason`", "the API takes none")


def _call(
    server: ServerConnections,
    method: str,
    path: str,
    body: Any = None,
    *,
    repeats: bool = False,
    missing: type[UsageError] = UsageError,
) -> Any:
    answer = server.call(ApiRequest(method, path, None, body, repeats=repeats, missing=missing))
    return of_json(answer) if answer else None
