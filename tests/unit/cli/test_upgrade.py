"""`sleipnir upgrade`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.cli import main

GRAPH = "name: g  # mine\nstart: a\nnodes:\n  a: {type: script, script: s.sh, next: e}\n  e: {type: end}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "s.sh").write_text("true\n")
    (folder / "graph.yaml").write_text(GRAPH)
    return folder / "graph.yaml"


def upgrade(file: Path, *more: str) -> int:
    return main(["--home", str(file.parent.parent / "home"), "upgrade", str(file.parent), *more])


def test_the_file_is_rewritten_and_the_changes_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upgrade(file) == 0
    assert file.read_text() == GRAPH.replace("# mine\n", "# mine\nversion: sleipnir/1\n").replace(
        "{type: script", "{on_error: continue, type: script"
    )
    assert f"{file}:2: version: sleipnir/1" in capsys.readouterr().err
    assert [each.name for each in file.parent.iterdir() if each.name.startswith(".")] == []
    before = file.read_text()
    assert upgrade(file) == 0
    assert "already" in capsys.readouterr().err
    assert file.read_text() == before


def test_a_dry_run_prints_a_diff_and_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upgrade(file, "--dry-run") == 0
    assert "+version: sleipnir/1" in capsys.readouterr().out
    assert file.read_text() == GRAPH


def test_changes_that_need_a_person_leave_the_file_unchanged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GRAPH.replace("{type: end}", "{type: end, checkpoint: [\n    1]}")
    file.write_text(text)
    assert upgrade(file) == 1
    assert "graph.yaml:5: unknown key 'checkpoint'; remove it" in capsys.readouterr().err
    assert file.read_text() == text


def test_a_config_yaml_has_nothing_to_upgrade(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.unlink()
    (file.parent / "config.yaml").write_text("name: x\ninstructions: y\n")
    assert upgrade(file) == 2
    assert "nothing to upgrade" in capsys.readouterr().err


def test_a_link_to_the_file_stays_a_link(file: Path) -> None:
    place = file.parent.parent / "kept.yaml"
    file.rename(place)
    file.symlink_to(place)
    assert upgrade(file) == 0
    assert file.is_symlink()
    assert "sleipnir/1" in place.read_text()


def test_an_agent_that_ships_is_not_changed_by_its_name(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sleipnir.agents.finding._shipped_places", lambda: (file.parent.parent, file.parent.parent / "none")
    )
    monkeypatch.chdir(file.parent)
    home = ("--home", str(file.parent / "home"))
    assert main([*home, "upgrade", "mine"]) == 2
    assert "sleipnir agents install mine" in capsys.readouterr().err
    assert file.read_text() == GRAPH
    assert main([*home, "upgrade", "mine", "--dry-run"]) == 0
