"""The interface of the HTTP API as it is declared: permissions, the OpenAPI document, the types of errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from sleipnir import errors
from sleipnir.settings import Settings
from sleipnir_console import mcp_endpoint, openapi, problems
from sleipnir_console.app import PAGES, PROTOCOLS, ROUTERS, api_routes, create_app, openapi_document, page_routes
from sleipnir_console.permissions import RANKS, GuardedRoute, permission_of

ROOT = Path(__file__).parents[3]
PUBLIC = {"get_liveness", "get_readiness", "get_openapi", "log_in", "receive_hook"}
"""What anybody may ask: probes, this interface, and to become known."""


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(Settings(redis_url="redis://localhost"))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return openapi_document(app)


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["operationId"]: each for path in document["paths"].values() for each in path.values()}


def routes_of(router: APIRouter) -> list[GuardedRoute]:
    return [route for route in router.routes if isinstance(route, GuardedRoute)]


def test_every_route_declares_a_permission(app: FastAPI, document: dict[str, Any]) -> None:
    declared = {str(route.operation_id): permission_of(route.endpoint) for route in api_routes()}
    routers = (*ROUTERS, *PROTOCOLS.values())
    assert len(declared) == sum(len(router.routes) for router in routers)
    others = [route for route in app.routes if isinstance(route, Route)]
    assert [route.path for route in others] == [mcp_endpoint.PATH], "which checks its callers itself"
    assert len(app.routes) == len(routers) + len(PAGES) + len(others), "each other route is in a router that is walked"
    assert {name for name, permission in declared.items() if permission not in RANKS} == set()
    assert {name for name, permission in declared.items() if permission == "public"} == PUBLIC
    of_protocols = {str(route.operation_id) for router in PROTOCOLS.values() for route in routes_of(router)}
    documented = {name: permission for name, permission in declared.items() if name not in of_protocols}
    assert documented == {name: each[openapi.PERMISSION] for name, each in operations(document).items()}


def test_every_page_declares_a_permission() -> None:
    declared = {str(route.operation_id): permission_of(route.endpoint) for route in page_routes()}
    assert len(declared) == sum(len(router.routes) for router in PAGES)
    public = {
        "get_static_file", "show_login", "send_login", "choose_theme", "begin_provider_login", "finish_provider_login",
        "leave_provider", "show_linked_decision", "send_linked_answer",
    }  # fmt: skip
    assert {name for name, permission in declared.items() if permission == "public"} == public


def test_a_route_without_a_permission_cannot_be_made() -> None:
    router = APIRouter(route_class=GuardedRoute)

    async def open_to_all() -> None: ...

    with pytest.raises(TypeError, match=r"/secret declares no permission: add @requires"):
        router.get("/secret")(open_to_all)


def test_the_document_that_is_checked_in_is_the_one_of_the_routes(document: dict[str, Any]) -> None:
    written = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert written == openapi.text_of(document), "run ops/generate"


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for name, operation in operations(document).items():
        assert set(operation["tags"]) <= tags, name
        assert operation["summary"], name
        assert operation["description"].rstrip().endswith("."), name
        assert operation["responses"]["default"]["content"].keys() == {problems.MEDIA_TYPE}, name


def test_the_page_has_the_types_of_errors() -> None:
    assert (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8").endswith(problems.as_markdown())


def error_classes(base: type[errors.SleipnirError] = errors.SleipnirError) -> list[type[errors.SleipnirError]]:
    own = [each for each in base.__subclasses__() if each.__module__ == errors.__name__]
    return [*own, *(below for each in own for below in error_classes(each))]


OF_THE_SERVER = {"NodeFailed", "MachineFailed", "ConfigError", "RunFailure", "ServerFailed"}
"""Errors that no call of a route raises: if one does, it is a bug."""


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_of_the_client_has_a_type(cls: type[errors.SleipnirError]) -> None:
    error = cls.__new__(cls)
    Exception.__init__(error, "what happened")
    error.__dict__.update(problems=(errors.Problem("error", "wrong", "here/graph.yaml", 3),), kind="usage", part="disk")
    error.__dict__.update(why="people", assignees=(), role=None, by="ann", at_ms=5, person="ann", until_ms=6)
    problem = problems.problem_of(error)
    assert (problem.type == "internal") == (cls.__name__ in OF_THE_SERVER)
    assert json.loads(problem.response("x1").body)["type"].startswith(problems.TYPE_BASE)


def test_every_whole_number_of_a_request_has_a_maximum(document: dict[str, Any]) -> None:
    """Redis takes none above 2^63: such a number would be a server error."""
    schemas = document["components"]["schemas"]
    for name, operation in operations(document).items():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for given in [*operation.get("parameters", []), body]:
            assert unbounded(given, schemas) == [], f"{name}: add le=MOST_INT"


def unbounded(schema: Any, schemas: dict[str, Any]) -> list[Any]:
    """The integers in a schema that have no maximum."""
    if isinstance(schema, list):
        return [found for each in schema for found in unbounded(each, schemas)]
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return unbounded(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("type") == "integer":
        return [] if {"maximum", "exclusiveMaximum", "enum"} & schema.keys() else [schema]
    return unbounded(list(schema.values()), schemas)
