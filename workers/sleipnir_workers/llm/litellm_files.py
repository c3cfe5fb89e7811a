"""What the files of litellm's package say, read without importing it: its price list and the names of providers.

The import takes two seconds and 160 MB, and a worker that only embeds questions needs none of it. Without litellm there
are no prices, and the only providers are those whose protocols we speak ourselves.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPOKEN = frozenset({"openai", "cohere"})
"""Providers that can be asked without litellm: cohere for reranking alone."""

_PRICES = "model_prices_and_context_window_backup.json"
_TYPES = "types/utils.py"
_PROVIDERS = re.compile(r"^class LlmProviders\(.*?\):\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
_PROVIDER = re.compile(r'^    [A-Z0-9_]+ = "([^"]+)"', re.MULTILINE)
_BY_ITS_PROVIDER = ("voyage", "jina_ai")
"""Providers that we reach by OpenAI's protocol, and that the list has in front of their models' names."""


def is_installed() -> bool:
    return _folder() is not None


@functools.cache
def providers() -> frozenset[str]:
    """The names of the providers that litellm knows."""
    folder = _folder()
    if folder is None:
        return SPOKEN
    types = folder / _TYPES
    if types.is_file() and (found := _PROVIDERS.search(types.read_text(encoding="utf-8"))):
        return frozenset(_PROVIDER.findall(found[1]))
    from sleipnir_workers.llm import provider  # a release that writes them in another way

    return provider.providers()


@functools.lru_cache(maxsize=64)
def listed(model: str, mode: str) -> Mapping[str, Any] | None:
    """What the price list says of a model, named as litellm does (`openai/text-embedding-3-small`); `mode` is
    `embedding` or `rerank`. None if it does not say anything."""
    provider, _, name = model.partition("/")
    names = [model, name, *(f"{each}/{name}" for each in _BY_ITS_PROVIDER if provider == "openai")]
    rows = (row for each in names if (row := _rows(mode).get(each)) is not None)
    return next(rows, None)


@functools.lru_cache(maxsize=4)
def _rows(mode: str) -> Mapping[str, Mapping[str, Any]]:
    folder = _folder()
    if folder is None or not (folder / _PRICES).is_file():
        return {}
    rows = json.loads((folder / _PRICES).read_bytes())
    return {name: row for name, row in rows.items() if row.get("mode") == mode and name != "sample_spec"}


def _folder() -> Path | None:
    found = importlib.util.find_spec("litellm")
    return Path(found.origin).parent if found is not None and found.origin is not None else None
