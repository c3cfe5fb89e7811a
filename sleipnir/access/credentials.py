"""The texts by which a request proves whom it comes from: access tokens, and the cookies of logins.

Their secrets are 32 random bytes, of which only the SHA-256 is stored: nothing can be guessed from that, so no slow
hash is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

BYTES: Final = 32
TOKEN: Final = "slp"
"""The beginning of every access token, for programs that look for secrets in files."""

_TOKEN = re.compile(rf"{TOKEN}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
_COOKIE = re.compile(r"((?:oidc:)?[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}):([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class Credential:
    """`of` is the id of a token, or the user of a login; `secret` is never stored and never shown in a traceback."""

    of: str
    secret: str = field(repr=False)

    @property
    def hash(self) -> str:
        """SHA-256 of the secret, in hex."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def is_of(self, stored: str) -> bool:
        """Whether this is the stored hash; the time tells nothing about it."""
        return hmac.compare_digest(self.hash, stored)

    @property
    def csrf(self) -> str:
        """The text that pages of a login send with what they change. Other sites cannot know it: it is derived from the
        cookie, which they cannot read."""
        return hmac.new(self.secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def new_token() -> tuple[Credential, str]:
    """A new access token, and its text."""
    made = Credential(secrets.token_hex(6), secrets.token_urlsafe(BYTES))
    return made, f"{TOKEN}_{made.of}_{made.secret}"


def new_login(user: str) -> tuple[Credential, str]:
    """A new login, and the value of its cookie."""
    made = Credential(user, secrets.token_urlsafe(BYTES))
    return made, f"{user}:{made.secret}"


def of_token(text: str) -> Credential | None:
    """The parts of an access token; None for another text."""
    found = _TOKEN.fullmatch(text)
    return Credential(found[1], found[2]) if found else None


def of_cookie(text: str) -> Credential | None:
    """The parts of the value of a cookie; None for another text."""
    found = _COOKIE.fullmatch(text)
    return Credential(found[1], found[2]) if found else None
