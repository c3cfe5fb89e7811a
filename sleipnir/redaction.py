"""What a secret's name is, and how secrets are kept out of what is shown, stored or sent. The only rule, and the only
redactor, of all processes.

A name says that its value is a secret when SECRET, PASSWORD, CREDENTIAL and the like are anywhere in it, or when it
ends with the word KEY, TOKEN or PAT, also with `_ID` or a number behind (`AWS_ACCESS_KEY_ID`). Our own settings are
none: which of them holds a login is known (`passwords_in`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

PREFIX = "SLEIPNIR_"
"""Of our own settings, as in settings.py: the planner uses this module, and knows no settings."""

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter values are words, and hiding them would hide the message."""

_ANYWHERE = re.compile(r"SECRET|AUTHORIZATION|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|API_?KEYS?(_|$)")
_AT_THE_END = re.compile(r"((^|[_.-])(KEY|PAT|MYSQL_PWD)|TOKEN)(_?ID)?(_?[0-9]+)?$")


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as its name says."""
    upper = name.upper()
    if upper.startswith(PREFIX):
        return False
    return bool(_ANYWHERE.search(upper) or _AT_THE_END.search(upper))


def passwords_in(env: Mapping[str, str]) -> Iterator[str]:
    """The passwords of addresses, as they are written there and as they are meant."""
    for value in env.values():
        if "://" in value and "@" in value:
            login = value.partition("://")[2].rpartition("@")[0]
            if password := login.partition(":")[2]:
                yield password
                yield unquote(password)


def without_secret_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names are not those of secrets."""
    return {name: value for name, value in env.items() if not is_secret_name(name)}


def redacted(value: Any, secrets: Iterable[str]) -> Any:
    """A text, or JSON, without these secrets in any of its texts, names of keys included."""
    longest_first = sorted({secret for secret in secrets if len(secret) >= SHORTEST_SECRET}, key=len, reverse=True)
    return _redacted(value, longest_first) if longest_first else value


def _redacted(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return value
    if isinstance(value, Mapping):
        return {_redacted(key, secrets): _redacted(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_redacted(each, secrets) for each in value)
    return value
