"""The clients and prices of Loki's config.yaml that apply to model calls (spec 10.3).

The keys are `clients:`, `model:` and, our addition, `prices:`; Loki reads the others. Rules. The file is optional, and
read again when it has changed. Its values may contain `{{NAME}}` (machine/keyring.py); such a secret is looked up when
its client is used, so that a missing secret fails only that client. Errors name file and line.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sleipnir.agents.config_file import config_file, problems_of, read_config
from sleipnir.errors import ConfigError
from sleipnir.graph.findings import Positions, position_of
from sleipnir.graph.patterns import NoPattern, Pattern, PatternRefused, compiled
from sleipnir_workers.machine.host import Host
from sleipnir_workers.machine.keyring import PLACEHOLDER

Kind: TypeAlias = Literal["chat", "embedding", "reranker"]
"""The purpose of a model."""

PATCHED_AS: Mapping[str, str] = {"chat": "chat_completions", "embedding": "embeddings", "reranker": "rerank"}
"""The part of a client's `patch:` that applies to models of a kind."""


@dataclass(frozen=True)
class Prices:
    """USD per million tokens."""

    input: float
    output: float

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


@dataclass(frozen=True)
class ModelTraits:
    """What config.yaml says of a model besides its address; the defaults are for models that it does not list.

    For an embedding model, `default_chunk_size` is in bytes, and `max_batch_size` is the number of texts per call.
    `reasoning_levels` are the values of `reasoning_effort` that the model accepts; None: unknown.
    """

    name: str = ""
    real_name: str | None = None
    type: Kind = "chat"
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    default_chunk_size: int | None = None
    max_batch_size: int | None = None
    require_max_tokens: bool = False
    supports_function_calling: bool = True
    no_stream: bool = False
    no_system_message: bool = False
    system_prompt_prefix: str | None = None
    prices: Prices | None = None
    reasoning_levels: tuple[str, ...] | None = None
    default_reasoning_effort: str | None = None
    patch_body: Mapping[str, Any] = field(default_factory=dict)
    patch_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def sent_as(self) -> str:
        """The provider's name of the model."""
        return self.real_name or self.name


@dataclass(frozen=True)
class ClientPatch:
    """Additions to the requests for models of a client whose names match `pattern`."""

    pattern: Pattern
    body: Mapping[str, Any]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class ConfiguredClient:
    """One entry of `clients:`. `settings` may contain secrets and `{{NAME}}`; `line` is the first line of the entry;
    `patches` are by the kind of model."""

    name: str
    type: str
    models: tuple[ModelTraits, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patches: Mapping[str, tuple[ClientPatch, ...]] = field(default_factory=dict, repr=False)
    file: str = ""
    line: int = 0

    def values(self, env: Mapping[str, str]) -> dict[str, str]:
        """The settings with their secrets. Raises ConfigError with the names of missing secrets."""
        names = {name for text in self.settings.values() for name in PLACEHOLDER.findall(text)}
        if missing := sorted(name for name in names if not env.get(name)):
            raise ConfigError(
                f"{self.file}:{self.line}: client '{self.name}' needs the secret {', '.join(missing)}: "
                "set it in the environment of the llm workers or in the secrets file"
            )
        return {key: PLACEHOLDER.sub(lambda match: env[match[1]], text) for key, text in self.settings.items()}

    def with_patch(self, traits: ModelTraits) -> ModelTraits:
        """`traits` with the patches of this client whose pattern matches its name; its own patch wins."""
        body: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for patch in self.patches.get(traits.type, ()):
            if patch.pattern.found_in(traits.name):
                body |= patch.body
                headers |= patch.headers
        return replace(
            traits, patch_body={**body, **traits.patch_body}, patch_headers={**headers, **traits.patch_headers}
        )


@dataclass(frozen=True)
class Clients:
    """The settings of config.yaml for models. `model` and `reasoning_effort` are defaults for nodes and graphs.
    `max_tool_result_chars` is in bytes, 0: no limit."""

    clients: tuple[ConfiguredClient, ...] = ()
    prices: Mapping[str, Prices] = field(default_factory=dict)
    model: str | None = None
    reasoning_effort: str | None = None
    max_tool_result_chars: int = 0

    def prices_of(self, model_id: str) -> Prices | None:
        """The entry of `prices:` for this id, else the entry for all models of its client (`client:*`)."""
        return self.prices.get(model_id) or self.prices.get(model_id.partition(":")[0] + ":*")

    @property
    def literal_keys(self) -> frozenset[str]:
        """Every value of a client that may be a secret, as written in the file."""
        return frozenset(
            text for client in self.clients for key, text in client.settings.items() if key in _MAY_BE_SECRET
        )

    def secrets(self, env: Mapping[str, str]) -> frozenset[str]:
        """The values of `{{NAME}}` in all clients, where `env` has them."""
        texts = [text for client in self.clients for text in client.settings.values()]
        return frozenset(env[name] for text in texts for name in PLACEHOLDER.findall(text) if env.get(name))


NO_CLIENTS = Clients()

_MAY_BE_SECRET = ("api_key", "access_key_id", "secret_access_key", "session_token")


def clients_of(host: Host) -> Clients:
    """The clients of this worker's config.yaml. Raises ConfigError for an invalid file."""
    path = config_file(host.env)
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        return NO_CLIENTS
    return read_clients(path, changed_ns)


@functools.lru_cache(maxsize=4)
def read_clients(path: Path, _changed_ns: int) -> Clients:
    """The clients of a file. Raises ConfigError with every problem, one per line."""
    document = read_config(path)
    if document is None:
        return NO_CLIENTS
    try:
        written = _File.model_validate(document.data or {})
    except ValidationError as error:
        raise ConfigError("\n".join(problems_of(error, path, document.positions))) from None
    try:
        return Clients(
            tuple(_client(entry, path, document.positions, at) for at, entry in enumerate(written.clients or ())),
            {name: Prices(price.input, price.output) for name, price in (written.prices or {}).items()},
            written.model,
            written.reasoning_effort,
            written.max_tool_result_chars or 0,
        )
    except NoPattern as error:
        raise ConfigError(f"{path}: a pattern under `patch:` is no regular expression: {error}") from None
    except PatternRefused as error:
        raise ConfigError(f"{path}: a pattern under `patch:` cannot be used: {error}") from None


# The file


def _no_url(value: Any) -> Any:
    if isinstance(value, dict) and value.get("url") is not None:
        raise ValueError("patch of the url is not supported; set the client's api_base")
    return value


class _Written(BaseModel):
    """A part of the file. Other keys are Loki's and are ignored."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class _Patch(_Written):
    body: dict[str, Any] | None = None
    headers: dict[str, str] | None = None


_Patched = Annotated[_Patch, BeforeValidator(_no_url)]


class _Model(_Written):
    name: str = Field(min_length=1)
    type: Kind | None = None
    real_name: str | None = None
    max_input_tokens: int | None = Field(None, gt=0)
    max_output_tokens: int | None = Field(None, gt=0)
    default_chunk_size: int | None = Field(None, gt=0)
    max_batch_size: int | None = Field(None, gt=0)
    require_max_tokens: bool | None = None
    supports_function_calling: bool | None = None
    no_stream: bool | None = None
    no_system_message: bool | None = None
    system_prompt_prefix: str | None = None
    input_price: float | None = Field(None, ge=0)
    output_price: float | None = Field(None, ge=0)
    reasoning_levels: tuple[str, ...] | None = None
    default_reasoning_effort: str | None = None
    patch: _Patched | None = None


class _Client(_Written):
    type: str = Field(min_length=1)
    name: str | None = None
    api_base: str | None = None
    api_key: str | None = None
    organization_id: str | None = None
    api_version: str | None = None
    project_id: str | None = None
    location: str | None = None
    adc_file: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    region: str | None = None
    models: list[_Model] | None = None
    patch: dict[str, dict[str, _Patched] | None] | None = None


class _Price(_Written):
    input: float = Field(ge=0)
    output: float = Field(ge=0)


class _File(_Written):
    clients: list[_Client] | None = None
    prices: dict[str, _Price] | None = None
    model: str | None = None
    reasoning_effort: str | None = None
    max_tool_result_chars: int | None = Field(None, ge=0)


_NOT_SETTINGS = frozenset({"type", "name", "models", "patch"})


def _client(written: _Client, path: Path, positions: Positions, at: int) -> ConfiguredClient:
    line, _ = position_of(positions, ("clients", at)) or (0, 0)
    client = ConfiguredClient(
        name=written.name or written.type,
        type=written.type,
        settings=written.model_dump(exclude=set(_NOT_SETTINGS), exclude_none=True),
        patches={kind: tuple(_patches(written, api)) for kind, api in PATCHED_AS.items()},
        file=str(path),
        line=line,
    )
    return replace(client, models=tuple(client.with_patch(_traits(model, client)) for model in written.models or ()))


def _patches(written: _Client, api: str) -> Iterator[ClientPatch]:
    for pattern, patch in ((written.patch or {}).get(api) or {}).items():
        yield ClientPatch(compiled(pattern), patch.body or {}, patch.headers or {})


def _traits(written: _Model, client: ConfiguredClient) -> ModelTraits:
    kind = written.type or "chat"
    priced = written.input_price is not None and (written.output_price is not None or kind != "chat")
    needs_limit = client.type == "claude"  # its protocol requires max_tokens
    return ModelTraits(
        name=written.name,
        real_name=written.real_name,
        type=kind,
        max_input_tokens=written.max_input_tokens,
        max_output_tokens=written.max_output_tokens,
        default_chunk_size=written.default_chunk_size,
        max_batch_size=written.max_batch_size,
        require_max_tokens=bool(written.require_max_tokens) or needs_limit,
        supports_function_calling=bool(written.supports_function_calling),
        no_stream=bool(written.no_stream),
        no_system_message=bool(written.no_system_message),
        system_prompt_prefix=written.system_prompt_prefix,
        prices=Prices(written.input_price or 0.0, written.output_price or 0.0) if priced else None,
        reasoning_levels=written.reasoning_levels,
        default_reasoning_effort=written.default_reasoning_effort,
        patch_body=(written.patch.body if written.patch else None) or {},
        patch_headers=(written.patch.headers if written.patch else None) or {},
    )
