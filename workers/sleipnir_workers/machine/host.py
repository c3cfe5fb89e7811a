"""The machine of a worker, as visits see it: its environment, its settings and its own directories.

Executors take a Host as a parameter and never read os.environ themselves, so that a test can set
exactly what a worker has. `this_host()` is the process's own Host, read once.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from sleipnir.agents import config_directory
from sleipnir.graph.overrides import env_name
from sleipnir.settings import Settings


@dataclass(frozen=True)
class Host:
    """A worker's environment variables and settings. It holds secrets: never log or pickle one.

    Its directories are looked up once, because each visit of a script needs them.
    """

    env: Mapping[str, str]
    settings: Settings

    @functools.cached_property
    def config_dir(self) -> Path:
        """Loki's, or Coyote's, configuration directory on this worker."""
        return config_directory.config_dir(self.env)

    @functools.cached_property
    def functions_dir(self) -> Path:
        """The directory of global tools and of mcp.json on this worker."""
        return config_directory.functions_dir(self.env)

    @functools.cached_property
    def env_file(self) -> Path:
        """The file of variables for tools of all agents; it may not exist."""
        return config_directory.env_file(self.env)

    @functools.cached_property
    def agents_dirs(self) -> list[Path]:
        """The directories of this machine that agents are installed in, in the order in which they are looked up."""
        configured = [self.settings.agents_dir] if self.settings.agents_dir is not None else []
        installed = [folder / "agents" for folder in config_directory.config_dirs(self.env)]
        return list(dict.fromkeys([*configured, self.settings.home / "agents", *installed]))

    def agent_env_file(self, agent: str) -> Path | None:
        """The `.env` of an agent in this worker's own agents directories; None without one.

        It is read on this machine, because bundles and Redis hold no secrets.
        """
        if Path(agent).name != agent:
            return None
        data_dir = self.env.get(f"{env_name(agent)}_DATA_DIR")
        folders = [Path(data_dir)] if data_dir else [folder / agent for folder in self.agents_dirs]
        return next((file for folder in folders if (file := folder / ".env").is_file()), None)


def this_host() -> Host:
    """The Host of a run in this process, where one is executed; else that of the process, as its environment was at the
    first call."""
    return _of_run.get() or _of_process()


@contextmanager
def executing_for(host: Host) -> Iterator[None]:
    """Executions in this context are for a run that has a Host of its own."""
    token = _of_run.set(host)
    try:
        yield
    finally:
        _of_run.reset(token)


@functools.cache
def _of_process() -> Host:
    return Host(env=dict(os.environ), settings=Settings.from_env())


_of_run: ContextVar[Host | None] = ContextVar("host", default=None)
