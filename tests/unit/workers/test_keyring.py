"""The secrets file, and how secrets are kept out of texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir_workers.machine.keyring import Keyring, keyring_of
from tests.unit.workers.visits import host


def secrets(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secrets.env"
    path.write_text(text)
    path.chmod(mode)
    return path


def keyring(folder: Path, env: dict[str, str] | None = None) -> Keyring:
    return keyring_of(host({"LOKI_CONFIG_DIR": str(folder), **(env or {})}))


def test_lines_are_names_and_values(tmp_path: Path) -> None:
    secrets(tmp_path, "# mine\n\nMINE_KEY=a=b c\nexport OTHER='quo ted'\n  THIRD = x \n")
    env = keyring(tmp_path).env
    assert (env["MINE_KEY"], env["OTHER"], env["THIRD"]) == ("a=b c", "quo ted", "x")


def test_the_environment_wins(tmp_path: Path) -> None:
    secrets(tmp_path, "MINE_KEY=file\n")
    assert keyring(tmp_path, {"MINE_KEY": "environment"}).env["MINE_KEY"] == "environment"


def test_without_a_file_there_is_the_environment(tmp_path: Path) -> None:
    assert keyring(tmp_path, {"MINE_KEY": "k"}).env["MINE_KEY"] == "k"


def test_another_file_may_be_named_and_then_must_exist(tmp_path: Path) -> None:
    path = secrets(tmp_path, "MINE_KEY=file\n").rename(tmp_path / "mine")
    assert keyring_of(host(secrets=path)).env["MINE_KEY"] == "file"
    with pytest.raises(ConfigError, match=r"nowhere \(SLEIPNIR_SECRETS\) does not exist"):
        keyring_of(host(secrets=tmp_path / "nowhere"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = secrets(tmp_path, "MINE_KEY=planted\n", mode)
    with pytest.raises(ConfigError, match=rf"is open to others \(mode {mode:04o}\); chmod 600 {path}") as caught:
        keyring(tmp_path)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("line", ["planted", "=planted", "A B=planted", "1A=planted"])
def test_a_line_that_is_none_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    secrets(tmp_path, f"# mine\n{line}\n")
    with pytest.raises(ConfigError, match=r"secrets\.env:2: a line of a secrets file is NAME=VALUE") as caught:
        keyring(tmp_path)
    assert "planted" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    secrets(tmp_path, "").write_bytes(b"A=\xff\n")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        keyring(tmp_path)


def test_secrets_are_taken_out_of_texts(tmp_path: Path) -> None:
    secrets(tmp_path, "ANY_NAME=from-the-file\nSHORT=a\n")
    keys = keyring(tmp_path, {"MINE_API_KEY": "of-the-environment", "PLAIN": "plain-value"})
    text = keys.clean("from-the-file of-the-environment plain-value a given-one", ["given-one"])
    assert text == "[redacted] [redacted] plain-value a [redacted]"
    assert "from-the-file" not in repr(keys)
