"""A login that a browser has begun, and that its provider has not answered yet. It is kept in a cookie of that browser.

The cookie has one random secret, from which what the provider sees is derived: `state` (the answer is for this
browser), `nonce` (the token is for this login) and the verifier of PKCE (the code is of use here alone). So an answer
that was made for another browser, or for another login, does not fit.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

LIFE_MS: Final = 15 * 60_000
"""For so long a person may take to log in at the provider."""
_TEXT = re.compile(r"(\d{1,15})\.([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{0,3000}={0,2})")


@dataclass(frozen=True)
class BegunLogin:
    """`next` is the page that was asked for."""

    begun_ms: int
    secret: str = field(repr=False)
    next: str

    @classmethod
    def new(cls, now_ms: int, next: str) -> BegunLogin:
        return cls(now_ms, secrets.token_urlsafe(32), next)

    @classmethod
    def of(cls, cookie: str, now_ms: int) -> BegunLogin | None:
        """What a cookie says; None for another text, and for a login that was begun too long ago."""
        found = _TEXT.fullmatch(cookie)
        if found is None or not 0 <= now_ms - int(found[1]) <= LIFE_MS:
            return None
        try:
            return cls(int(found[1]), found[2], base64.urlsafe_b64decode(found[3]).decode())
        except ValueError:
            return None

    @property
    def cookie(self) -> str:
        """Its text, for the browser alone."""
        return f"{self.begun_ms}.{self.secret}.{base64.urlsafe_b64encode(self.next.encode()).decode()}"

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Of PKCE: 64 characters."""
        return self._derived("verifier")

    @property
    def proof(self) -> str:
        """A digest that tells nothing, and by which it is used once."""
        return self._derived("proof")

    def is_state(self, given: str) -> bool:
        return hmac.compare_digest(self.state.encode(), given.encode(errors="replace"))

    def _derived(self, what: str) -> str:
        return hmac.new(self.secret.encode(), what.encode(), hashlib.sha256).hexdigest()
