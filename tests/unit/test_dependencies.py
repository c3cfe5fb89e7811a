"""What our packages import is declared: a dependency of a dependency may be gone with its next release."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "sleipnir",
    "scheduler/sleipnir_scheduler",
    "workers/sleipnir_workers",
    "inprocess/sleipnir_inprocess",
    "console/sleipnir_console",
)
SLEIPNIR = {"sleipnir", "sleipnir_scheduler", "sleipnir_workers", "sleipnir_inprocess", "sleipnir_console"}
WITH = {
    "pydantic_core": "pydantic",
    "anyio": "mcp",
    "botocore": "boto3",
    "httpx": "litellm",
    "httpx2": "mcp",
    "starlette": "fastapi",
}
"""Parts of a package that only come with it, in a version that it chooses."""

PLUGINS = {"sleipnir/testing/plugin.py": "pytest"}
"""Files that only the named program loads, of which it is a plugin."""


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name, lines in extras.items() if name != "dev" for line in lines)]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imported() -> dict[str, str]:
    """The top-level modules that our code imports, each with a file that does."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
                place = str(file.relative_to(ROOT))
                found |= {top: place for name in names if (top := name.partition(".")[0]) != PLUGINS.get(place)}
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names | SLEIPNIR}


def test_every_package_that_is_imported_is_declared() -> None:
    """Finding U20 of the second review: kombu was not."""
    of_module, mine = packages_distributions(), declared()
    missing = {
        module: file
        for module, file in imported().items()
        if not {canonicalize_name(name) for name in of_module.get(WITH.get(module, module), [module])} & mine
    }
    assert missing == {}
