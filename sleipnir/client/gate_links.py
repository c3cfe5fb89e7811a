"""Signed links to questions: `client.gate_links`.

    made = client.gate_links.make(gate, "ann", for_s=86_400)
    print(made.url)

A person who has a link answers that question in the name of its person. It gives no right that this person does not
have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from sleipnir.access.audit import audit_text
from sleipnir.access.records import Identity
from sleipnir.errors import ConfigError, RunNotFound, UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.webhooks.gate_links import GateLink, LinkDamaged, link_of, token_of, url_of
from sleipnir.webhooks.signatures import SigningKeys

if TYPE_CHECKING:
    from sleipnir.runs.views import GateInfo
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

LINK_S: Final = 3 * 24 * 3600.0
MOST_LINK_S: Final = 31 * 24 * 3600.0

LinkProblem: TypeAlias = Literal["damaged", "expired", "person"]
"""Why a link opens nothing: it is no link of this deployment; its time is over; its person is no user, is disabled or
has no role there."""


class LinkRefused(UsageError):
    """A link that opens nothing. `by` is who has made it; empty: not known."""

    def __init__(self, problem: LinkProblem, text: str, by: str = "") -> None:
        super().__init__(text)
        self.problem, self.by = problem, by


@dataclass(frozen=True)
class NewLink:
    """A link that was made: it is stored nowhere, and shown this once."""

    url: str = field(repr=False)
    person: str
    until_ms: int


@dataclass(frozen=True)
class OpenedLink:
    """A link that is valid now, and the role of its person where the run is."""

    link: GateLink
    role: str


class GateLinks:
    """Makes and checks links. Every operation raises StoreUnavailable, and ConfigError without a key."""

    def __init__(self, store: Store, settings: Settings, by: str) -> None:
        self._store, self._settings, self._by = store, settings, by

    def make(self, gate: GateInfo, person: str, *, for_s: float = LINK_S, reason: str | None = None) -> NewLink:
        """A link for `person` that is valid for `for_s`, with its entry in the audit. The same request soon after that
        gets the same link: it is no second change. Raises UsageError for who is no
        user, is disabled or has no role where the run is, and ConfigError without SLEIPNIR_CONSOLE_URL."""
        if not self._settings.console_url:
            raise ConfigError("SLEIPNIR_CONSOLE_URL is not set: the address at which people reach the console")
        if isinstance(for_s, bool) or not 60 <= for_s <= MOST_LINK_S:
            raise UsageError(f"a link is valid for 60 to {MOST_LINK_S:,.0f} seconds, not {for_s!r:.40}")
        keys = SigningKeys.of_file_or_new(self._settings.webhook_key_file)
        with self._store.errors():
            if self._role(person, gate.run) is None:
                raise UsageError(f"{person!r:.80} is no user, is disabled, or has no role where run {gate.run!r} is")
            link = GateLink(keys.newest, gate.run, gate.seq, gate.attempt, person, 0, self._by)

            def entry(until_ms: int) -> str:
                after = {"person": person, "until_ms": until_ms}
                return audit_text("link made", f"run {gate.run}/{gate.seq}", self._by, after=after, reason=reason)

            now_ms, for_ms = self._store.now_ms(), round(for_s * 1000)
            asked = compact_json([vars(link), for_ms, reason])
            request = sha256(asked.encode()).hexdigest()
            until_ms = self._store.access.make_link(gate.run, request, now_ms, for_ms, entry)
            link = replace(link, until_ms=until_ms)
        return NewLink(url_of(self._settings.console_url, token_of(link, keys)), person, until_ms)

    def opened(self, token: str) -> OpenedLink:
        """The link of a token, if it is valid now. Whether its question is open is not looked at. Raises
        LinkRefused."""
        try:
            link = link_of(token, SigningKeys.of_file(self._settings.webhook_key_file))
        except (LinkDamaged, ConfigError):
            raise LinkRefused("damaged", "this link is damaged, or was withdrawn") from None
        with self._store.errors():
            if self._store.now_ms() >= link.until_ms:
                raise LinkRefused("expired", "this link has expired", link.by)
            role = self._role(link.person, link.run)
        if role is None:
            raise LinkRefused("person", f"{link.person} has no access there any more", link.by)
        return OpenedLink(link, role)

    def _role(self, person: str, run: str) -> str | None:
        """The role of a user in the namespace of a run; None: none, or the run is gone."""
        found = self._store.access.user(person)
        if found is None or found.value.disabled:
            return None
        try:
            namespace = self._store.runs.spec(run).namespace
        except RunNotFound:
            return None
        return Identity(found.value.name, found.value.roles, "login").role_in(namespace)
