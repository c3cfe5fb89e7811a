"""Values of the API's answers as the classes that the client returns. A field that this release does not know is left
out; one that the server does not know yet has its default."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sleipnir.errors import ServerFailed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def decoded(type_: type[T], value: Any) -> T:
    """A value of this type from its JSON form. Raises ServerFailed."""
    from pydantic import ValidationError

    try:
        found: T = _adapter(type_).validate_python(value)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        where = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in where["loc"])
        raise ServerFailed(
            f"the answer of the server is not what this release can read: {place}: {where['msg']}"
        ) from None
    return found


def of_json(body: bytes) -> Any:
    """Parsed JSON. Raises ServerFailed."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ServerFailed(f"the answer of the server is no JSON: {body[:100].decode('utf-8', 'replace')!r}") from None


@cache
def _adapter(type_: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)
