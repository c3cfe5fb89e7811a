"""The configuration directory of Loki or Coyote, Loki's new name, on a machine (spec/coyote.md 1).

Rules. `COYOTE_X` takes precedence over `LOKI_X`. Without `*_CONFIG_DIR` the directory is `coyote` below the user's
configuration directory, or `loki` if there is no `coyote`. Agents are searched in both, because a user who migrated has
both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAMES: Final = ("coyote", "loki")

SKILL_FILE: Final = "SKILL.md"


def variable(env: Mapping[str, str], name: str) -> str | None:
    """The value of `COYOTE_<name>`, else of `LOKI_<name>`; None if neither is set, or to nothing."""
    return next((value for prefix in NAMES if (value := env.get(f"{prefix.upper()}_{name}"))), None)


def config_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The configuration directory; it may not exist. If neither exists it is `loki`: a tool that creates its cache
    there must not hide a directory that is installed later."""
    directories = config_dirs(env)
    return next((place for place in directories if place.is_dir()), directories[-1])


def config_dirs(env: Mapping[str, str] = os.environ) -> list[Path]:
    """All configuration directories of this machine, whether they exist or not, in order of precedence."""
    if own := variable(env, "CONFIG_DIR"):
        return [Path(own)]
    if xdg := env.get("XDG_CONFIG_HOME"):
        return [Path(xdg) / name for name in NAMES]
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    base = home / ("Library/Application Support" if sys.platform == "darwin" else ".config")
    return [base / name for name in NAMES]


def functions_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The directory of `tools/`, `utils/`, `bin/` and `mcp.json`: `*_FUNCTIONS_DIR`, else `functions` of the
    configuration directory."""
    own = variable(env, "FUNCTIONS_DIR")
    return Path(own) if own else config_dir(env) / "functions"


def functions_dirs(functions: Path) -> list[Path]:
    """The search path of global tools for a `functions_dir`: itself, and that of the other name beside it, because
    agents in the second configuration directory need its tools."""
    own, base = functions.parent.name, functions.parent.parent
    others = [base / name / functions.name for name in NAMES if name != own] if own in NAMES else []
    return [functions, *others]


def skills_dirs(env: Mapping[str, str] = os.environ) -> list[Path]:
    """The directories of skills, each a folder with a SKILL.md: `*_SKILLS_DIR`, else `skills` of every configuration
    directory."""
    own = variable(env, "SKILLS_DIR")
    return [Path(own)] if own else [place / "skills" for place in config_dirs(env)]


def skill_complaint(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The warning for a skill that an agent names, if it is not installed here."""
    places = skills_dirs(env)
    if any((place / name / SKILL_FILE).is_file() for place in places):
        return None
    return f"skill '{name}' is not installed: there is no {name}/{SKILL_FILE} in {' or '.join(map(str, places))}"


def env_file(env: Mapping[str, str] = os.environ) -> Path:
    """The file of variables that tools of all agents get: `*_ENV_FILE`, else `.env` of the configuration directory."""
    own = variable(env, "ENV_FILE")
    return Path(own) if own else config_dir(env) / ".env"
