"""Responses of one JSON object per line, written as they are read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from starlette.responses import StreamingResponse

from sleipnir.errors import SleipnirError
from sleipnir_console.problems import problem_of

MEDIA_TYPE: Final = "application/x-ndjson"
LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "One JSON object per line.", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


class CutOff(Exception):
    """The response cannot be completed: its connection is closed, so that the part is not taken for the whole."""


class JsonLines(StreamingResponse):
    """A response of lines. If reading fails, its last line is `{"problem": ...}`, and the connection breaks off."""

    def __init__(self, items: AsyncIterator[Mapping[str, Any]], is_stopping: Callable[[], bool]) -> None:
        super().__init__(_lines(items, is_stopping), media_type=MEDIA_TYPE)


async def _lines(items: AsyncIterator[Mapping[str, Any]], is_stopping: Callable[[], bool]) -> AsyncIterator[bytes]:
    try:
        async for item in items:
            yield json.dumps(item, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            if is_stopping():
                raise CutOff("the server is being stopped")
    except SleipnirError as error:
        yield json.dumps({"problem": problem_of(error).document()}).encode() + b"\n"
        raise CutOff(str(error)) from error
