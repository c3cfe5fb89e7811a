"""The mcp.json of this worker, with the secrets that it names. Both stay here: neither bundles nor Redis hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sleipnir.tools.mcp_config import McpServer, read
from sleipnir_workers.agent_environment import parse_env_file


def configured(config_dir: Path, env: Mapping[str, str]) -> dict[str, McpServer]:
    """The servers of `functions/mcp.json`, as the file is now. Secrets: the `.env` of `config_dir`, then `env`.

    Raises McpConfigError.
    """
    return read(config_dir / "functions" / "mcp.json", secrets_of(env, config_dir / ".env"))


def secrets_of(env: Mapping[str, str], env_file: Path | None) -> Mapping[str, str]:
    """What `{{NAME}}` may stand for: variables, and before them the lines of a file, if it is there."""
    if env_file is None or not env_file.is_file():
        return env
    return {**env, **parse_env_file(env_file.read_text(encoding="utf-8", errors="replace"))}
