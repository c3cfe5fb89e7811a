"""The mcp.json of this worker with its secrets. Neither is ever in a bundle or in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sleipnir.tools.mcp_config import McpServer, read
from sleipnir_workers.machine.agent_environment import parse_env_file


def configured(file: Path, env: Mapping[str, str], env_file: Path) -> dict[str, McpServer]:
    """The servers in the current mcp.json. Secrets: the lines of `env_file`, then `env`.

    Raises McpConfigError.
    """
    return read(file, secrets_of(env, env_file))


def secrets_of(env: Mapping[str, str], env_file: Path | None) -> Mapping[str, str]:
    """The values for `{{NAME}}`: the lines of a file if it exists, then variables."""
    if env_file is None or not env_file.is_file():
        return env
    return {**env, **parse_env_file(env_file.read_text(encoding="utf-8", errors="replace"))}
