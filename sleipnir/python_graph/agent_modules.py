"""Load Python files of agent folders as modules, apart from each other and from the process that loads them.

Each directory becomes a private package of its own (`sleipnir_agent_<digest>`), so two agents, or two
versions of one, may both have a `steps.py`. sys.path is not changed. Inside such a file `import helper`
finds `helper.py` beside it first, as it would in a script, and the worker's modules otherwise: the
loader gives the file an `__import__` of its own. `from . import helper` works too; importlib.import_module
does not. A file is loaded once per process; bundles never change, so nothing is reloaded.
While a file is loaded, no run may be submitted: each worker loads the file.
No bytecode is written or read: the folder is the agent's, and its timestamps are meaningless.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from sleipnir.errors import NodeFailed, UsageError

PREFIX = "sleipnir_agent_"


_loading = threading.local()


GUARD: Final = 'if __name__ == "__main__":'


def refuse_while_loading() -> None:
    """Raises UsageError if the top level of an agent's file runs in this thread."""
    files: list[str] = getattr(_loading, "files", [])
    if files:
        name = Path(files[0]).name
        raise UsageError(
            f"a run is submitted while {name} is imported, which each worker does: write `{GUARD}` above that call"
        )


def load(path: Path, root: Path | None = None) -> ModuleType:
    """The module of the file at `path` (absolute, links followed), as one of the directory `root`: None means its own.
    Raises the errors of its top level."""
    names = path.relative_to(path.parent if root is None else root).with_suffix("").parts
    if any("." in name for name in names):
        raise NodeFailed(f"'{path.name}' cannot be imported: its name has a dot before .py; rename it", "not_found")
    if names[-1] == "__init__" and len(names) > 1:
        names = names[:-1]
    return importlib.import_module(".".join((_package_of(path.parent if root is None else root), *names)))


def _package_of(directory: Path) -> str:
    """The name of the private package of a directory, which is created on first use."""
    name = PREFIX + hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    if name not in sys.modules:
        package = ModuleType(name, f"Python files of {directory}")
        package.__path__ = [str(directory)]
        sys.modules.setdefault(name, package)
    return name


class _Finder:
    """Finds the submodules of private packages, and declines everything else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(PREFIX) or path is None:
            return None
        for directory in path:
            if spec := FileFinder(directory, (_Loader, [".py"])).find_spec(name):
                return spec
        return None


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import_from(package)}
        files: list[str] = _loading.__dict__.setdefault("files", [])
        files.append(self.path)
        try:
            super().exec_module(module)
        finally:
            files.pop()


@functools.cache
def _has(package: str, name: str) -> bool:
    return _Finder.find_spec(f"{package}.{name}", sys.modules[package].__path__) is not None


def _import_from(package: str) -> Any:
    """An `__import__` that looks in `package` first."""
    inside = {"__package__": package, "__name__": f"{package}.any", "__path__": None}

    def find_and_import(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and _has(package, name.partition(".")[0]):
            return builtins.__import__(name, inside, locals, fromlist, 1)
        return builtins.__import__(name, globals, locals, fromlist, level)

    return find_and_import


# Before the path finder, which would find the same files with its own loader.
sys.meta_path.insert(0, _Finder)
