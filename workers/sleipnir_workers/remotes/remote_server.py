"""Calls of one remote agent: its card, the messages of a task, its state, its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import RemoteNode
from sleipnir.graph.plain import compact_json
from sleipnir.webhooks.addresses import AddressGuard
from sleipnir_workers.machine.host import Host
from sleipnir_workers.machine.keyring import Keyring, keyring_of
from sleipnir_workers.remotes.agent_card import MOST_CARD_BYTES, AgentCards, RemoteEndpoint
from sleipnir_workers.remotes.request import RemoteFailure, request
from sleipnir_workers.remotes.task_forms import RemoteTask, sent_message, sent_result, task_of

TOKEN_SUFFIX: Final = "_A2A_TOKEN"
"""The end of the name of a worker's secret that holds a token: `ORIGIN TOKEN`."""

BAD_PARAMETERS: Final = -32602
UNSUPPORTED: Final = -32004
_INTERNAL: Final = -32603
_NO_TASK: Final = -32001
_NEW: Final[Mapping[str, str]] = {"send": "SendMessage", "get": "GetTask", "cancel": "CancelTask"}
_OLD: Final[Mapping[str, str]] = {"send": "message/send", "get": "tasks/get", "cancel": "tasks/cancel"}
_MOST_SHOWN: Final = 500

cards = AgentCards()


class TaskRefused(NodeFailed):
    """The remote agent has refused a call, with a code of JSON-RPC."""

    def __init__(self, message: str, rpc_code: int) -> None:
        super().__init__(message, "remote_refused")
        self.rpc_code = rpc_code


@dataclass(frozen=True)
class AgentAtRemote:
    """The agent of a node, as this worker reaches it. The methods raise RemoteFailure, and NodeFailed."""

    node: RemoteNode
    host: Host

    @cached_property
    def _guard(self) -> AddressGuard:
        return AddressGuard.of(self.host.settings.remote_networks, "SLEIPNIR_REMOTE_NETWORKS")

    @cached_property
    def _keyring(self) -> Keyring:
        return keyring_of(self.host)

    @cached_property
    def _token(self) -> tuple[str, str] | None:
        """The origin that gets the token, and the token."""
        if self.node.token is None:
            return None
        name = self.node.token + TOKEN_SUFFIX
        origin, _, token = self._keyring.env.get(name, "").strip().partition(" ")
        token = token.strip()
        if not origin or not token or not token.isascii() or not token.isprintable():
            message = f"this worker has no token {name}: give its environment {name}='https://HOST TOKEN'"
            raise NodeFailed(message, "remote_auth")
        return origin_of(origin), token

    @property
    def endpoint(self) -> RemoteEndpoint:
        return cards.endpoint(self.node.url, self.node.token or "", self._card)

    def send(
        self, id_: str, text: str, data: Any = None, *, task: str | None = None, context: str | None = None,
        gate: str | None = None,
    ) -> RemoteTask:  # fmt: skip
        """Begin a task, or answer its question. The answer comes at once."""
        is_new = self.endpoint.is_new
        message = sent_message(id_, text, data, is_new=is_new, task=task, context=context, gate=gate)
        return sent_result(self._call("send", message), is_new=is_new)

    def get(self, task: str) -> RemoteTask:
        """A task as it is now."""
        return task_of(self._call("get", {"id": task}))

    def cancel(self, task: str) -> None:
        """Cancel a task; one that is over, or unknown, is left alone."""
        try:
            self._call("cancel", {"id": task})
        except TaskRefused as refused:
            if refused.rpc_code not in (_NO_TASK, -32002):
                raise

    def clean(self, text: str) -> str:
        """A text without the secrets of this worker, of a size that can be shown."""
        token = self._token
        return self._keyring.clean(text[:_MOST_SHOWN], () if token is None else (token[1],))

    def _call(self, method: str, parameters: Mapping[str, Any]) -> Any:
        endpoint = self.endpoint
        name = (_NEW if endpoint.is_new else _OLD)[method]
        body = {"jsonrpc": "2.0", "id": 1, "method": name, "params": parameters}
        headers = {"Content-Type": "application/json", "A2A-Version": "1.0" if endpoint.is_new else "0.3"}
        most_bytes = self.host.settings.max_output_bytes
        try:
            answer = self._json(endpoint.url, headers, compact_json(body).encode(), most_bytes)
        except (RemoteFailure, NodeFailed):
            cards.forget(self.node.url, self.node.token or "")  # it may have moved
            raise
        if (error := answer.get("error")) is not None:
            code = error.get("code") if isinstance(error, dict) else None
            message = error.get("message") if isinstance(error, dict) else error
            why = f"the remote agent refuses {name}: {self.clean(str(message))} ({code})"
            if code == _INTERNAL and method != "send":
                raise RemoteFailure(why)
            raise TaskRefused(why, code if isinstance(code, int) else 0)
        return answer.get("result")

    def _card(self, url: str) -> Mapping[str, Any]:
        return self._json(url, {"Accept": "application/json"}, None, MOST_CARD_BYTES)

    def _json(self, url: str, headers: Mapping[str, str], body: bytes | None, most_bytes: int) -> Mapping[str, Any]:
        """The JSON object that a server has answered."""
        if self._token is not None and origin_of(url) == self._token[0]:
            headers = {**headers, "Authorization": f"Bearer {self._token[1]}"}
        response = request(url, headers, body, guard=self._guard, most_bytes=most_bytes)
        host = urlsplit(url).hostname
        shown = self.clean(" ".join(response.body[:2000].decode(errors="replace").split()))
        if response.status in (408, 425, 429) or response.status >= 500:
            raise RemoteFailure(f"{host}: status {response.status}: {shown}")
        try:
            data = json.loads(response.body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            data = None
        is_answer = isinstance(data, dict) and (response.status == 200 or (body is not None and "error" in data))
        if response.status in (401, 403) or not is_answer:
            kind = "remote_auth" if response.status in (401, 403) else "protocol"
            raise NodeFailed(f"{host}: status {response.status}, and no answer of A2A: {shown}", kind)
        assert isinstance(data, dict)
        return data


def origin_of(url: str) -> str:
    """The scheme, host and port of a URL. Raises NodeFailed."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise NodeFailed("the origin of a token must be a URL", "remote_auth") from None
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
