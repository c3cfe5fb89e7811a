"""What the machine of this worker offers a visit: its environment, its settings and its own directories.

Executors take a Host as a parameter and never look at os.environ themselves, so that a test can say
exactly what a worker knows. `here()` is the process's own Host, read once.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sleipnir.agents import loki_config_dir
from sleipnir.settings import Settings


@dataclass(frozen=True)
class Host:
    """A worker's environment variables and settings. It holds secrets: never log or pickle one."""

    env: Mapping[str, str]
    settings: Settings

    @property
    def config_dir(self) -> Path:
        """Loki's configuration directory on this worker."""
        return loki_config_dir(self.env)

    def agent_env_file(self, agent: str) -> Path | None:
        """The `.env` of an agent in this worker's own agents directory; None without one.

        It is read here because it never travels: bundles and Redis hold no secrets.
        """
        if self.settings.agents_dir is None or Path(agent).name != agent:
            return None
        path = self.settings.agents_dir / agent / ".env"
        return path if path.is_file() else None


@functools.cache
def here() -> Host:
    """The Host of this process, as its environment was at the first call."""
    return Host(env=dict(os.environ), settings=Settings.from_env())
