"""The placeholders in the texts of a config.yaml agent, its instructions and starters (spec/graph-agents.md 3.4, 3.5).

Rules. The agent's variables are replaced first, written exactly as `{{name}}` without spaces, then the special
variables, also in values of variables. Other names stay unchanged.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from sleipnir.agents.config_directory import variable

TOOLS: Final = "__tools__"
"""Only in static instructions, where it is replaced first: the list of the agent's tools."""

_NAME = re.compile(r"\{\{(\w+)\}\}")
_SYSTEMS: Final = {"darwin": "macos"}
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def interpolated(text: str, variables: Mapping[str, str], special: Mapping[str, str]) -> str:
    """`text` with the agent's variables and the special ones. Values are not searched for variables again."""
    if variables:
        names = "|".join(re.escape(name) for name in sorted(variables, key=len, reverse=True))
        text = re.sub(r"\{\{(" + names + r")\}\}", lambda match: variables[match[1]], text)
    return _NAME.sub(lambda match: special.get(match[1], match[0]), text)


def special_variables(env: Mapping[str, str], cwd: str | Path, now: datetime) -> dict[str, str]:
    """The values of the special variables on this machine, except `__tools__`; `now` has a time zone."""
    system = platform.system().lower()
    return {
        "__os__": _SYSTEMS.get(system, system),
        "__os_distro__": _distribution(_SYSTEMS.get(system, system)),
        "__os_family__": "windows" if system == "windows" else "unix",
        "__arch__": _MACHINES.get(platform.machine().lower(), platform.machine().lower()),
        "__shell__": Path(variable(env, "SHELL") or env.get("SHELL") or "bash").stem,
        "__locale__": _locale(env),
        "__now__": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "__cwd__": os.fspath(cwd),
    }


def _distribution(system: str) -> str:
    """As in "Ubuntu 22.04 (linux)"; the name of the system if the distribution is unknown."""
    if system == "macos":
        return f"macOS {platform.mac_ver()[0]} (macos)"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return system
    return f"{' '.join(filter(None, (release['NAME'], release.get('VERSION_ID'))))} ({system})"


def _locale(env: Mapping[str, str]) -> str:
    """The language of messages, such as `en-US`, which is also the default."""
    locale = next((env[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if env.get(name)), "")
    name = re.split(r"[.@]", locale)[0]
    return "en-US" if name in ("", "C", "POSIX") else name.replace("_", "-")
