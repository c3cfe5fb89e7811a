"""The clients of models that are configured on this machine, by name only: no key or address is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sleipnir.agents.config_directory import config_dir
from sleipnir.agents.config_file import config_file, read_config
from sleipnir.errors import ConfigError
from sleipnir.graph.check_case import KnownClients

_BASE: Final = "_API_BASE"
"""The suffix of the variable with a client's address."""


def clients_here(env: Mapping[str, str], *, is_local: bool) -> KnownClients:
    """The clients for `validate`. `is_local`: the workers are on this machine, with this environment."""
    secrets = Path(env.get("SLEIPNIR_SECRETS") or config_dir(env) / "secrets.env")
    return KnownClients(configured_clients(env), complete=is_local and not secrets.exists())


def configured_clients(env: Mapping[str, str]) -> frozenset[str]:
    """The clients in config.yaml, and those whose address is in `env`, in all their spellings."""
    prefixes = [name.removesuffix(_BASE).lower() for name, text in env.items() if name.endswith(_BASE) and text]
    names = {spelling for prefix in prefixes for spelling in (prefix, prefix.replace("_", "-"))}
    try:
        document = read_config(config_file(env))
    except ConfigError:
        return frozenset(names)  # `doctor` reports problems of the file
    data = None if document is None else document.data
    clients = data.get("clients") if isinstance(data, dict) else None
    for client in clients if isinstance(clients, list) else ():
        if isinstance(client, dict):
            names.update(client[key] for key in ("name", "type") if isinstance(client.get(key), str))
    return frozenset(names)
