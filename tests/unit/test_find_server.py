"""Where no redis-server is found, the message names the one command that brings one to this machine."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.local import supervisor


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, which is empty. The `embedded` extra has no server for this machine's Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(supervisor, "embedded_server", lambda: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    return tmp_path


def message() -> str:
    with pytest.raises(ConfigError) as refused:
        supervisor.find_server()
    return str(refused.value)


@pytest.mark.parametrize(
    ("tool", "command"), [("apt-get", "sudo apt-get install redis-server"), ("brew", "brew install redis")]
)
def test_the_command_is_that_of_the_machines_package_manager(machine: Path, tool: str, command: str) -> None:
    """Finding U19 of the second review: Python 3.13 has no embedded server, and was told to install one by pip."""
    shutil.copy("/bin/sh", machine / tool)
    assert message() == f"no usable redis-server was found. `{command}` brings one, or set SLEIPNIR_REDIS_URL."


def test_the_embedded_server_is_named_where_there_is_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert "`pip install '.[embedded]'` in a checkout brings one" in message()


def test_without_a_package_manager_it_reports_what_to_install(machine: Path) -> None:
    assert "Install Redis 6.2 or newer, or Valkey, or set SLEIPNIR_REDIS_URL." in message()
