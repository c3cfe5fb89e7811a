"""The variables of a tool: the table of spec/graph-agents.md 3.7, over a clean environment.

Rules. A tool gets the same variables of the worker as a script (sandbox.KEPT), and no API key. `.env` files are read
from this machine: the agent's, for a global tool that of the functions directory, and that of the configuration
directory. The worker's own variables take precedence, then the first file that sets a variable. The last of these files
is shared with the model clients, so secrets (sleipnir.redaction defines their names) and Sleipnir's settings are left
out of it: a key that a tool needs belongs in one of the others.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from sleipnir.redaction import is_secret_name
from sleipnir.settings import PREFIX
from sleipnir.tools.declaration import Declaration
from sleipnir_workers.machine.agent_environment import expand_env_file, parse_env_file, root_of, roots
from sleipnir_workers.processes import sandbox
from sleipnir_workers.tools.place import Place


def environment(declaration: Declaration, place: Place) -> dict[str, str]:
    """The variables of a call of this tool, apart from its arguments and LLM_OUTPUT."""
    functions = place.host.functions_dir
    clean = sandbox.clean_environment(place.host.env)
    env = _env_files(declaration, place, clean) | clean
    env |= {
        "PATH": os.pathsep.join([str(functions / "bin"), env.get("PATH") or os.defpath]),
        "LLM_ROOT_DIR": str(_root(declaration, place)),
        "CLICOLOR_FORCE": "1",
        "FORCE_COLOR": "1",
        "AUTO_CONFIRM": "1",
        # The folder belongs to every visit of this bundle: importing a neighbour must not write into it.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if declaration.language == "bash":
        env["TERM"] = "xterm-256color"  # prompt-utils.sh asks tput for colours; if tput fails, `set -e` ends the tool
        env["LLM_PROMPT_UTILS_FILE"] = str(functions / "utils" / "prompt-utils.sh")
    own_variables = _of_agent_tool if declaration.agent else _of_global_tool
    return {**env, **own_variables(declaration, place), **place.variables}


def _of_agent_tool(declaration: Declaration, place: Place) -> dict[str, str]:
    return {
        "LLM_AGENT_NAME": place.agent,
        "LLM_AGENT_FUNC": declaration.command or declaration.name,
        "LLM_AGENT_ROOT_DIR": str(place.folder),
        "LLM_AGENT_CACHE_DIR": str(_cache(place)),
    }


def _of_global_tool(declaration: Declaration, place: Place) -> dict[str, str]:
    # Loki has the cache below LLM_ROOT_DIR, the agent's folder; in Sleipnir that is a bundle that many visits share.
    return {
        "LLM_TOOL_NAME": declaration.name,
        "LLM_TOOL_CACHE_DIR": str(_cache(place) / declaration.name),
    }


def _cache(place: Place) -> Path:
    return place.host.config_dir / "cache" / place.agent


def _root(declaration: Declaration, place: Place) -> Path:
    """The agent's folder for global tools, the configuration directory for an agent's own tools. If the file names
    something below LLM_ROOT_DIR that is missing there, another directory that has it: one that was the root in some
    release of Loki, or one that agents are installed in (`$LLM_ROOT_DIR/agents/.shared/utils.sh`)."""
    config, functions = place.host.config_dir, place.host.functions_dir
    usual, *others = (config, place.folder, functions) if declaration.agent else (place.folder, functions, config)
    return root_of(declaration.file, usual, chain(others, roots(place.folder, place.host)))


def _env_files(declaration: Declaration, place: Place, clean: dict[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for file in (_agents_env_file(place), None if declaration.agent else place.host.functions_dir / ".env"):
        values = ({} if file is None else _values(declaration, file, clean)) | values
    shared = _values(declaration, place.host.env_file, clean)
    allowed = {name: text for name, text in shared.items() if not (name.startswith(PREFIX) or is_secret_name(name))}
    return allowed | values


def _agents_env_file(place: Place) -> Path | None:
    """The agent's `.env`. Bundles hold none, so the directories that agents are installed in are searched too."""
    in_folder = place.folder / ".env"
    return in_folder if in_folder.is_file() else place.host.agent_env_file(place.agent)


def _values(declaration: Declaration, file: Path, clean: dict[str, str]) -> dict[str, str]:
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    return expand_env_file(text, clean) if declaration.language == "bash" else parse_env_file(text)
