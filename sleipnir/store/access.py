"""Users, access tokens, logins and webhooks in Redis, failed logins, and all entries of the audit.

A change is made of a record that was read: if another one came first, the caller reads again. What is stored of a
secret is its hash.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sleipnir.access.audit import MOST_ENTRIES, AuditEntry
from sleipnir.access.records import LOGIN_MS, AccessToken, Login, User
from sleipnir.decoding import decoded_object, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run_filters import DiscardNote
from sleipnir.store.connect import Client, clock_ms, time_ms
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript
from sleipnir.webhooks.records import Webhook

_CHANGE = LuaScript("change_access")
_ATTEMPT = LuaScript("login_attempt")

USER_FREE: Final = 5
USER_MOST_MS: Final = 30_000
"""Short: others may make the attempts, and must not lock the user out."""
ADDRESS_FREE: Final = 20
ADDRESS_MOST_MS: Final = 15 * 60_000
FAILED_MS: Final = 3600 * 1000
"""Failures are forgotten so long after the last attempt."""
PROOF_MS: Final = 3600 * 1000
"""Longer than a login provider and a begun login let a proof be used."""
SAME_LINK_MS: Final = 10 * 60_000
"""A link that is asked for again within this time, or a tenth of its own, is the same one."""

_PAGE = 200

T = TypeVar("T")


@dataclass(frozen=True)
class Stored(Generic[T]):
    """A record with the text that it was read from, for a change that compares it."""

    value: T
    text: str


class AccessRecords:
    """`keep_ms`: how long entries of the audit are kept."""

    def __init__(self, client: Client, keys: Keys, *, keep_ms: int) -> None:
        self._client, self._keys, self._keep_ms = client, keys.access, keep_ms
        of_partitions = (keys.of_partition(number).audit for number in range(keys.partitions))
        self._audits = [self._keys.audit, keys.limit_changes.audit, *of_partitions]

    def now_ms(self) -> int:
        return clock_ms(self._client)

    # Users.

    def users(self) -> list[User]:
        """All users by name. Raises RecordUnreadable."""
        return [stored.value for stored in self.stored_users()]

    def has_users(self) -> bool:
        return bool(self._client.exists(self._keys.users))

    def user(self, name: str) -> Stored[User] | None:
        """Raises RecordUnreadable."""
        return _stored(User, self._client.hget(self._keys.users, name), "user", name)

    def change_user(
        self,
        was: Stored[User] | None,
        user: User,
        entry: str,
        *,
        revoke: bool = False,
        witness: Stored[User] | None = None,
    ) -> bool:
        """Store a user, new if `was` is None; `revoke` ends all logins of it. False: it, or the `witness`, has changed
        since."""
        before = was.text if was else ""
        return self._change(
            self._keys.users, user.name, before, record(user), user.name,
            revoke=revoke, witness=witness, entry=entry,
        )  # fmt: skip

    def stored_users(self) -> list[Stored[User]]:
        """All users by name, with their texts. Raises RecordUnreadable."""
        stored = self._client.hgetall(self._keys.users)
        return [Stored(read_text(User, stored[name], "user", name), stored[name]) for name in sorted(stored)]

    # Tokens.

    def tokens(self) -> list[AccessToken]:
        """All tokens, the oldest first. Raises RecordUnreadable."""
        stored = self._client.hgetall(self._keys.tokens)
        tokens = [read_text(AccessToken, text, "access token", id_) for id_, text in stored.items()]
        return sorted(tokens, key=lambda token: (token.created_ms, token.id))

    def token(self, id_: str) -> Stored[AccessToken] | None:
        """Raises RecordUnreadable."""
        return _stored(AccessToken, self._client.hget(self._keys.tokens, id_), "access token", id_)

    def token_with_user(self, id_: str) -> tuple[Stored[AccessToken], Stored[User] | None, int] | None:
        """A token, its user and the time. Raises RecordUnreadable."""
        token = self.token(id_)
        if token is None:
            return None
        text, now_ms = self._user_and_time(token.value.user)
        return token, _stored(User, text, "user", token.value.user), now_ms

    def add_token(self, token: AccessToken, owner: Stored[User], entry: str) -> bool:
        """False: the user has changed since."""
        return self._change(self._keys.tokens, token.id, "", record(token), token.user, witness=owner, entry=entry)

    def change_token(self, was: Stored[AccessToken], token: AccessToken | None, entry: str = "") -> bool:
        """Store a token again, or remove it. False: it has changed since."""
        after = record(token) if token else ""
        return self._change(self._keys.tokens, was.value.id, was.text, after, was.value.user, entry=entry)

    # Webhooks.

    def webhooks(self, *, of_all_releases: bool = False) -> list[Webhook]:
        """All webhooks by name. One that cannot be read is left out: `webhook` says why. `of_all_releases`: one that a
        newer release has written raises RecordUnreadable."""
        found = []
        for name, text in sorted(self._client.hgetall(self._keys.webhooks).items()):
            try:
                found.append(read_text(Webhook, text, "webhook", name))
            except RecordUnreadable as error:
                if of_all_releases and error.newer:
                    raise
        return found

    def webhook_count(self) -> int:
        return int(self._client.hlen(self._keys.webhooks))

    def webhook(self, name: str) -> Stored[Webhook] | None:
        """Raises RecordUnreadable."""
        return _stored(Webhook, self._client.hget(self._keys.webhooks, name), "webhook", name)

    def change_webhook(self, name: str, was: Stored[Webhook] | None, webhook: Webhook | None, entry: str) -> bool:
        """Store a webhook, new if `was` is None, or remove it. False: it has changed since."""
        before, after = was.text if was else "", record(webhook) if webhook else ""
        return self._change(self._keys.webhooks, name, before, after, "", entry=entry)

    def change_record(self, records: str, name: str, before: str, after: str, entry: str) -> bool:
        """Change a record of another kind with its entry of the audit: store.hooks. False: it has changed since."""
        return self._change(records, name, before, after, "", entry=entry)

    # Logins.

    def login_with_user(self, user: str, digest: str) -> tuple[Stored[Login], Stored[User], int] | None:
        """A login, its user and the time. Raises RecordUnreadable."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hget(self._keys.logins(user), digest)
        pipe.hget(self._keys.users, user)
        pipe.time()
        login_text, user_text, time = pipe.execute()
        login, owner = _stored(Login, login_text, "login", user), _stored(User, user_text, "user", user)
        return None if login is None or owner is None else (login, owner, time_ms(time))

    def logins(self, user: str) -> dict[str, Login]:
        """The logins of a user by the SHA-256 of their secret. Raises RecordUnreadable."""
        stored = self._client.hgetall(self._keys.logins(user))
        return {digest: read_text(Login, text, "login", user) for digest, text in stored.items()}

    def add_login(self, owner: Stored[User], digest: str, login: Login, entry: str) -> bool:
        """False: the user has changed since, so that the password that was compared may be an old one."""
        user = owner.value.name
        return self._change(
            self._keys.logins(user), digest, "", record(login), user,
            witness=owner, ttl_ms=LOGIN_MS, entry=entry,
        )  # fmt: skip

    def touch_login(self, user: str, digest: str, was: Stored[Login], login: Login) -> None:
        """Write the last use. A login that was revoked meanwhile stays so."""
        self._change(self._keys.logins(user), digest, was.text, record(login), user)

    def end_login(self, user: str, digest: str, entry: str) -> bool:
        """End one login, with an entry of the audit. False: it has ended."""
        logins = self._keys.logins(user)
        while text := self._client.hget(logins, digest):
            if self._change(logins, digest, text, "", user, entry=entry):
                return True
        return False

    def end_logins(self, user: str, digests: list[str]) -> None:
        if digests:
            self._client.hdel(self._keys.logins(user), *digests)

    # Failed logins.

    def attempt(self, user: str, address: str, attempt: str, *, passed: bool = False) -> int:
        """Count an attempt as a failure, or, `passed`, take that back. Returns the ms for which attempts of this user
        or from this address are refused; 0: go on."""
        args: dict[str, Arg] = {
            "attempt": attempt, "passed": int(passed), "user_free": USER_FREE, "user_most_ms": USER_MOST_MS,
            "address_free": ADDRESS_FREE, "address_most_ms": ADDRESS_MOST_MS, "keep_ms": FAILED_MS,
        }  # fmt: skip
        keys = {"of_user": self._keys.failed("user", user), "of_address": self._keys.failed("address", address)}
        return int(_ATTEMPT(self._client, keys, args))

    def use_proof(self, digest: str, attempt: str) -> bool:
        """Whether this attempt is the only one that uses a proof of a login provider."""
        key = self._keys.proof(digest)
        is_first = self._client.set(key, attempt, nx=True, px=PROOF_MS)
        return bool(is_first) or self._client.get(key) == attempt  # this one, whose first reply was lost

    def make_link(self, run: str, request: str, now_ms: int, for_ms: int, entry_of: Callable[[int], str]) -> int:
        """Until when the link lasts that a `request`, of which this is the digest, makes. The same request again is the
        same link, and no second entry of the audit."""
        key, until_ms = self._keys.made_links(run), now_ms + for_ms
        while True:
            before = self._client.hget(key, request)
            if before is not None and 0 <= until_ms - int(before) <= min(SAME_LINK_MS, for_ms // 10):
                return int(before)
            entry = entry_of(until_ms)
            if self._change(key, request, before or "", str(until_ms), "", ttl_ms=SAME_LINK_MS, entry=entry):
                return until_ms

    # Groups of failures.

    def discard_notes(self, namespace: str, fingerprints: Collection[str]) -> dict[str, Stored[DiscardNote]]:
        """The notes of groups of failures in a namespace, by fingerprint. One that cannot be read is left out."""
        names = list(fingerprints)
        if not names:
            return {}
        found = {}
        texts = self._client.hmget(self._keys.discarded, [f"{namespace} {name}" for name in names])
        for name, text in zip(names, texts, strict=True):
            try:
                if (stored := _stored(DiscardNote, text, "note on failures", name)) is not None:
                    found[name] = stored
            except RecordUnreadable:
                continue
        return found

    def change_discard_note(
        self,
        namespace: str,
        fingerprint: str,
        was: Stored[DiscardNote] | None,
        note: DiscardNote | None,
        *,
        ttl_ms: int,
        entry: str,
    ) -> bool:
        """Store a note, or remove it. False: it has changed since."""
        before, after = was.text if was else "", record(note) if note else ""
        return self._change(
            self._keys.discarded, f"{namespace} {fingerprint}", before, after, "", ttl_ms=ttl_ms, entry=entry
        )

    # The audit.

    def note(self, entry: str) -> None:
        """Write an entry of a change that is not of these records."""
        self._client.xadd(self._keys.audit, {"e": entry}, maxlen=MOST_ENTRIES, approximate=True)

    def entries(
        self, *, oldest_ms: int = 0, newest_ms: int | None = None, newest_first: bool = False
    ) -> Iterator[AuditEntry]:
        """The entries within their retention, from one time to another, both included. One that cannot be read is
        `unreadable`."""
        first = str(max(0, oldest_ms, self.now_ms() - self._keep_ms))
        last = "+" if newest_ms is None else str(newest_ms)
        streams = [self._entries_of(stream, first, last, newest_first) for stream in self._audits]
        return heapq.merge(*streams, key=lambda entry: entry.at_ms, reverse=newest_first)

    def _entries_of(self, stream: str, first: str, last: str, newest_first: bool) -> Iterator[AuditEntry]:
        page: list[tuple[str, Mapping[str, str]]]
        edge = last if newest_first else first
        while True:
            if newest_first:
                page = self._client.xrevrange(stream, edge, first, count=_PAGE)
            else:
                page = self._client.xrange(stream, edge, last, count=_PAGE)
            for id_, fields in page:
                yield _entry(id_, fields)
            if len(page) < _PAGE:
                return
            edge = f"({page[-1][0]}"

    def _change(
        self,
        records: str,
        name: str,
        before: str,
        after: str,
        user: str,
        *,
        witness: Stored[User] | None = None,
        revoke: bool = False,
        ttl_ms: int = 0,
        entry: str = "",
    ) -> bool:
        """`user`: whose logins end with `revoke`. `witness`: a user who must still be as it was read."""
        args: dict[str, Arg] = {
            "name": name, "before": before, "after": after, "user": witness.value.name if witness else "",
            "user_text": witness.text if witness else "", "revoke": int(revoke), "ttl_ms": ttl_ms, "entry": entry,
            "keep_ms": self._keep_ms,
        }  # fmt: skip
        keys = {
            "records": records, "users": self._keys.users, "logins": self._keys.logins(user), "audit": self._keys.audit
        }  # fmt: skip
        return bool(_CHANGE(self._client, keys, args))

    def _user_and_time(self, name: str) -> tuple[str | None, int]:
        pipe = self._client.pipeline(transaction=False)
        pipe.hget(self._keys.users, name)
        pipe.time()
        text, time = pipe.execute()
        return text, time_ms(time)


def _stored(kind: type[T], text: str | None, what: str, key: str) -> Stored[T] | None:
    return None if text is None else Stored(read_text(kind, text, what, key), text)


def _entry(id_: str, fields: Mapping[str, str]) -> AuditEntry:
    place = {"id": id_, "at_ms": int(id_.partition("-")[0])}
    try:
        data: dict[str, Any] = decoded_object(fields.get("e", ""), "audit entry", id_)
        return read(AuditEntry, {**data, **place}, "audit entry", id_)
    except RecordUnreadable as error:
        return read(AuditEntry, {**place, "what": "unreadable", "on": "", "by": "", "reason": str(error)})
