"""The plugins of the deployment: code of its operator that runs in this process, around all nodes and calls.

Rules. A plugin is an entry point of the group `sleipnir.plugins`; the setting `plugins` names those that are switched
on, in their order. It is an object, a module, or a class that is called without arguments. Its functions are found by
their names (FUNCTIONS); it needs only those that it wants. Without plugins nothing here costs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sleipnir.errors import ConfigError
from sleipnir.graph.model import CallbackKind, CallbackPhase
from sleipnir.plugin_points import plugin_point
from sleipnir_workers.execution.visit_callbacks import Callback

FUNCTIONS: Final[Mapping[str, tuple[CallbackKind, CallbackPhase]]] = {
    "before_node": ("node", "before"),
    "after_node": ("node", "after"),
    "node_error": ("node", "error"),
    "before_model": ("model", "before"),
    "after_model": ("model", "after"),
    "before_tool": ("tool", "before"),
    "after_tool": ("tool", "after"),
}

Plugins: TypeAlias = Mapping[tuple[CallbackKind, CallbackPhase], Sequence[Callback]]

active: Plugins | None = None
"""Those of this process; None: no plugin is switched on."""


def activate(names: Sequence[str]) -> None:
    """Load the plugins of these names for this process. Raises ConfigError."""
    global active
    active = load(names) if names else None


def load(names: Sequence[str]) -> Plugins:
    """The functions of the plugins of these names, in their order. Raises ConfigError for a plugin that is not
    installed, cannot be loaded, or has no function that is called."""
    named: dict[tuple[CallbackKind, CallbackPhase], list[Callback]] = {}
    for name in names:
        plugin = _loaded(name)
        functions = {key: _callable(key, getattr(plugin, key), name) for key in FUNCTIONS if hasattr(plugin, key)}
        if not functions:
            raise ConfigError(f"plugin '{name}' has none of the functions that are called: {', '.join(FUNCTIONS)}")
        for key, function in functions.items():
            named.setdefault(FUNCTIONS[key], []).append(Callback("plugin", f"{name}.{key}", function))
    return named


def title(name: str) -> str:
    """What messages call the function of a plugin."""
    return f"Plugin '{name}'"


def _callable(key: str, function: Any, plugin: str) -> Callable[..., Any]:
    if not callable(function):
        raise ConfigError(f"plugin '{plugin}': '{key}' is a {type(function).__name__}, which cannot be called")
    called: Callable[..., Any] = function
    return called


def _loaded(name: str) -> Any:
    point = plugin_point(name)
    try:
        plugin = point.load()
        return plugin() if isinstance(plugin, type) else plugin
    except Exception as error:
        raise ConfigError(
            f"plugin '{name}' ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
