"""The files of the keys from which secrets of webhooks are derived: who may read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.webhooks.signatures import SigningKeys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "webhook.key"
    made.write_text("ab" * 32 + "\n")
    return made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_of_ours_that_others_can_read_or_change_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        SigningKeys.of_file(file)
    file.chmod(0o600)
    assert len(SigningKeys.of_file(file).by_id) == 1


@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o400, True), (0o460, False), (0o444, False)])
def test_a_key_that_root_has_mounted_may_be_read_by_the_group_of_the_process(
    file: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_read: bool
) -> None:
    """Kubernetes mounts secrets so for a pod with an fsGroup, and systemd credentials."""
    file.chmod(mode)
    found = os.stat_result((file.stat().st_mode, *file.stat()[1:4], 0, 10001, *file.stat()[6:10]))
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(Path, "stat", lambda self, **_: found)
    if is_read:
        assert len(SigningKeys.of_file(file).by_id) == 1
    else:
        with pytest.raises(ConfigError, match="chmod 600"):
            SigningKeys.of_file(file)
