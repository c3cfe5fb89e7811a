"""How a request to a hook proves who has made it. All comparisons take the same time, whatever differs.

standard  Standard Webhooks: HMAC of the id, the time and the body; the time is close to ours
stripe    `t=TIME,v1=HEX`: HMAC of the time and the body; the time is close to ours
github    `sha256=HEX`: HMAC of the body, with no time
token     the secret itself, as `Bearer SECRET` or alone
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import Final

from sleipnir.webhooks.hooks import Hook, HookRequest
from sleipnir.webhooks.signatures import ID, SECRET, TOLERANCE_S, signature

MOST_SIGNATURES: Final = 20
"""Signatures of one request that are looked at: a sender that changes its secret sends two."""


def is_proved(hook: Hook, request: HookRequest, secrets: Iterable[str], now_ms: int) -> bool:
    """Whether a request was made by who has one of the secrets, lately if its form has a time."""
    given = request.headers.get(hook.proof_header.lower(), "")
    proved = False
    for secret in secrets:  # all of them: the time tells nothing of which one it was
        proved |= _is_proved_by(hook, request, given, secret, now_ms // 1000)
    return proved


def _is_proved_by(hook: Hook, request: HookRequest, given: str, secret: str, now_s: int) -> bool:
    match hook.form:
        case "standard":
            return _standard(request, given, secret, now_s)
        case "stripe":
            return _stripe(request, given, secret, now_s)
        case "github":
            digest = hmac.digest(secret.encode(), request.body, hook.algorithm).hex()
            return _same(given, f"{hook.algorithm}={digest}")
        case _:
            scheme, _, rest = given.partition(" ")
            return _same(rest.strip() if scheme.lower() == "bearer" else given, secret)


def _standard(request: HookRequest, given: str, secret: str, now_s: int) -> bool:
    id_, time = request.headers.get("webhook-id", ""), request.headers.get("webhook-timestamp", "")
    if not ID.fullmatch(id_) or not _is_close(time, now_s):
        return False
    try:
        key = base64.b64decode(secret.removeprefix(SECRET), validate=True)
    except (binascii.Error, ValueError):
        return False
    wanted = signature(key, id_, int(time), request.body)
    return _any_same(given.split(" "), wanted)


def _stripe(request: HookRequest, given: str, secret: str, now_s: int) -> bool:
    parts = [part.strip().partition("=") for part in given.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not _is_close(times[0], now_s):
        return False
    wanted = hmac.digest(secret.encode(), times[0].encode() + b"." + request.body, "sha256").hex()
    return _any_same([value for name, _, value in parts if name == "v1"], wanted)


def _is_close(time: str, now_s: int) -> bool:
    is_number = time.isascii() and time.isdigit() and len(time) < 13 and time == str(int(time))
    return is_number and abs(int(time) - now_s) <= TOLERANCE_S


def _any_same(given: list[str], wanted: str) -> bool:
    found = False
    for each in given[:MOST_SIGNATURES]:
        found |= _same(each, wanted)
    return found


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
