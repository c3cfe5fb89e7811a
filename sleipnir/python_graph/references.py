"""References to the functions and classes of a graph: `module:qualname`, under which workers find them again.

An object that cannot be found again (a lambda, a function defined in another, a method of an instance) gets a reference
that no worker can follow. In this process it is found in the table; `unreachable` says which these are.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any


class References:
    """The objects of one graph, by their references. `name` gives the name of a module in references."""

    def __init__(self, name: Callable[[str], str] = str) -> None:
        self._name = name
        self.objects: dict[str, Any] = {}
        self._by_id: dict[int, str] = {}
        self.unreachable: dict[str, str] = {}
        """By reference, why a worker could not find the object."""

    def to(self, target: Any) -> str:
        """The reference to an object, the same one for each call."""
        if (known := self._by_id.get(id(target))) is not None:
            return known
        module = getattr(target, "__module__", None) or type(target).__module__
        qualname = getattr(target, "__qualname__", None) or type(target).__qualname__
        reference = f"{self._name(module)}:{qualname}"
        why = _why_unreachable(target, module, qualname)
        if why or reference in self.objects:
            self.unreachable[reference := self._unused(reference)] = why or "another object has its name"
        self._by_id[id(target)], self.objects[reference] = reference, target
        return reference

    def find(self, reference: str) -> Any:
        """The object of a reference. Raises ImportError and AttributeError."""
        found = self.objects.get(reference)
        if found is None:
            module, _, qualname = reference.partition(":")
            found = self.objects[reference] = reduce(getattr, qualname.split("."), importlib.import_module(module))
        return found

    def _unused(self, reference: str) -> str:
        """`reference` with a number that makes it different from the others."""
        number = 1
        while f"{reference}#{number}" in self.objects:
            number += 1
        return f"{reference}#{number}"


def _why_unreachable(target: Any, module: str, qualname: str) -> str:
    """Why `module:qualname` does not lead to `target`; empty if it does."""
    if getattr(target, "__qualname__", None) is None:
        return f"it is an object of the class {qualname}, not a function"
    if inspect.ismethod(target) and not inspect.isclass(target.__self__):
        return "it is a method of an object"
    if "<lambda>" in qualname:
        return "it is a lambda"
    if "<locals>" in qualname:
        return "it is defined inside a function"
    try:
        found = reduce(getattr, qualname.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return "its module does not define it under its name"
    is_same = found is target or (inspect.ismethod(target) and found == target)
    return "" if is_same else "its module defines another object under its name"
