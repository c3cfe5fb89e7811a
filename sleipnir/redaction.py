"""Secret-like names, and the redaction of secrets in output, storage and messages. The only rule, and the only
redactor, of all processes.

A name is secret-like if it contains SECRET, PASSWORD, CREDENTIAL or similar, or ends with the word KEY, TOKEN or PAT,
also followed by `_ID` or a number (`AWS_ACCESS_KEY_ID`). Our own settings are exempt: it is known which of them have a
login (`passwords_in`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

PREFIX = "SLEIPNIR_"
"""The prefix of our own settings, repeated from settings.py, because the planner uses this module but no settings."""

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter values are common words: hiding them would make messages unreadable."""

_ANYWHERE = re.compile(r"SECRET|AUTHORIZATION|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|API_?KEYS?(_|$)")
_AT_THE_END = re.compile(r"((^|[_.-])(KEY|PAT|MYSQL_PWD)|TOKEN)(_?ID)?(_?[0-9]+)?$")


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether the name of a variable is secret-like."""
    upper = name.upper()
    if upper.startswith(PREFIX):
        return False
    return bool(_ANYWHERE.search(upper) or _AT_THE_END.search(upper))


def passwords_in(env: Mapping[str, str]) -> Iterator[str]:
    """The passwords of addresses, both as written (percent-encoded) and decoded."""
    for value in env.values():
        if "://" in value and "@" in value:
            login = value.partition("://")[2].rpartition("@")[0]
            if password := login.partition(":")[2]:
                yield password
                yield unquote(password)


def without_secret_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables without secret-like names."""
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
