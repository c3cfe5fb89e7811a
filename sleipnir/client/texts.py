"""The texts that a client accepts: prompts and answers."""

from __future__ import annotations

from sleipnir.errors import UsageError


def refuse_text(what: str, text: str, limit_bytes: int) -> None:
    """Raises UsageError for a text that is too large, or not valid text (bytes of another encoding)."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid UTF-8 text; convert it, for example with iconv") from None
    if size > limit_bytes:
        raise UsageError(
            f"{what} has {size:,} bytes, more than SLEIPNIR_MAX_PROMPT_BYTES={limit_bytes:,}. "
            "Write it to a file and pass the file's path instead"
        )
