"""Call the Python tools of a shipped agent as plain functions: what a worker does around them is tested elsewhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

AGENTS = Path(__file__).parents[2] / "agents"


class Tools:
    """The tools of one agent, in a directory that is its project and where the run was started."""

    def __init__(self, agent: str, project: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.project = AGENTS / agent, project
        project.mkdir(exist_ok=True)
        patch.chdir(project)
        patch.setenv("LLM_AGENT_ROOT_DIR", str(self.folder))
        patch.syspath_prepend(str(self.folder))
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.syspath_prepend(str(AGENTS / ".shared"))
        for helper in ("project", "commands"):  # loaded anew, as in a process of its own
            patch.delitem(sys.modules, helper, raising=False)
        self.module = load(self.folder / "tools.py")

    def __call__(self, name: str, **arguments: Any) -> Any:
        """What the tool returns."""
        return getattr(self.module, name)(**arguments)

    def refusal(self, name: str, **arguments: Any) -> str:
        """The error that the tool ends with. A traceback is no such thing."""
        with pytest.raises(SystemExit) as caught:
            self(name, **arguments)
        assert isinstance(caught.value.code, str)
        return caught.value.code


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_of_{file.parent.name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def git(folder: Path, *words: str) -> None:
    """Run git in a folder, whoever the tests run as."""
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)
