"""Open questions over HTTP: who works on them, what people say of them, and links to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sleipnir.client.gate_inbox import CLAIM_S, GateInbox
from sleipnir.client.gate_links import LINK_S, GateLinks, NewLink
from sleipnir.client.http.connections import ApiRequest, ServerConnections, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.unserved import refusing
from sleipnir.errors import GateError
from sleipnir.graph.ways_on import WayOn
from sleipnir.runs.gate_filters import GateCounts, GateView, PageOfGates
from sleipnir.runs.views import GateInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_ON_PAGE: Final = 500


@refusing("GateInbox")
class HttpGateInbox(GateInbox):
    """The open questions of a server, as the person of the token sees them."""

    def __init__(self, server: ServerConnections) -> None:
        self._server = server

    def page(
        self,
        *,
        view: GateView = "all",
        node: str | None = None,
        agent: str | None = None,
        namespace: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> PageOfGates:
        """As GateInbox.page, up to 500."""
        query = {
            "view": view, "node": node, "agent": agent, "namespace": namespace, "after": after,
            "limit": min(max(1, limit), MOST_ON_PAGE),
        }  # fmt: skip
        found = self._server.get("/gates", query)
        return PageOfGates(decoded(tuple[GateInfo, ...], found["items"]), found["after"], found["looked"])

    def counts(self, *, namespace: str | None = None) -> GateCounts:
        """As GateInbox.counts."""
        return decoded(GateCounts, self._server.get("/gates/counts", {"namespace": namespace}))

    def ways_on(self, gate: GateInfo) -> list[WayOn]:
        """As GateInbox.ways_on; raises GateError for a question that is not open."""
        return decoded(list[WayOn], self._server.get(f"{_path(gate)}/ways-on", missing=GateError))

    def claim(self, gate: GateInfo, *, for_s: float = CLAIM_S, take_over: bool = False) -> int:
        """As GateInbox.claim."""
        return int(_change(self._server, gate, "claim", {"for_s": for_s, "take_over": take_over})["until_ms"])

    def release(self, gate: GateInfo) -> None:
        """As GateInbox.release."""
        _change(self._server, gate, "release", None)

    def assign(self, gate: GateInfo, person: str | None) -> None:
        """As GateInbox.assign."""
        _change(self._server, gate, "assign", {"person": person})

    def snooze(self, gate: GateInfo, until_ms: int | None) -> None:
        """As GateInbox.snooze."""
        _change(self._server, gate, "snooze", {"until_ms": until_ms})

    def comment(self, gate: GateInfo, text: str) -> None:
        """As GateInbox.comment."""
        _change(self._server, gate, "comment", {"text": text})


@refusing("GateLinks")
class HttpGateLinks(GateLinks):
    """Makes links to questions of a server."""

    def __init__(self, server: ServerConnections) -> None:
        self._server = server

    def make(self, gate: GateInfo, person: str, *, for_s: float = LINK_S, reason: str | None = None) -> NewLink:
        """As GateLinks.make."""
        made = _change(self._server, gate, "link", {"person": person, "for_s": for_s, "reason": reason})
        return NewLink(made["url"], made["person"], made["until_ms"])


def _path(gate: GateInfo) -> str:
    return f"/gates/{part(gate.run)}/{gate.seq}.{gate.attempt}"


def _change(server: ServerConnections, gate: GateInfo, what: str, body: Mapping[str, Any] | None) -> Any:
    """Each may be repeated."""
    answer = server.call(ApiRequest("POST", f"{_path(gate)}/{what}", None, body, repeats=True, missing=GateError))
    return of_json(answer) if answer else None
