"""Where Loki's configuration is, and that of Coyote, its new name (spec/coyote.md 1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.agents import finding
from sleipnir.agents.config_directory import config_dir, config_dirs, env_file, functions_dir, variable
from sleipnir.settings import Settings
from sleipnir_workers.machine.host import Host


@pytest.mark.conformance("CY01", "CY02")
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"COYOTE_CONFIG_DIR": "/c", "LOKI_CONFIG_DIR": "/l"}, "/c"),
        ({"LOKI_CONFIG_DIR": "/l", "XDG_CONFIG_HOME": "/x"}, "/l"),
        ({"COYOTE_CONFIG_DIR": "", "LOKI_CONFIG_DIR": "/l"}, "/l"),
        ({"XDG_CONFIG_HOME": "/x"}, "/x/loki"),
    ],
)
def test_variables_of_coyote_go_before_those_of_loki(env: dict[str, str], expected: str) -> None:
    """Finding U7 of the second review."""
    assert config_dir(env) == Path(expected)


def test_the_directory_is_the_existing_one_of_coyote_or_loki(tmp_path: Path) -> None:
    """Finding U7 of the second review."""
    env = {"HOME": str(tmp_path)}
    base = tmp_path / ".config"
    (base / "loki").mkdir(parents=True)
    assert config_dir(env) == base / "loki"
    (base / "coyote").mkdir()
    assert config_dir(env) == base / "coyote"
    assert config_dirs(env) == [base / "coyote", base / "loki"]


def test_the_functions_may_be_in_another_directory() -> None:
    """Finding U7 of the second review."""
    assert functions_dir({"LOKI_CONFIG_DIR": "/l"}) == Path("/l/functions")
    assert functions_dir({"LOKI_CONFIG_DIR": "/l", "LOKI_FUNCTIONS_DIR": "/f"}) == Path("/f")
    assert functions_dir({"LOKI_FUNCTIONS_DIR": "/f", "COYOTE_FUNCTIONS_DIR": "/c"}) == Path("/c")
    assert env_file({"COYOTE_CONFIG_DIR": "/c"}) == Path("/c/.env")
    assert env_file({"LOKI_ENV_FILE": "/e"}) == Path("/e")
    assert variable({"COYOTE_SHELL": "", "LOKI_SHELL": "fish"}, "SHELL") == "fish"


def test_agents_are_found_in_the_directories_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding U7 of the second review."""
    monkeypatch.delenv("LOKI_CONFIG_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = Settings(home=tmp_path / "home")
    for name, agent in (("loki", "old"), ("coyote", "new"), ("loki", "both"), ("coyote", "both")):
        _write(tmp_path / name / "agents" / agent, f"name: {name}\n")
    assert finding.find("old", settings) == tmp_path / "loki" / "agents" / "old"
    assert finding.find("new", settings) == tmp_path / "coyote" / "agents" / "new"
    assert finding.find("both", settings) == tmp_path / "coyote" / "agents" / "both"
    assert finding.hidden("both", settings) == [tmp_path / "loki" / "agents" / "both"]
    host = Host({"XDG_CONFIG_HOME": str(tmp_path)}, settings)
    assert host.agents_dirs[1:] == [tmp_path / "coyote" / "agents", tmp_path / "loki" / "agents"]


def test_an_installed_agent_goes_before_a_shipped_namesake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding U7 of the second review. In a checkout, the shipped agents are also `./agents`."""
    name, shipped = next(iter(finding.shipped_agents().items()))
    monkeypatch.setenv("COYOTE_CONFIG_DIR", str(tmp_path / "coyote"))
    monkeypatch.chdir(shipped.parents[1])
    settings = Settings(home=tmp_path / "home")
    assert finding.find(name, settings) == shipped
    assert finding.hidden(name, settings) == []
    installed = _write(tmp_path / "coyote" / "agents" / name, f"name: {name}\n")
    assert finding.find(name, settings) == installed
    assert finding.hidden(name, settings) == [shipped]


def test_a_copy_of_the_agent_that_runs_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding U7 of the second review."""
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    settings = Settings(home=tmp_path / "home", agents_dir=tmp_path / "agents")
    for place in (tmp_path / "agents", tmp_path / "loki" / "agents"):
        _write(place / "mine", "name: mine\n")
    assert finding.hidden("mine", settings) == []
    assert finding.hidden(str(tmp_path / "agents" / "mine"), settings) == []
    assert finding.hidden("nobody", settings) == []


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text)
    return folder
