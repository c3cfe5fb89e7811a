"""The application's defaults for knowledge bases, used where a node sets no value (spec 8.1).

They come from Loki's config.yaml and from variables: `COYOTE_RAG_...`, `LOKI_RAG_...` and `..._DOCUMENT_LOADERS` (a
JSON object) override the file, and `null` unsets a value of the file. A default never makes a node fully specified
(rules.py).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sleipnir.agents.config_directory import variable
from sleipnir.agents.config_file import config_file, problems_of, read_config
from sleipnir.errors import ConfigError
from sleipnir.knowledge.recipe import TOP_K


@dataclass(frozen=True)
class Application:
    """`loaders` are commands by extension or protocol (spec 8.2, 8.3). `template` is the prompt of agents with
    documents; None: the built-in one. `chunk_sizes` maps the ids of the embedding models under `clients:` to their
    recommended chunk sizes."""

    embedding_model: str | None = None
    reranker_model: str | None = None
    top_k: int = TOP_K
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    template: str | None = None
    loaders: Mapping[str, str] = field(default_factory=dict)
    chunk_sizes: Mapping[str, int | None] = field(default_factory=dict)


def application(env: Mapping[str, str] = os.environ) -> Application:
    """The defaults for a process with this environment. Raises ConfigError with every problem, one per line."""
    path = config_file(env)
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        file = _NOTHING
    else:
        file = _read(path, changed_ns)
    values = {**file.model_dump(include=set(_VARIABLES), exclude_none=True), **_of_environment(env)}
    return Application(
        **{_VARIABLES[key]: value for key, value in values.items() if value is not None},
        chunk_sizes={
            f"{client.name or client.type}:{model.name}": model.default_chunk_size
            for client in file.clients or ()
            for model in client.models or ()
            if model.type == "embedding"
        },
    )


_VARIABLES: Final = {
    "rag_embedding_model": "embedding_model",
    "rag_reranker_model": "reranker_model",
    "rag_top_k": "top_k",
    "rag_chunk_size": "chunk_size",
    "rag_chunk_overlap": "chunk_overlap",
    "rag_template": "template",
    "document_loaders": "loaders",
}
"""Keys of the file and their fields. The variables are `COYOTE_` or `LOKI_` and the key in capitals."""


class _Written(BaseModel):
    """Other keys are allowed: they do not concern knowledge bases."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class _Model(_Written):
    name: str
    type: str | None = None
    default_chunk_size: int | None = Field(None, gt=0)


class _Client(_Written):
    type: str
    name: str | None = None
    models: list[_Model] | None = None


class _File(_Written):
    rag_embedding_model: str | None = Field(None, min_length=1)
    rag_reranker_model: str | None = Field(None, min_length=1)
    rag_top_k: int | None = Field(None, gt=0)
    rag_chunk_size: int | None = Field(None, gt=0)
    rag_chunk_overlap: int | None = Field(None, ge=0)
    rag_template: str | None = None
    document_loaders: dict[str, str] | None = None
    clients: list[_Client] | None = None


_NOTHING: Final = _File.model_validate({})


@functools.lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int) -> _File:
    document = read_config(path)
    if document is None:
        return _NOTHING
    try:
        return _File.model_validate(document.data or {})
    except ValidationError as error:
        raise ConfigError("\n".join(problems_of(error, path, document.positions))) from None


def _of_environment(env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in _VARIABLES:
        text = variable(env, key.upper())
        if text:
            values[key] = None if text == "null" else text
    try:
        if values.get("document_loaders"):
            values["document_loaders"] = json.loads(values["document_loaders"])
        parsed = _File.model_validate(values)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{_variable('document_loaders')} is not a JSON object: {error}") from None
    except ValidationError as error:
        problems = [f"{_variable(str(each['loc'][0]))}={each['input']!r}: {each['msg']}" for each in error.errors()]
        raise ConfigError("\n".join(problems)) from None
    return {key: getattr(parsed, key) for key in values}


def _variable(key: str) -> str:
    return f"LOKI_{key.upper()}"
