"""Hooks, for admins of the whole deployment: their requests start runs without a login."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import structlog
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from sleipnir.client.hooks import NewHook
from sleipnir.errors import ConfigError
from sleipnir.webhooks.hooks import PER_MINUTE, Hook, HookForm
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import Reason, StrictModel

router = APIRouter(prefix="/hooks", tags=["webhooks"], route_class=GuardedRoute)

HookPath: TypeAlias = Annotated[str, Path(max_length=64, description="The name of a hook.")]


class HookBody(StrictModel):
    """A new hook: what requests to `/hooks/NAME` do. `agent` or `signal` is given; `prompt` and `inputs` are templates
    of `{{body...}}` and `{{headers...}}`; `id_header` or `id_field` is how a request is known when it comes again."""

    name: str = Field(max_length=64, examples=["issues"])
    form: HookForm = "standard"
    agent: str | None = Field(None, max_length=200)
    signal: str | None = Field(None, max_length=200)
    prompt: str | None = Field(None, max_length=10_000)
    inputs: dict[str, str] = Field(default_factory=dict, max_length=50)
    header: str = Field("", max_length=64)
    algorithm: str = Field("sha256", max_length=16)
    id_header: str | None = Field(None, max_length=64)
    id_field: str | None = Field(None, max_length=200)
    namespace: str | None = Field(None, max_length=63)
    per_minute: int = Field(PER_MINUTE, ge=1, le=1_000_000)
    own_secret: bool = False
    reason: Reason = None


class SecretRequest(StrictModel):
    """A new secret; the one before it is valid for `overlap_s` seconds more."""

    overlap_s: Annotated[float, Field(strict=False)] = Field(0.0, ge=0, le=30 * 86_400)
    reason: Reason = None


class HookView(BaseModel):
    """A hook, without its secret."""

    name: str
    form: str
    agent: str | None
    signal: str | None
    prompt: str | None
    inputs: dict[str, str]
    header: str
    algorithm: str
    id_header: str | None
    id_field: str | None
    namespace: str | None
    per_minute: int
    created_ms: int
    created_by: str

    @classmethod
    def of(cls, hook: Hook) -> HookView:
        fields = {name: getattr(hook, name) for name in cls.model_fields if name not in ("header", "inputs")}
        return cls(header=hook.proof_header, inputs=dict(hook.inputs), **fields)


class NewHookView(BaseModel):
    """`secret` proves who makes a request. It is stored nowhere, and shown this once; null: it is in a file."""

    secret: str | None
    hook: HookView

    @classmethod
    def of(cls, made: NewHook) -> NewHookView:
        return cls(secret=made.secret, hook=HookView.of(made.hook))


@router.get("", operation_id="list_hooks", summary="All hooks")
@requires("admin", everywhere=True)
async def list_hooks(request: Request) -> list[HookView]:
    """By name."""
    return [HookView.of(hook) for hook in await client_of(request).hooks.all()]


@router.post("", operation_id="add_hook", summary="Add a hook", status_code=201)
@requires("admin", everywhere=True)
async def add_hook(request: Request, body: HookBody) -> NewHookView:
    """422 `refused` if the name is taken."""
    try:
        given = body.model_dump()
        return NewHookView.of(await client_of(request).hooks.add(given.pop("name"), **given))
    except ConfigError as error:
        raise without_key(error) from None


@router.get("/{name}", operation_id="get_hook", summary="One hook")
@requires("admin", everywhere=True)
async def get_hook(request: Request, name: HookPath) -> HookView:
    """Without its secret."""
    return HookView.of(await client_of(request).hooks.get(name))


@router.delete("/{name}", operation_id="remove_hook", summary="Remove a hook", status_code=204)
@requires("admin", everywhere=True)
async def remove_hook(request: Request, name: HookPath) -> None:
    """Its requests are refused from now on."""
    await client_of(request).hooks.remove(name)


@router.post("/{name}/rotate", operation_id="rotate_hook", summary="Give a hook a new secret")
@requires("admin", everywhere=True)
async def rotate_hook(request: Request, name: HookPath, body: SecretRequest | None = None) -> NewHookView:
    """The answer shows it this once."""
    given = body or SecretRequest(overlap_s=0.0)
    try:
        made = await client_of(request).hooks.rotate(name, overlap_s=given.overlap_s, reason=given.reason)
    except ConfigError as error:
        raise without_key(error) from None
    return NewHookView.of(made)


def without_key(error: ConfigError) -> HttpProblem:
    """What a caller is told when this server lacks a key: the path of its file is for the log."""
    structlog.get_logger().error("no key of webhooks", error=str(error))
    return HttpProblem("refused", "this server has no usable key of webhooks: its log says why")
