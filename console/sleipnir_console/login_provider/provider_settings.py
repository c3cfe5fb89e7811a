"""What is configured of the login provider. The secret of the client is read from a file, once, and shown nowhere."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sleipnir.access.provided_users import GroupRole, group_roles
from sleipnir.errors import ConfigError, UsageError
from sleipnir.settings import Settings
from sleipnir_console.authentication import is_loopback

CALLBACK: Final = "/login/oidc/callback"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_NEEDED: Final = ("oidc_client", "oidc_secret", "oidc_roles", "console_url")


@dataclass(frozen=True)
class ProviderSettings:
    """`console` is the address of this server as browsers know it, `login_ms` the longest life of a login."""

    issuer: str
    client: str
    secret: str = field(repr=False)
    console: str
    roles: tuple[GroupRole, ...]
    groups_claim: str
    user_claim: str
    scopes: str
    name: str
    login_ms: int

    @property
    def callback(self) -> str:
        """Where the provider sends browsers back: made of settings alone, never of what a request says."""
        return self.console + CALLBACK

    @classmethod
    def of(cls, settings: Settings) -> ProviderSettings | None:
        """None: no login provider is configured. Raises ConfigError."""
        if not settings.oidc_issuer:
            for name in sorted(settings.given):
                if name.startswith("oidc_"):
                    raise ConfigError(f"SLEIPNIR_{name.upper()} needs SLEIPNIR_OIDC_ISSUER, the login provider")
            return None
        for name in _NEEDED:
            if not getattr(settings, name):
                raise ConfigError(f"SLEIPNIR_OIDC_ISSUER needs SLEIPNIR_{name.upper()} (docs/users.md)")
        issuer = _address("SLEIPNIR_OIDC_ISSUER", settings.oidc_issuer)
        try:
            roles = group_roles(settings.oidc_roles)
        except UsageError as error:
            raise ConfigError(f"SLEIPNIR_OIDC_ROLES: {error}") from None
        assert settings.oidc_secret is not None
        return cls(
            issuer=issuer,
            client=settings.oidc_client,
            secret=_secret(settings.oidc_secret),
            console=_address("SLEIPNIR_CONSOLE_URL", settings.console_url).rstrip("/"),
            roles=roles,
            groups_claim=settings.oidc_groups,
            user_claim=settings.oidc_user,
            scopes=settings.oidc_scopes,
            name=settings.oidc_name or urlsplit(issuer).netloc,
            login_ms=int(settings.oidc_login_s * 1000),
        )


def is_safe_address(url: str) -> bool:
    """Whether nobody between reads or changes what is sent there: TLS, or this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _address(name: str, url: str) -> str:
    if not is_safe_address(url) or urlsplit(url).query or urlsplit(url).fragment or "@" in urlsplit(url).netloc:
        raise ConfigError(f"{name}={url[:200]!r}: an address with https:// is needed; http:// on this machine alone")
    return url


def _secret(file: Path) -> str:
    try:
        if file.stat().st_mode & _OTHERS:
            raise ConfigError(f"others can read or change the secret of the login provider: run `chmod 600 {file}`")
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret of the login provider at {file}: {error.strerror}") from None
    except UnicodeError:
        text = ""
    if not text or not text.isprintable():
        raise ConfigError(f"the secret of the login provider at {file} is empty or damaged: it is one line of text")
    return text
