"""Passwords: their hashes (argon2id), and the comparison that takes the same time for unknown users.

A hash takes 64 MiB and some tens of milliseconds, so at most AT_ONCE are made at a time.
"""

from __future__ import annotations

import secrets
import threading
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Final

from sleipnir.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

LEAST: Final = 12
MOST: Final = 1_000
"""Characters of a password."""
AT_ONCE: Final = 2

_turns = threading.BoundedSemaphore(AT_ONCE)


def hashed(password: str) -> str:
    """The argon2id hash with its salt and its parameters, as text. Raises UsageError for a password that is too short
    or too long, and ConfigError without argon2-cffi."""
    if not LEAST <= len(password) <= MOST:
        raise UsageError(f"a password has {LEAST} to {MOST:,} characters; this one has {len(password):,}")
    with _turns:
        return _hasher().hash(_normal(password))


def is_right(password: str, stored: str) -> bool:
    """Whether `stored` is the hash of the password. An empty one, as of an unknown user, takes the same time and is
    never right. Raises ConfigError without argon2-cffi."""
    from_nobody = not stored
    candidate = _normal(password[: MOST + 1])
    with _turns:
        return _matches(candidate, stored or _nobody()) and not from_nobody and len(password) <= MOST


def _matches(password: str, stored: str) -> bool:
    hasher = _hasher()
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return hasher.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def _normal(password: str) -> str:
    """The same letters typed on another keyboard are the same password; half surrogates cannot be encoded."""
    return unicodedata.normalize("NFKC", password).encode(errors="replace").decode()


@cache
def _nobody() -> str:
    """The hash of a password that nobody knows."""
    return _hasher().hash(secrets.token_urlsafe())


@cache
def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher, profiles
    except ImportError:
        raise ConfigError(
            "passwords need argon2-cffi, which is not installed: pip install argon2-cffi, or the extra `console`"
        ) from None
    return PasswordHasher.from_parameters(profiles.RFC_9106_LOW_MEMORY)
