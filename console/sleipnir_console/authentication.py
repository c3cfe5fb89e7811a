"""Who sends a request: by a token, a trusted proxy's header, or the cookie of a login.

Rules. A request that changes something and comes with a cookie needs the login's CSRF text too, because a browser sends
the cookie for other sites as well. Until there is a user, everybody on this machine is an admin; on an address that
others can reach the server does not start before there is one (main.py).
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from sleipnir.access.records import EVERY, LOGIN_MS, Identity
from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import ConfigError
from sleipnir.runs.actor import Actor
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.settings import Settings
from sleipnir_console.origins import SAFE_METHODS
from sleipnir_console.permissions import Caller, Permission, anyone_here
from sleipnir_console.problems import HttpProblem

COOKIE: Final = "sleipnir_login"
CSRF_HEADER: Final = "X-CSRF-Token"
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="sleipnir"'}
MOST_HOPS: Final = 20
"""Proxies of a chain that are looked at."""

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Authentication:
    """How this server knows its callers. `proxies` may say whom they forward for; with `user_header` also which user
    that is. `has_tls`: its own; `is_private`: only this machine reaches the server. `namespace` is the one whose runs
    it shows. With `has_provider` people log in elsewhere, so nobody is an admin without a name."""

    proxies: tuple[_Network, ...] = ()
    user_header: str = ""
    has_tls: bool = False
    is_private: bool = True
    namespace: str = DEFAULT_NAMESPACE
    has_provider: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Authentication:
        """Raises ConfigError."""
        proxies = networks_of(settings.console_proxies)
        if settings.console_user_header and not proxies:
            raise ConfigError(
                "SLEIPNIR_CONSOLE_USER_HEADER needs SLEIPNIR_CONSOLE_PROXIES: anybody may send a header, so it counts "
                "from these addresses only"
            )
        is_private = is_loopback(settings.console_host) and not proxies
        return cls(
            proxies, settings.console_user_header, settings.console_tls_cert is not None, is_private,
            settings.namespace, bool(settings.oidc_issuer),
        )  # fmt: skip

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it by TLS alone."""
        return self.has_tls or bool(self.proxies)

    async def caller(self, request: Request) -> Caller:
        """The caller of a request. Raises HttpProblem `unauthenticated`, or `csrf` for a change by a cookie alone."""
        self.refuse_clear_text(request)
        identity = await self._identity(request)
        if identity is not None:
            everywhere: Permission = identity.role_in(EVERY) or "user"
            user = identity.user if identity.token is None else f"{identity.user}/{identity.token}"
            by = Actor(user, self.address(request), "api", identity.role_in(self.namespace) or "")
            return Caller(self.permission_of(identity), by, everywhere, identity)
        client: AsyncClient = request.app.state.client
        if self.is_private and not self.has_provider and not await client.access.has_users():
            return await anyone_here(request)
        raise HttpProblem(
            "unauthenticated", "log in, or send a token that is valid as `Authorization: Bearer TOKEN`",
            headers=CHALLENGE,
        )  # fmt: skip

    async def _identity(self, request: Request) -> Identity | None:
        """The first credential counts; one that is not valid is not made up for by another."""
        access = request.app.state.client.access
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            found: Identity | None = await access.of_token(token.strip()) if scheme.lower() == "bearer" else None
            return found
        if self.user_header and self._is_proxy(_peer(request)) and (name := request.headers.get(self.user_header)):
            found = await access.of_proxy(name)
            return found
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            return None
        found = await access.of_cookie(cookie)
        if found is not None and request.method not in SAFE_METHODS:
            given = request.headers.get(CSRF_HEADER, "") or getattr(request.state, "csrf", "")  # of a form of a page
            if not hmac.compare_digest(given.encode(), (found.csrf or "").encode()):
                raise HttpProblem("csrf", f"send the `csrf` of the login as {CSRF_HEADER}")
        return found

    def refuse_clear_text(self, request: Request) -> None:
        """Raise HttpProblem for a request with a secret that comes neither by TLS nor through a proxy."""
        peer = _peer(request)
        if self.proxies and not self.has_tls and not self._is_proxy(peer) and not is_loopback(peer):
            raise HttpProblem("unauthenticated", "this server is reached through its proxy alone", headers=CHALLENGE)

    def address(self, request: Request) -> str:
        """The address that the request comes from: the last one in `X-Forwarded-For` that is no trusted proxy, if a
        trusted one has sent it."""
        found = _peer(request)
        hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
        for hop in reversed(hops[-MOST_HOPS:]):
            if not self._is_proxy(found) or _parsed(hop) is None:
                break
            found = hop
        return found

    def _is_proxy(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self.proxies)

    def permission_of(self, identity: Identity) -> Permission:
        """What it may do with the runs that the server shows: those of one namespace."""
        return identity.role_in(self.namespace) or "user"

    def give(self, response: Response, cookie: str) -> None:
        """Let the browser have the cookie of a login."""
        response.set_cookie(
            COOKIE, cookie, max_age=LOGIN_MS // 1000, httponly=True, samesite="lax", secure=self.is_secure
        )

    def take(self, response: Response) -> None:
        """Let the browser forget it."""
        response.delete_cookie(COOKIE, httponly=True, samesite="lax", secure=self.is_secure)


def networks_of(text: str) -> tuple[_Network, ...]:
    """The addresses and networks of a list with commas. Raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(
            f"SLEIPNIR_CONSOLE_PROXIES lists addresses or networks with commas between: {error}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    parsed = _parsed(host)
    return parsed.is_loopback if parsed is not None else host == "localhost"


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
