"""The functions and classes of a graph written in Python, found again on a worker by their references.

`file.py:name` is in a file of the agent's folder; all of them are modules of one private package, as the folder is one
project. `package.module:name` is installed. The top level of these modules is the agent's own code, so finding anything
may raise any exception, and may take long.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.python_graph.agent_modules import load
from sleipnir.python_graph.objects import GraphObjects
from sleipnir.python_graph.schema import Key, ManagedKey, add_keys, managed_keys_of
from sleipnir_workers.folders.agent_files import agent_file


@functools.lru_cache(maxsize=256)
def objects_of(state_classes: tuple[str, ...], folder: Path) -> GraphObjects:
    """The objects of a graph whose bundle is unpacked to `folder`, once per bundle. Errors are not cached."""
    find = functools.lru_cache(maxsize=4096)(functools.partial(_found, folder))
    keys: dict[str, Key] = {}
    managed: dict[str, ManagedKey] = {}
    for reference in state_classes:
        add_keys(keys, find(reference))
        managed |= managed_keys_of(find(reference))
    return GraphObjects(keys, find, managed)


def _found(folder: Path, reference: str) -> Any:
    """Raises NodeFailed, and what the module's top level raises."""
    module_name, _, name = reference.partition(":")
    found: Any = _module(module_name, reference, folder)
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise NodeFailed(f"'{reference}' not found: '{module_name}' defines no '{name}'", "not_found")
    return found


def _module(name: str, reference: str, folder: Path) -> ModuleType:
    if name.endswith(".py"):
        return load(agent_file(folder, name, what="Python"), folder.resolve())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the module exists; one that it imports does not
        raise NodeFailed(
            f"'{reference}' not found: no module '{name}' is installed on this worker", "not_found"
        ) from error
