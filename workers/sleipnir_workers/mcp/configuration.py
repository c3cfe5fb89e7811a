"""The mcp.json of this worker, with the secrets that it names. Both stay here: neither bundles nor Redis hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sleipnir.tools.mcp_config import McpServer, read
from sleipnir_workers.agent_environment import parse_env_file


def configured(file: Path, env: Mapping[str, str], env_file: Path) -> dict[str, McpServer]:
    """The servers of mcp.json, as the file is now. Secrets: the lines of `env_file`, then `env`.

    Raises McpConfigError.
    """
    return read(file, secrets_of(env, env_file))


def secrets_of(env: Mapping[str, str], env_file: Path | None) -> Mapping[str, str]:
    """What `{{NAME}}` may stand for: variables, and before them the lines of a file, if it is there."""
    if env_file is None or not env_file.is_file():
        return env
    return {**env, **parse_env_file(env_file.read_text(encoding="utf-8", errors="replace"))}
