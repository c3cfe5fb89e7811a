"""`agents install`: shipped agents become the user's own, and an edit is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.agents import finding
from sleipnir.agents.bundle import pack
from sleipnir.agents.installation import MANIFEST
from sleipnir.cli import main

GRAPH = "name: letters\nstart: done\nnodes:\n  done: {type: end, output: version one}\n"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of agents that ship, with two in it, and a home of its own."""
    folder = tmp_path / "shipped"
    for name in ("letters", "bells"):
        (folder / name / "scripts" / "__pycache__").mkdir(parents=True)
        (folder / name / "graph.yaml").write_text(GRAPH.replace("letters", name))
        (folder / name / "scripts" / "read.py").write_text("print('{}')\n")
        (folder / name / "scripts" / "ring.sh").write_text("#!/bin/sh\necho '{}'\n")
        (folder / name / "scripts" / "__pycache__" / "read.pyc").write_text("cache")
    (folder / "README.md").write_text("about them")
    monkeypatch.setattr(finding, "_shipped_places", lambda: (tmp_path / "none", folder))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    return folder


@pytest.fixture
def own(tmp_path: Path, shipped: Path) -> Path:
    return tmp_path / "home" / "agents"


def install(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What `agents install` prints on stdout, or on stderr when it fails."""
    assert main(["agents", "install", *words]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.mark.conformance("L09")
def test_edits_survive_and_an_explicit_reset_restores(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(capsys)
    (own / "letters" / "graph.yaml").write_text(GRAPH + "# mine\n")
    assert install(capsys) == "unchanged  bells\nkept       letters: changed by you: graph.yaml\n"
    (shipped / "letters" / "graph.yaml").write_text(GRAPH.replace("one", "two"))
    (shipped / "letters" / "scripts" / "read.py").write_text("print('{\"version\": 2}')\n")
    said = install(capsys, "letters")
    assert said == "kept       letters: changed by you: graph.yaml; a newer version ships\n"
    assert (own / "letters" / "graph.yaml").read_text().endswith("# mine\n")
    assert "version" not in (own / "letters" / "scripts" / "read.py").read_text(), "half of a new agent is no agent"
    assert install(capsys, "--reset", "letters", "--yes").endswith("given up: graph.yaml\n")
    assert "version two" in (own / "letters" / "graph.yaml").read_text()
    assert "version" in (own / "letters" / "scripts" / "read.py").read_text()
    assert install(capsys, "letters") == "unchanged  letters\n"


def test_all_shipped_agents_are_installed_completely_and_without_caches(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = install(capsys)
    assert said == f"installed  bells: {own}/bells\ninstalled  letters: {own}/letters\n"
    assert files(own / "bells") == [MANIFEST, "graph.yaml", "scripts/read.py", "scripts/ring.sh"]
    assert sorted(path.name for path in own.iterdir()) == ["bells", "letters"], "nothing else is left behind"
    assert (own / "bells" / "scripts" / "ring.sh").stat().st_mode & 0o777 == 0o755
    assert (own / "bells" / "graph.yaml").stat().st_mode & 0o777 == 0o644


def test_what_is_installed_is_what_the_name_means_and_its_bundle_is_that_of_the_shipped_one(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shipped / "bells" / "scripts" / "ring.sh").chmod(0o755)
    install(capsys, "bells")
    assert main(["agents", "--json"]) == 0
    folders = {agent["name"]: agent["folder"] for agent in json.loads(capsys.readouterr().out)}
    assert folders["bells"] == str(own / "bells")
    assert folders["letters"] == str(shipped / "letters")
    limit = 1_000_000
    assert pack(own / "bells", limit_bytes=limit).digest == pack(shipped / "bells", limit_bytes=limit).digest


def test_an_agent_that_was_not_edited_follows_what_ships(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(capsys, "letters")
    (own / "letters" / "notes.txt").write_text("a file of my own is no edit")
    (shipped / "letters" / "graph.yaml").write_text(GRAPH.replace("one", "two"))
    (shipped / "letters" / "scripts" / "read.py").rename(shipped / "letters" / "scripts" / "look.py")
    assert install(capsys, "letters") == "updated    letters: it was unchanged, and a newer version ships\n"
    assert files(own / "letters") == [MANIFEST, "graph.yaml", "notes.txt", "scripts/look.py", "scripts/ring.sh"]
    assert "version two" in (own / "letters" / "graph.yaml").read_text()


def test_a_removed_file_is_an_edit_and_so_is_a_changed_one_that_no_longer_ships(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(capsys)
    (own / "bells" / "scripts" / "ring.sh").unlink()
    (own / "letters" / "scripts" / "ring.sh").write_text("#!/bin/sh\n")
    (shipped / "letters" / "scripts" / "ring.sh").unlink()
    assert install(capsys).splitlines() == [
        "kept       bells: changed by you: scripts/ring.sh",
        "kept       letters: changed by you: scripts/ring.sh; a newer version ships",
    ]
    assert not (own / "bells" / "scripts" / "ring.sh").exists()


def test_an_installation_that_stopped_half_way_is_finished_by_the_next(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(capsys, "letters")
    for file in ("graph.yaml", "scripts/read.py"):
        (shipped / "letters" / file).write_text((shipped / "letters" / file).read_text() + "# new\n")
    (own / "letters" / "graph.yaml").write_text((shipped / "letters" / "graph.yaml").read_text())  # and then it died
    assert install(capsys, "letters").startswith("updated ")
    assert (own / "letters" / "scripts" / "read.py").read_text().endswith("# new\n")


def test_a_folder_of_ones_own_is_kept_and_an_equal_one_is_taken_for_installed(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "letters").mkdir(parents=True)
    (own / "letters" / "graph.yaml").write_text("name: mine\n")
    assert install(capsys, "letters") == "kept       letters: changed by you: graph.yaml\n"
    (own / "letters" / "graph.yaml").write_text(GRAPH)
    assert install(capsys, "letters").startswith("updated ")
    (own / "letters" / MANIFEST).write_text("not json")
    assert install(capsys, "letters") == "unchanged  letters\n"


def test_a_reset_asks_for_confirmation_only_if_edits_would_be_lost(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(capsys, "--reset", "letters") == f"reset      letters: {own}/letters\n"
    assert install(capsys, "--reset", "letters") == "unchanged  letters\n"
    (own / "letters" / "graph.yaml").write_text("mine")
    said = install(capsys, "--reset", "letters", code=2)
    assert "error: --reset letters would give up changes in graph.yaml; pass --yes to do so" in said
    assert (own / "letters" / "graph.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["leters"], "no agent 'leters' ships with Sleipnir. Did you mean 'letters'?"),
        (["--reset", "xyz"], "no agent 'xyz' ships with Sleipnir. These ship: bells, letters."),
        (["letters", "../bells"], "no agent '../bells' ships with Sleipnir."),
        (["bells", "--reset", "letters"], "--reset restores one agent"),
        (["--yes"], "--yes goes with --reset"),
    ],
)
def test_wrong_usage_installs_nothing(
    words: list[str], message: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in install(capsys, *words, code=2)
    assert not own.exists()


def test_what_is_in_the_way_is_named_and_left(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.mkdir(parents=True)
    (own / "letters").write_text("a file")
    assert "is in the way of the agent 'letters'" in install(capsys, "letters", code=2)
    assert (own / "letters").read_text() == "a file"
    (own / "bells").symlink_to(own / "nowhere")
    assert "is in the way of the agent 'bells'" in install(capsys, "bells", code=2)


def test_a_home_that_cannot_be_written_is_an_error_with_its_path(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.parent.mkdir()
    own.write_text("no directory")
    assert f"cannot install the agent 'bells' to '{own}/bells'" in install(capsys, code=2)


def test_a_foreign_manifest_leads_to_no_file_outside_the_folder(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(capsys, "bells")
    outside = tmp_path / "precious"
    outside.write_text("x")
    listed = {"../../../precious": "0", str(outside): "0"}
    (own / "bells" / MANIFEST).write_text(json.dumps({"version": 1, "files": listed}))
    install(capsys, "--reset", "bells", "--yes")
    assert outside.exists()


def test_what_was_done_is_there_as_json(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(capsys, "bells")
    (own / "bells" / "graph.yaml").write_text("mine")
    assert json.loads(install(capsys, "--json")) == [
        {
            "name": "bells",
            "action": "kept",
            "folder": str(own / "bells"),
            "edited": ["graph.yaml"],
            "outdated": False,
            "shared_kept": [],
        },
        {
            "name": "letters",
            "action": "installed",
            "folder": str(own / "letters"),
            "edited": [],
            "outdated": False,
            "shared_kept": [],
        },
    ]


def test_what_agents_share_is_installed_with_them_and_an_edit_of_it_is_kept(
    shipped: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finding U5 of the second review."""
    (shipped / ".shared").mkdir()
    (shipped / ".shared" / "project.py").write_text("ONE = 1\n")
    (own / ".shared").mkdir(parents=True)
    (own / ".shared" / "utils.sh").write_text("mine")
    install(capsys, "bells")
    assert files(own / ".shared") == [MANIFEST, "project.py", "utils.sh"]
    assert pack(own / "bells", limit_bytes=2**20).digest != pack(shipped / "bells", limit_bytes=2**20).digest
    (own / ".shared" / "project.py").write_text("ONE = 2\n")
    assert main(["agents", "install", "letters"]) == 0
    assert "in .shared: project.py" in capsys.readouterr().err
    assert (own / ".shared" / "project.py").read_text() == "ONE = 2\n"
    install(capsys, "--reset", "letters", "--yes")
    assert (own / ".shared" / "project.py").read_text() == "ONE = 1\n"
    assert (own / ".shared" / "utils.sh").read_text() == "mine"
