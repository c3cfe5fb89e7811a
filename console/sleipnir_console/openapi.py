"""The OpenAPI document: made from the routes, checked in as docs/openapi.json, and served.

Beside what FastAPI says of each operation it has the permission that the operation needs, and the form of errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

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
            operation["responses"]["default"] = {
                "description": "An error.",
                "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = dict(_PROBLEM)
    made["components"]["schemas"] = dict(sorted(schemas.items()))
    return made


def text_of(made: Mapping[str, Any]) -> str:
    """The text of docs/openapi.json."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
