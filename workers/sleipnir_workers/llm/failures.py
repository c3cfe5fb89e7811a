"""Why a call of a model failed, and whether another attempt is worth it (spec 2.7.1).

Rules. An error is transient if its text says so (TRANSIENT, Loki's list), or if the provider sends Retry-After. A
message contains no traceback, and nothing that litellm repeats.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from sleipnir_workers.llm import litellm_compat

TRANSIENT = re.compile(
    r"timed out|rate limit|(?<!\d)429(?!\d)|connection reset|connection refused|produced no output"
    # Our text and httpx's for a connection that was closed, not reset.
    r"|closed the connection|peer closed connection|server disconnected",
    re.IGNORECASE,
)
"""An error whose text matches is worth another attempt. 429 matches only as a whole number, because ports and request
ids contain those digits too."""

_ERROR_CHARACTERS = 2_000


class CallFailed(Exception):
    """A call failed at the provider or on the network.

    `kind` is `rate_limit`, `timeout` or `model_call`; `status` the HTTP status, if any; `retry_after_s` the pause that
    the provider asks for, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        kind: str = "model_call",
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s


def from_error(error: BaseException, clean: Callable[[str], str]) -> CallFailed:
    """The failure that an exception of a call means. `clean` removes secrets from a text."""
    chain = _chain(error)
    message = litellm_compat.message_of(error)
    if isinstance(chain[-1], OSError) and str(chain[-1]) not in message:  # "Connection error." does not name the cause
        message = f"{message} ({chain[-1]})"
    elif parse_errors := [each for each in chain if isinstance(each, json.JSONDecodeError)]:
        message = f"the provider's answer is not JSON: {parse_errors[0]}"  # does not quote the answer
    status = getattr(error, "status_code", None)
    text = " ".join([*map(str, chain), str(status)])
    wait_s = _retry_after_s(error)
    return CallFailed(
        clean(message)[:_ERROR_CHARACTERS],
        transient=wait_s is not None or TRANSIENT.search(text) is not None,
        kind="rate_limit" if status == 429 else "model_call",
        status=status if isinstance(status, int) else None,
        retry_after_s=wait_s,
    )


def _retry_after_s(error: BaseException) -> float | None:
    """The Retry-After of the response behind an error: seconds, or a date."""
    text = next((value for headers in _headers(error) if (value := headers.get("retry-after"))), None)
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(str(text)).timestamp() - time.time())
    except ValueError:
        return None


def _headers(error: BaseException) -> list[Mapping[str, Any]]:
    candidates = [
        litellm_compat.headers_of(error),
        getattr(getattr(error, "response", None), "headers", None),
    ]
    return [headers for headers in candidates if isinstance(headers, Mapping)]


def _chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, outermost first."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 10:
        chain.append(cause)
    return chain
