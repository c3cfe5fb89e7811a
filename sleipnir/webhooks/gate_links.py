"""Signed links: each opens the page of one question for one person, without a login. Pure.

A link is no login: it shows that question and takes that person's answer, as far as the person may give it when the
link is used. It is signed (HMAC-SHA256) with a secret that is derived from a key of the deployment, and stored nowhere:
it ends with its time, with the key, when the user is disabled, and when the question is answered.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.graph.plain import compact_json
from sleipnir.webhooks.signatures import SigningKeys

SECRET: Final = "links to questions"
"""What the secret is derived for."""
MOST_TOKEN: Final = 2_000
WEBHOOK_MS: Final = 3 * 24 * 3_600_000
"""How long the links of webhooks are valid."""


@dataclass(frozen=True)
class GateLink:
    """What a link says: the question of the visit `seq` of a run, as asked in its `attempt`, for `person`, until
    `until_ms`. `key` is the id of the key that signs it, `by` who has made it: whom to ask for another one."""

    key: str
    run: str
    seq: int
    attempt: int
    person: str
    until_ms: int
    by: str = ""
    v: int = 1

    @property
    def gate(self) -> str:
        """The name of the question among those of its run."""
        return f"{self.seq}.{self.attempt}"


class LinkDamaged(ValueError):
    """The text is no link that a key of this deployment has signed."""


def token_of(link: GateLink, keys: SigningKeys) -> str:
    """The text of a link, for a URL. Raises ValueError if the key is not known."""
    body = compact_json(vars(link)).encode()
    return f"{_base64(body)}.{_base64(_mac(keys, link.key, body))}"


def link_of(token: str, keys: SigningKeys) -> GateLink:
    """The link of its text. Raises LinkDamaged."""
    body_text, _, mac_text = token.partition(".")
    if len(token) > MOST_TOKEN:
        raise LinkDamaged("it is too long")
    try:
        body, mac = _bytes(body_text), _bytes(mac_text)
        link = read_text(GateLink, body.decode(), "link")
        expected = _mac(keys, link.key, body)
    except (ValueError, binascii.Error, RecordUnreadable):
        raise LinkDamaged("it is damaged, or its key is not valid any more") from None
    if not hmac.compare_digest(mac, expected):
        raise LinkDamaged("its signature is wrong")
    return link


def url_of(console_url: str, token: str) -> str:
    """The address of the page."""
    return f"{console_url.rstrip('/')}/d/{token}"


def _mac(keys: SigningKeys, key: str, body: bytes) -> bytes:
    secret = keys.secret(key, SECRET)
    if secret is None:
        raise ValueError("the key is not known")
    return hmac.digest(secret, body, "sha256")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
