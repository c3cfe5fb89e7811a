"""Users, access tokens, logins and the audit: `client.access`.

    client.access.add_user("ann", "correct horse battery", {"default": "operator"})
    token = client.access.create_token("ann", role="viewer", namespaces=["default"])

Each change is written with its entry of the audit, at once. These calls ask for no role: whoever may connect to Redis
may make them. The console asks before it makes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sleipnir.access import credentials, passwords
from sleipnir.access.audit import AuditEntry, audit_text
from sleipnir.access.granted_roles import is_admin_everywhere
from sleipnir.access.provided_users import PREFIX, ProvidedUser, is_provided
from sleipnir.access.records import (
    EVERY,
    LOGIN_MS,
    MOST_LOGINS,
    SEEN_EVERY_MS,
    AccessToken,
    Identity,
    Login,
    User,
    refuse_namespaces,
    refuse_role,
    refuse_user,
)
from sleipnir.errors import StoreUnavailable, UsageError
from sleipnir.waiting import in_thread

if TYPE_CHECKING:
    from sleipnir.client.audit_pages import PageOfEntries
    from sleipnir.store.access import AccessRecords, Stored
    from sleipnir.store.store import Store

MOST_TRIES: Final = 20
"""Of a change that others come before."""


class LoginRefused(UsageError):
    """The user or the password is wrong, or the user is disabled: which, is not said. `retry_after_ms`: so long further
    attempts are refused unseen; 0: this one was looked at."""

    def __init__(self, retry_after_ms: int = 0) -> None:
        wait = f"; try again in {-(-retry_after_ms // 1000)} s" if retry_after_ms else ""
        super().__init__(f"too many failed logins{wait}" if wait else "the user or the password is wrong")
        self.retry_after_ms = retry_after_ms


class ProofRefused(UsageError):
    """A login provider knows who this is, but the user may not log in here."""


class UserNotFound(UsageError):
    """There is no user of that name."""


class TokenNotFound(UsageError):
    """There is no access token of that id."""


class LoginNotFound(UsageError):
    """The user has no login of that id."""


Check: TypeAlias = Callable[[User], None]
"""Called with the user as it is right before the change; raises for what may not be changed."""


def anybody(user: User) -> None:
    """The check of callers who may do everything."""


@dataclass(frozen=True)
class NewToken:
    """`text` is the token itself, which is shown this once; `info` what is stored of it."""

    text: str = field(repr=False)
    info: AccessToken


@dataclass(frozen=True)
class NewLogin:
    """`cookie` is the value for the browser's cookie, `csrf` the text that its pages send with changes."""

    cookie: str = field(repr=False)
    csrf: str = field(repr=False)
    identity: Identity


@dataclass(frozen=True)
class ProvidedAttempt:
    """An attempt to log in through a login provider, from `address`."""

    id: str
    address: str
    now_ms: int


class Access:
    """The operations on users, access tokens, logins and the audit. Every one raises StoreUnavailable, and
    RecordUnreadable for a damaged user, token or login. `reason` is for the audit, and so is `by`, the actor as text:
    without it, that of the client."""

    def __init__(self, store: Store, by: str) -> None:
        self._store, self._by = store, by

    # Users.

    def users(self) -> list[User]:
        """All users by name."""
        with self._store.errors():
            return self._records.users()

    def has_users(self) -> bool:
        """Whether there is any user."""
        with self._store.errors():
            return self._records.has_users()

    def user(self, name: str) -> User:
        """One user. Raises UserNotFound."""
        with self._store.errors():
            return self._known(name).value

    def add_user(
        self, name: str, password: str | None, roles: Mapping[str, str], *, reason: str | None = None, by: str = ""
    ) -> User:
        """A new user with access roles by namespace (`*`: all). `password`: None for one whom only a proxy names.
        Raises UsageError for a name that is taken or invalid, and for a weak password; ConfigError without
        argon2-cffi."""
        refuse_user(name)
        refuse_namespaces(roles)
        for role in roles.values():
            refuse_role(role)
        hashed = "" if password is None else in_thread(passwords.hashed, password)
        with self._store.errors():
            made = User(name, dict(roles), hashed, created_ms=self._records.now_ms(), changed=_unique())
            entry = self._entry("user added", made, by, after=_shown(made), reason=reason)
            if not self._records.change_user(None, made, entry):
                raise UsageError(f"there is a user {name!r} already")
        return made

    def set_password(
        self, name: str, password: str, *, reason: str | None = None, by: str = "", check: Check = anybody
    ) -> User:
        """Change a password; all logins of the user end. Raises as add_user, and UserNotFound; UsageError for a user of
        the login provider, which has none here."""
        if is_provided(name):
            raise UsageError(f"{name[:80]!r} logs in at the login provider, and has no password here")
        hashed = in_thread(passwords.hashed, password)
        change = partial(replace, password=hashed)
        return self._change_user(name, "password changed", change, revoke=True, reason=reason, by=by, check=check)

    def set_disabled(
        self,
        name: str,
        disabled: bool,
        *,
        reason: str | None = None,
        by: str = "",
        check: Check = anybody,
        keeps_admin: bool = False,
    ) -> User:
        """Disable or enable a user. The logins of a disabled user end, and its tokens are refused. Raises UserNotFound,
        and with `keeps_admin` UsageError for the last admin of all namespaces."""
        what = "user disabled" if disabled else "user enabled"
        change = partial(replace, disabled=disabled)
        return self._change_user(
            name, what, change, revoke=disabled, reason=reason, by=by, check=check, keeps_admin=keeps_admin
        )

    def set_role(
        self,
        name: str,
        namespace: str,
        role: str | None,
        *,
        reason: str | None = None,
        by: str = "",
        check: Check = anybody,
        keeps_admin: bool = False,
    ) -> User:
        """Give a user an access role in a namespace (`*`: all), or take it (None). It applies to the next request.
        Raises UserNotFound, UsageError for an unknown role and for a user of the login provider, and as
        set_disabled."""
        if is_provided(name):
            raise UsageError(f"the roles of {name[:80]!r} are those of its groups at the login provider")
        refuse_namespaces([namespace])
        if role is not None:
            refuse_role(role)

        def change(user: User) -> User:
            others = {each: has for each, has in user.roles.items() if each != namespace}
            return replace(user, roles=others if role is None else {**others, namespace: role})

        return self._change_user(
            name, "role changed", change, reason=reason, by=by, check=check, keeps_admin=keeps_admin
        )

    def _change_user(
        self,
        name: str,
        what: str,
        change: Callable[[User], User],
        *,
        revoke: bool = False,
        reason: str | None,
        by: str,
        check: Check,
        keeps_admin: bool = False,
    ) -> User:
        with self._store.errors():
            for _ in range(MOST_TRIES):
                was = self._known(name)
                check(was.value)
                changed = replace(change(was.value), changed=_unique())
                loses = keeps_admin and is_admin_everywhere(was.value) and not is_admin_everywhere(changed)
                witness = self._other_admin(name) if loses else None
                before, after = _shown(was.value), _shown(changed)
                entry = self._entry(what, changed, by, before=before, after=after, reason=reason)
                if self._records.change_user(was, changed, entry, revoke=revoke, witness=witness):
                    return changed
        raise _busy(f"user {name!r}")

    def _other_admin(self, name: str) -> Stored[User]:
        """Another admin of all namespaces. The change of the one is made only while the other one is as it was read, so
        two who take each other's role do not both succeed. Raises UsageError if there is none."""
        for other in self._records.stored_users():
            if other.value.name != name and is_admin_everywhere(other.value):
                return other
        raise UsageError(f"{name!r} is the last admin of all namespaces; make another one first")

    def _known(self, name: str) -> Stored[User]:
        found = self._records.user(name)
        if found is None:
            raise UserNotFound(f"there is no user {name[:80]!r}; `sleipnir users ls` lists them")
        return found

    # Tokens.

    def tokens(self) -> list[AccessToken]:
        """All access tokens, the oldest first, expired ones too."""
        with self._store.errors():
            return self._records.tokens()

    def token(self, id_: str) -> AccessToken:
        """One access token. Raises TokenNotFound."""
        with self._store.errors():
            return self._known_token(id_).value

    def _known_token(self, id_: str) -> Stored[AccessToken]:
        found = self._records.token(id_)
        if found is None:
            raise TokenNotFound(f"there is no token {id_[:80]!r}; `sleipnir tokens ls` lists them")
        return found

    def create_token(
        self,
        user: str,
        *,
        role: str = "admin",
        namespaces: Collection[str] = (EVERY,),
        expires_s: float | None = None,
        label: str = "",
        reason: str | None = None,
        by: str = "",
        check: Check = anybody,
    ) -> NewToken:
        """A token that acts for a user: with at most `role`, in `namespaces` only, for `expires_s` seconds (None: until
        it is revoked). Raises UserNotFound, and UsageError for an unknown role or namespace."""
        refuse_role(role)
        refuse_namespaces(namespaces)
        made, text = credentials.new_token()
        with self._store.errors():
            now_ms = self._records.now_ms()
            expires_ms = None if expires_s is None else now_ms + int(expires_s * 1000)
            bounds = tuple(sorted(set(namespaces)))
            token = AccessToken(made.of, user, made.hash, role, bounds, now_ms, expires_ms, label[:200])
            entry = audit_text(
                "token created", f"token {token.id}", by or self._by, after=_shown_token(token), reason=reason
            )
            for _ in range(MOST_TRIES):
                owner = self._known(user)
                check(owner.value)
                if self._records.add_token(token, owner, entry):
                    return NewToken(text, token)
        raise _busy(f"user {user!r}")

    def revoke_token(self, id_: str, *, reason: str | None = None, by: str = "") -> AccessToken:
        """Remove a token: its next request is refused. Raises TokenNotFound."""
        with self._store.errors():
            for _ in range(MOST_TRIES):
                was = self._known_token(id_)
                before = _shown_token(was.value)
                entry = audit_text("token revoked", f"token {id_}", by or self._by, before=before, reason=reason)
                if self._records.change_token(was, None, entry):
                    return was.value
        raise _busy(f"token {id_!r}")

    def of_token(self, text: str) -> Identity | None:
        """Who a token is of. None: unknown, revoked, expired, or of a user who is disabled or gone."""
        given = credentials.of_token(text)
        if given is None:
            return None
        with self._store.errors():
            found = self._records.token_with_user(given.of)
            if found is None or not given.is_of(found[0].value.hash):
                return None
            was, owner, now_ms = found
            token = was.value
            if owner is None or owner.value.disabled or now_ms >= (token.expires_ms or now_ms + 1):
                return None
            if now_ms - (token.used_ms or 0) >= SEEN_EVERY_MS:
                self._records.change_token(was, replace(token, used_ms=now_ms))
        return Identity(
            token.user, owner.value.roles, "token", token=token.id, bound=token.role, namespaces=token.namespaces,
            expires_ms=token.expires_ms,
        )  # fmt: skip

    # Logins.

    def log_in(self, name: str, password: str, address: str = "", *, replaces: str = "", by: str = "") -> NewLogin:
        """A new login for a browser. `replaces` is the cookie that the browser had, which ends. Failures slow down
        further attempts of the same user and from the same address. Raises LoginRefused, and ConfigError without
        argon2-cffi."""
        return self._new_login(self._verified(name, password, address), address, LOGIN_MS, replaces, by)

    def _new_login(self, owner: Stored[User], address: str, life_ms: int, replaces: str, by: str) -> NewLogin:
        """Raises LoginRefused if the user has changed since it was read."""
        name = owner.value.name
        with self._store.errors():
            made, cookie = credentials.new_login(name)
            now_ms = self._records.now_ms()
            login = Login(now_ms, now_ms, now_ms + min(life_ms, LOGIN_MS), address)
            entry = audit_text("logged in", f"user {name}", by or self._by, after={"address": address})
            if not self._records.add_login(owner, made.hash, login, entry):
                raise LoginRefused
            self._end_old_logins(name, now_ms)
        self.log_out(replaces)
        return NewLogin(cookie, made.csrf, Identity(name, owner.value.roles, "login", csrf=made.csrf))

    def begin_provided(self, address: str = "") -> ProvidedAttempt:
        """Count an attempt to log in through a login provider, from an address. It counts as failed until
        log_in_provided succeeds with it. Raises LoginRefused."""
        attempt = _unique()
        with self._store.errors():
            if wait_ms := self._records.attempt(PREFIX + address, address, attempt):
                raise LoginRefused(wait_ms)
            return ProvidedAttempt(attempt, address, self._records.now_ms())

    def log_in_provided(
        self, given: ProvidedUser, attempt: ProvidedAttempt, proof: str, *, life_ms: int, replaces: str = "",
        by: str = "",
    ) -> NewLogin:  # fmt: skip
        """A new login, of at most `life_ms`, for a user whom a login provider has proved; the user is added or its
        roles changed. `proof` is a digest of what was proved: it counts once. Raises ProofRefused, and
        LoginRefused if the user is changed meanwhile."""
        with self._store.errors():
            if not self._records.use_proof(proof, attempt.id):
                raise ProofRefused("this login has been used already; log in again")
            owner = self._provided(given, by)
        made = self._new_login(owner, attempt.address, life_ms, replaces, by)
        with self._store.errors():
            self._records.attempt(PREFIX + attempt.address, attempt.address, attempt.id, passed=True)
        return made

    def _provided(self, given: ProvidedUser, by: str) -> Stored[User]:
        """The user as it is stored, after the change that the provider's word makes. One without a role is not added,
        so strangers fill nothing."""
        for _ in range(MOST_TRIES):
            was = self._records.user(given.name)
            _refuse_provided(given, was.value if was else None)
            now_ms = self._records.now_ms()
            user = was.value if was else User(given.name, {}, created_ms=now_ms)
            if was is None or (dict(user.roles), user.subject) != (dict(given.roles), given.subject):
                changed = replace(user, roles=dict(given.roles), subject=given.subject, changed=_unique())
                before = _shown(user) if was else None
                entry = self._entry(
                    "role changed" if was else "user added", changed, by, before=before, after=_shown(changed),
                    reason="groups of the login provider",
                )  # fmt: skip
                if not self._records.change_user(was, changed, entry):
                    continue
                was = self._records.user(given.name)
            if not given.roles:
                raise ProofRefused("none of your groups may do anything here; an admin sets SLEIPNIR_OIDC_ROLES")
            if was is not None:
                return was
        raise _busy(f"user {given.name!r}")

    def _verified(self, name: str, password: str, address: str) -> Stored[User]:
        """The user, whose password this is. Raises LoginRefused."""
        attempt = _unique()
        with self._store.errors():
            if wait_ms := self._records.attempt(name, address, attempt):
                raise LoginRefused(wait_ms)
            owner = self._records.user(name)
            stored = owner.value.password if owner and not owner.value.disabled else ""
        if not in_thread(passwords.is_right, password, stored) or owner is None:
            raise LoginRefused
        with self._store.errors():
            self._records.attempt(name, address, attempt, passed=True)
        return owner

    def change_password(self, name: str, current: str, new: str, address: str = "", *, by: str = "") -> User:
        """Change a password as its user does, who knows the current one; all logins of the user end. Raises as log_in
        and set_password."""
        owner = self._verified(name, current, address)

        def check(user: User) -> None:
            if user.password != owner.value.password or user.disabled:
                raise LoginRefused

        return self.set_password(name, new, by=by, check=check)

    def logins(self, user: str) -> dict[str, Login]:
        """The logins of a user that are not over, by id, the one that was used last first."""
        with self._store.errors():
            now_ms = self._records.now_ms()
            found = sorted(self._records.logins(user).items(), key=lambda each: each[1].seen_ms, reverse=True)
        return {Login.id_of(digest): login for digest, login in found if not login.is_over(now_ms)}

    def end_login(self, user: str, id_: str, *, by: str = "") -> None:
        """End the login of a user with this id. Raises UsageError if there is none."""
        with self._store.errors():
            entry = audit_text("login ended", f"user {user}", by or self._by, before={"login": id_})
            for digest in self._records.logins(user):
                if Login.id_of(digest) == id_ and self._records.end_login(user, digest, entry):
                    return
        raise LoginNotFound(f"there is no login {id_[:80]!r}")

    def of_cookie(self, cookie: str) -> Identity | None:
        """Who a cookie is of. None: unknown, revoked, over, or of a user who is disabled."""
        given = credentials.of_cookie(cookie)
        if given is None:
            return None
        with self._store.errors():
            found = self._records.login_with_user(given.of, given.hash)
            if found is None:
                return None
            was, owner, now_ms = found
            login = was.value
            if owner.value.disabled or login.is_over(now_ms):
                return None
            if now_ms - login.seen_ms >= SEEN_EVERY_MS:
                self._records.touch_login(given.of, given.hash, was, replace(login, seen_ms=now_ms))
        return Identity(given.of, owner.value.roles, "login", csrf=given.csrf)

    def of_proxy(self, name: str) -> Identity | None:
        """Who a trusted proxy names. None: there is no such user, it is disabled, or a login provider vouches for it
        alone."""
        if is_provided(name):
            return None
        with self._store.errors():
            owner = self._records.user(name)
        return None if owner is None or owner.value.disabled else Identity(name, owner.value.roles, "proxy")

    def log_out(self, cookie: str) -> None:
        """End a login; a cookie that is none is ignored."""
        given = credentials.of_cookie(cookie)
        if given is not None:
            with self._store.errors():
                self._records.end_logins(given.of, [given.hash])

    def _end_old_logins(self, user: str, now_ms: int) -> None:
        """Remove those that are over, and the oldest if there are too many."""
        found = sorted(self._records.logins(user).items(), key=lambda each: each[1].seen_ms, reverse=True)
        live = [digest for digest, login in found if not login.is_over(now_ms)]
        kept = set(live[:MOST_LOGINS])
        self._records.end_logins(user, [digest for digest, _ in found if digest not in kept])

    # The audit.

    def audit(
        self,
        *,
        oldest_ms: int = 0,
        newest_ms: int | None = None,
        newest_first: bool = False,
        by: str | None = None,
        on: str | None = None,
        what: str | None = None,
    ) -> Iterator[AuditEntry]:
        """The entries within their retention, from one time to another (ms since the epoch, both included). `by`, `on`
        and `what` are texts that the field of an entry contains."""
        with self._store.errors():
            for entry in self._records.entries(oldest_ms=oldest_ms, newest_ms=newest_ms, newest_first=newest_first):
                fields = ((by, entry.by), (on, entry.on), (what, entry.what))
                if all(wanted is None or wanted in text for wanted, text in fields):
                    yield entry

    def audit_page(
        self,
        limit: int,
        *,
        after: str | None = None,
        by: str | None = None,
        on: str | None = None,
        what: str | None = None,
    ) -> PageOfEntries:
        """The newest entries, up to `limit`, after the cursor `after` of the page before. Raises UsageError for what is
        no cursor."""
        from sleipnir.client.audit_pages import page_of

        return page_of(self.audit, limit, after, {"by": by, "on": on, "what": what})

    @property
    def _records(self) -> AccessRecords:
        return self._store.access

    def _entry(self, what: str, user: User, by: str, **fields: Any) -> str:
        return audit_text(what, f"user {user.name}", by or self._by, **fields)


def _unique() -> str:
    return secrets.token_hex(8)


def _shown(user: User) -> dict[str, Any]:
    """What the audit says of a user."""
    return {"roles": dict(user.roles), "disabled": user.disabled, "password": bool(user.password)}


def _refuse_provided(given: ProvidedUser, user: User | None) -> None:
    """Raise ProofRefused for whom the word of the login provider is not enough."""
    if user is None:
        if not given.roles:
            raise ProofRefused("none of your groups may do anything here; an admin sets SLEIPNIR_OIDC_ROLES")
        return
    if user.disabled:
        raise ProofRefused(f"the user {given.name!r} is disabled here")
    if user.subject not in ("", given.subject):  # an earlier release that changes a user leaves it empty
        raise ProofRefused(f"{given.name!r} was somebody else at the login provider; their names must not pass on")


def _shown_token(token: AccessToken) -> dict[str, Any]:
    return {
        "user": token.user, "role": token.role, "namespaces": list(token.namespaces), "expires_ms": token.expires_ms,
        "label": token.label,
    }  # fmt: skip


def _busy(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} is changed by others all the time; nothing was changed, try again")
