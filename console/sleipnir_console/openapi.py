"""The OpenAPI document: made from the routes, checked in as docs/openapi.json, and served.

Beside what FastAPI says of each operation it has the permission that the operation needs, and the form of errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi.datastructures import DefaultPlaceholder
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import Response

from sleipnir import __version__
from sleipnir_console import problems
from sleipnir_console.permissions import permission_of

PERMISSION: Final = "x-sleipnir-permission"
TITLE: Final = "Sleipnir"
DESCRIPTION: Final = """\
Submit and steer runs of graph agents. Errors are problem documents (RFC 9457, `application/problem+json`) with a stable
`type`. Times are milliseconds since the epoch by Redis' clock; their names end in `_ms`.
"""
_PROBLEM: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "An error (RFC 9457). Some types have more members.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string", "description": "What kind of error it is; never changes its meaning.",
            "enum": [problems.TYPE_BASE + name for name in problems.TYPES],
        },
        "title": {"type": "string", "description": "The kind, for people."},
        "status": {"type": "integer", "description": "The status of the response."},
        "detail": {"type": "string", "description": "What happened, to what, and what to do."},
        "instance": {"type": "string", "description": "The id of the request, as in the log of the server."},
    },
}  # fmt: skip


def document(
    routers: Sequence[Any], routes: Mapping[str, APIRoute], tags: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The document. `routers` are those of the application, `routes` its routes by their operation ids."""
    made = get_openapi(
        title=TITLE, version=__version__, description=DESCRIPTION, routes=list(routers), tags=[dict(t) for t in tags]
    )
    for path in made["paths"].values():
        for operation in path.values():
            route = routes[operation["operationId"]]
            operation[PERMISSION] = permission_of(route.endpoint)
            operation["responses"].pop("422", None)
            _tell_media_types(operation["responses"], route)
            operation["responses"]["default"] = {
                "description": "An error.",
                "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = dict(_PROBLEM)
    made["components"]["schemas"] = dict(sorted(schemas.items()))
    _write_pairs_as_lists(schemas)
    return made


def _tell_media_types(responses: dict[str, Any], route: APIRoute) -> None:
    """A route that returns a response of its own sends what it declares in `responses`, or nothing. FastAPI takes it
    for JSON."""
    returned = route.endpoint.__annotations__.get("return")
    if returned not in ("Response", Response) or not isinstance(route.response_class, DefaultPlaceholder):
        return
    for response in responses.values():
        if response.get("content", {}).get("application/json") == {"schema": {}}:
            del response["content"]["application/json"]
            if not response["content"]:
                del response["content"]


def _write_pairs_as_lists(value: Any) -> None:
    """Tuples of values of one kind are lists of that length: fewer tools read `prefixItems`."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _write_pairs_as_lists(each)
    if isinstance(value, dict) and (parts := value.get("prefixItems")) and all(part == parts[0] for part in parts):
        del value["prefixItems"]
        value["items"] = parts[0]


def text_of(made: Mapping[str, Any]) -> str:
    """The text of docs/openapi.json."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
