"""Which plugins are installed in this Python? They are entry points of packages of the deployment's operator."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from sleipnir.errors import ConfigError

GROUP: Final = "sleipnir.plugins"


def plugin_point(name: str) -> EntryPoint:
    """The entry point of a plugin; nothing is imported. Raises ConfigError."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        installed = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        raise ConfigError(
            f"SLEIPNIR_PLUGINS names '{name}', but no installed package has that entry point of {GROUP}. "
            f"Installed are: {installed}"
        )
    if len({each.value for each in found}) > 1:
        values = ", ".join(sorted({each.value for each in found}))
        raise ConfigError(f"SLEIPNIR_PLUGINS names '{name}', which several packages provide: {values}")
    return found[0]
