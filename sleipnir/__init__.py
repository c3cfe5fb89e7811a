"""Sleipnir runs YAML graph agents as durable, distributed workflows.

`from sleipnir import Client` is the Python API. Names are imported on first use: `sleipnir --help` pays for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sleipnir.client.client import Client, Run
    from sleipnir.client.options import RunOptions
    from sleipnir.settings import Settings

__all__ = ["Client", "Run", "RunOptions", "Settings", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Client", "Run"):
        from sleipnir.client import client

        return getattr(client, name)
    if name == "RunOptions":
        from sleipnir.client.options import RunOptions

        return RunOptions
    if name == "Settings":
        from sleipnir.settings import Settings

        return Settings
    if name == "__version__":
        from importlib.metadata import version

        return version("sleipnir")
    raise AttributeError(f"module 'sleipnir' has no attribute {name!r}")
