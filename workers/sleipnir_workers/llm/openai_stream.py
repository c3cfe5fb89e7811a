"""The pieces of a stream of OpenAI's protocol, as plain data.

litellm and OpenAI's client make several objects of each piece and print them for a log that nobody reads: with twenty
pieces that took twice as long as all the rest of a call. Here a piece is what json.loads makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class Pieces:
    """What is in an opened stream. Iterate once, then `finish`; closing the stream is the caller's.

    Iterating raises openai.APIError for an error that the server sends instead of a piece, ValueError for what is no
    piece, and httpx's errors.
    """

    def __init__(self, response: Any) -> None:
        self._request = response.request
        self._lines: Iterator[str] = response.iter_lines()

    @classmethod
    def of(cls, stream: Any) -> Pieces | None:
        """Those of the stream that litellm has opened; None if it is not one of OpenAI's client."""
        import openai

        return cls(stream.response) if isinstance(stream, openai.Stream) else None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for line in self._lines:
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data.startswith("[DONE]"):
                return
            piece = json.loads(data)
            if not isinstance(piece, Mapping):
                raise ValueError(f"a piece of the stream is no object: {data[:100]}")
            if error := piece.get("error"):
                raise self._failed(error)
            yield piece

    def finish(self) -> None:
        """Read what follows the last piece, which is nothing: only then can another call have the connection."""
        for _ in self._lines:
            pass

    def _failed(self, error: Any) -> Exception:
        import openai

        said = error.get("message") if isinstance(error, Mapping) else error
        return openai.APIError(str(said or "the stream holds an error"), request=self._request, body=error)
