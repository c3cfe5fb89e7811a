"""Loki's config.yaml: its path, and its content with positions. The meaning of its keys is documented where they are
used.

Rules. The file is optional. Its values may contain `{{NAME}}`, a secret that is looked up where it is used. Errors name
file, line and column, and never a value, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from sleipnir.agents.config_directory import config_dir, variable
from sleipnir.errors import ConfigError
from sleipnir.graph.findings import Positions, position_of
from sleipnir.graph.source import YamlDocument, read

FILE: Final = "config.yaml"

_UNQUOTED = re.compile(r"^(\s*(?:- +)?[A-Za-z0-9_]+:\s+)(\{\{\s*[A-Za-z0-9_.-]+\s*\}\})\s*(?:#.*)?$", re.MULTILINE)
"""A secret without quotes as a whole value, which YAML would read as a mapping in a mapping."""


def config_file(env: Mapping[str, str]) -> Path:
    """The path of the file for `env`; it may not exist."""
    file = variable(env, "CONFIG_FILE")
    return Path(file) if file else config_dir(env) / FILE


def read_config(path: Path) -> YamlDocument | None:
    """The content of the file, None if it is empty or missing. Raises ConfigError with every problem, one per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return None
    document = read(_UNQUOTED.sub(r'\1"\2"', text), str(path))
    if not document.readable:
        raise ConfigError("\n".join(map(str, document.problems)))
    return document


def problems_of(error: ValidationError, path: Path, positions: Positions) -> Iterator[str]:
    """`file:line:column: where: what`, without the values."""
    for problem in error.errors():
        keys = tuple(part for part in problem["loc"] if part != "function-before")
        line, column = position_of(positions, keys) or (1, 1)
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        yield f"{path}:{line}:{column}: {where or FILE}: {problem['msg']}"
