"""A provider of OpenID Connect: where it is, its keys, and the proof of who a user is.

Rules. Its description and its keys are read when they are needed: the server starts, and passwords are taken, also
while it is away. An unknown key makes the keys be read again, once for each login. Only asymmetric signatures count.
Neither tokens nor codes are kept or logged. Times come from Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog

from sleipnir.access.provided_users import ProvidedUser, provided_name, roles_of
from sleipnir.errors import ConfigError, SleipnirError, UsageError
from sleipnir_console.login_provider.begun_login import BegunLogin
from sleipnir_console.login_provider.provider_settings import ProviderSettings, is_safe_address

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from joserfc.jwk import KeySet
    from joserfc.jwt import Token

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
TIMEOUT_S: Final = 10.0
LEEWAY_S: Final = 60
"""So much the clocks of the provider and of Redis may differ."""
KNOWN_MS: Final = 3600 * 1000
"""The description and the keys are read again after this time, so that a key that was withdrawn is refused."""
MOST_BYTES: Final = 2**20
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class ProviderUnavailable(SleipnirError):
    """The login provider does not answer, or not as OpenID Connect demands."""


class ProviderRefused(UsageError):
    """What came from the login provider proves nothing."""


@dataclass(frozen=True)
class _Known:
    """The provider's description and its keys, read at `at_ms`."""

    description: Mapping[str, Any]
    keys: KeySet
    at_ms: int


class LoginProvider:
    """The login provider of a deployment."""

    def __init__(self, settings: ProviderSettings) -> None:
        _refuse_without_authlib()
        self.settings = settings
        self._known: _Known | None = None
        self._reading = anyio.Lock()

    async def address_of_login(self, begun: BegunLogin, now_ms: int) -> str:
        """Where the browser goes to log in. Raises ProviderUnavailable."""
        known = await self._read(now_ms)
        async with self._client(known.description) as client:
            address, _ = client.create_authorization_url(
                known.description["authorization_endpoint"],
                state=begun.state,
                nonce=begun.nonce,
                code_verifier=begun.verifier,
            )
        return str(address)

    async def address_of_logout(self, now_ms: int) -> str | None:
        """Where the browser goes to log out there too; None: the provider has no such page. Raises
        ProviderUnavailable."""
        from authlib.common.urls import add_params_to_uri

        endpoint = (await self._read(now_ms)).description.get("end_session_endpoint")
        if not isinstance(endpoint, str) or not is_safe_address(endpoint):
            return None
        back = f"{self.settings.console}/login"
        return str(
            add_params_to_uri(endpoint, [("client_id", self.settings.client), ("post_logout_redirect_uri", back)])
        )

    async def user_of(self, code: str, begun: BegunLogin, now_ms: int) -> ProvidedUser:
        """Whom the provider proves with a code. Raises ProviderUnavailable, ProviderRefused, and UsageError for a name
        that cannot be used."""
        known = await self._read(now_ms)
        async with self._client(known.description) as client:
            tokens = await self._tokens(client, known, code, begun)
            proved = await self._proved(known, tokens, begun, now_ms)
            claims = await self._with_more(client, known, proved)
        groups = claims.get(self.settings.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise ProviderRefused(
                f"the claim {self.settings.groups_claim!r} of the login provider is no list of groups"
            )
        name = provided_name(claims.get(self.settings.user_claim))
        subject = f"{self.settings.issuer} {claims['sub']}"
        return ProvidedUser(name, subject, roles_of(frozenset(groups), self.settings.roles))

    async def _tokens(
        self, client: AsyncOAuth2Client, known: _Known, code: str, begun: BegunLogin
    ) -> Mapping[str, Any]:
        from authlib.integrations.base_client import OAuthError

        endpoint = known.description["token_endpoint"]
        try:
            found = await client.fetch_token(endpoint, code=code, code_verifier=begun.verifier)
        except OAuthError as error:
            raise ProviderRefused(f"the login provider does not take this login ({str(error.error)[:80]})") from None
        except Exception as error:  # whatever its HTTP, its JSON and authlib make of its answer
            raise self._away(error) from None
        if not isinstance(found.get("id_token"), str):
            raise ProviderRefused("the login provider has sent no token of identity")
        return dict(found)

    async def _proved(
        self, known: _Known, tokens: Mapping[str, Any], begun: BegunLogin, now_ms: int
    ) -> Mapping[str, Any]:
        """The claims of the token, whose signature, issuer, audience, times and nonce are right. Raises
        ProviderRefused."""
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        try:
            token = await self._verified(known, tokens["id_token"], now_ms)
            options = {
                "iss": {"essential": True, "value": self.settings.issuer},
                "sub": {"essential": True},
                "aud": {"essential": True, "value": self.settings.client},
            }
            params = {
                "nonce": begun.nonce, "client_id": self.settings.client, "access_token": tokens.get("access_token"),
            }  # fmt: skip
            claims = CodeIDToken(token.claims, token.header, options, params)
            claims.validate(now=now_ms // 1000, leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderRefused(f"the token of the login provider is not valid: {_why(error)}") from None
        return dict(claims)

    async def _verified(self, known: _Known, text: str, now_ms: int) -> Token:
        """The token, whose signature is of a key of the provider: of one that it has since the keys were read, too."""
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError

        try:
            return jwt.decode(text, known.keys, algorithms=ALGORITHMS)
        except (BadSignatureError, InvalidKeyIdError):
            newer = await self._read(now_ms, before=known)
            return jwt.decode(text, newer.keys, algorithms=ALGORITHMS)

    async def _with_more(
        self, client: AsyncOAuth2Client, known: _Known, claims: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The claims, with those that some providers tell only when they are asked for them."""
        endpoint = known.description.get("userinfo_endpoint")
        wanted = {self.settings.groups_claim, self.settings.user_claim} - claims.keys()
        if not wanted or not isinstance(endpoint, str) or not is_safe_address(endpoint):
            return claims
        more = await self._document(client, endpoint, withhold_token=False)
        if more.get("sub") != claims["sub"]:
            raise ProviderRefused("the login provider has told of another user")
        return {**{name: more[name] for name in wanted & more.keys()}, **claims}

    async def _read(self, now_ms: int, before: _Known | None = None) -> _Known:
        """The description and the keys; read anew if they are those of `before`, or too old. Raises
        ProviderUnavailable."""
        async with self._reading:
            known = self._known
            if known is not None and known is not before and 0 <= now_ms - known.at_ms < KNOWN_MS:
                return known
            async with self._client({}) as client:
                address = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
                description = await self._document(client, address)
                self._check(description)
                keys = _keys_of(await self._document(client, description["jwks_uri"]))
            self._known = _Known(description, keys, now_ms)
            return self._known

    def _check(self, description: Mapping[str, Any]) -> None:
        if description.get("issuer") != self.settings.issuer:
            raise self._away(ValueError("it says that it is another issuer"))
        for name in _ENDPOINTS:
            endpoint = description.get(name)
            if not isinstance(endpoint, str) or not is_safe_address(endpoint):
                raise self._away(ValueError(f"its {name} is no address with https://"))

    async def _document(
        self, client: AsyncOAuth2Client, address: str, *, withhold_token: bool = True
    ) -> Mapping[str, Any]:
        try:
            response = await client.request("GET", address, withhold_token=withhold_token)
            response.raise_for_status()
            if len(response.content) > MOST_BYTES:
                raise ValueError("its answer is too large")
            found = response.json()
        except Exception as error:  # as in _tokens
            raise self._away(error) from None
        if not isinstance(found, dict):
            raise self._away(ValueError("its answer is no JSON object"))
        return found

    def _client(self, description: Mapping[str, Any]) -> AsyncOAuth2Client:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        ways = description.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return AsyncOAuth2Client(
            self.settings.client,
            self.settings.secret,
            token_endpoint_auth_method="client_secret_basic" if "client_secret_basic" in ways else "client_secret_post",
            scope=self.settings.scopes,
            redirect_uri=self.settings.callback,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
            follow_redirects=False,
        )

    def _away(self, error: Exception) -> ProviderUnavailable:
        """The error for a person; the log has the kind of the cause, not its text, which may hold what was sent."""
        why = str(error) if isinstance(error, ValueError) and type(error) is ValueError else type(error).__name__
        structlog.get_logger().warning("the login provider fails", issuer=self.settings.issuer, why=why[:200])
        return ProviderUnavailable(
            f"{self.settings.name} does not answer as it should ({why[:200]}). A password is taken as always."
        )


def _keys_of(document: Mapping[str, Any]) -> KeySet:
    """The keys of a provider that can sign; others are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet, import_key

    found = []
    for each in document.get("keys") or ():
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            found.append(import_key(each))
        except (JoseError, ValueError, TypeError, KeyError):
            continue  # of a kind that is not known here
    return KeySet(found)


def _why(error: Exception) -> str:
    """The claim or the check that fails; no part of the token."""
    claim = getattr(error, "claim", None)
    return f"{getattr(error, 'error', type(error).__name__)}{f' ({claim})' if claim else ''}"


def _refuse_without_authlib() -> None:
    if find_spec("authlib") is None or find_spec("joserfc") is None:
        raise ConfigError(
            "SLEIPNIR_OIDC_ISSUER needs Authlib, which is not installed: pip install authlib, or the extra `console`"
        )
