"""What lies beside an agent's folder is beside it again where its bundle is unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.agents.bundle import Bundle, BundleCache, Unpacked, agent_folder, folder_signature, graph_in, pack
from sleipnir.errors import BundleError, GraphError

LIMIT = 1 << 20
GRAPH = "name: one\nstart: a\nnodes:\n  a: {type: end, output: done}\n"
RUN_SH = 'source "$(dirname "$0")/../../.shared/utils.sh"\nprintf \'{"said": "%s"}\' "$(greet)"\n'


class Config:
    """A configuration directory like Loki's: `agents` with `.shared`, and `functions`."""

    def __init__(self, root: Path) -> None:
        self.root, self.agent = root / "config", root / "config" / "agents" / "sisyphus"
        self.cache = BundleCache(root / "unpacked", lambda _: self.bundle.packed)
        self.write("agents/sisyphus/graph.yaml", GRAPH)
        self.write("agents/sisyphus/scripts/run.sh", RUN_SH)
        self.write("agents/.shared/utils.sh", "greet() { echo hello; }\n")
        self.write("agents/.shared/__pycache__/utils.pyc", "cache")
        for name in ("utils/prompt-utils.sh", "tools/ls.sh", "mcp.json", ".env", "bin/ls", "cache/x"):
            self.write(f"functions/{name}", f"# {name}\n")

    def write(self, name: str, text: str) -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    @property
    def bundle(self) -> Bundle:
        return pack(self.agent, limit_bytes=LIMIT)

    def unpacked(self, agent: str = "sisyphus") -> Unpacked:
        return self.cache.get(self.bundle.digest, agent, intact=True)

    def tree(self) -> list[str]:
        root = self.unpacked().folder.parent.parent
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path)


OWN = ["agents/sisyphus/graph.yaml", "agents/sisyphus/scripts/run.sh"]


def test_functions_go_along_with_agents_that_name_them_and_nothing_of_the_machine_does(config: Config) -> None:
    """Finding U5 of the second review."""
    config.write("agents/sisyphus/scripts/run.sh", "source ../../../functions/utils/prompt-utils.sh\n")
    functions = ["functions/tools/ls.sh", "functions/utils/prompt-utils.sh"]
    assert config.tree() == ["agents/.shared/utils.sh", *OWN, *functions]


def test_functions_go_along_when_what_is_shared_names_them(config: Config) -> None:
    config.write("agents/.shared/utils.sh", 'source "$LLM_ROOT_DIR/functions/utils/prompt-utils.sh"\n')
    assert "functions/utils/prompt-utils.sh" in config.tree()


def test_an_agent_without_a_shared_folder_has_the_same_bundle_as_in_earlier_releases(
    config: Config, tmp_path: Path
) -> None:
    alone = Config(tmp_path / "other")
    alone.remove("agents/.shared/utils.sh")
    (alone.root / "agents/.shared/__pycache__/utils.pyc").unlink()
    (alone.root / "agents/.shared/__pycache__").rmdir()
    (alone.root / "agents/.shared").rmdir()
    elsewhere = tmp_path / "anywhere"
    alone.agent.rename(elsewhere)
    alone.agent = elsewhere
    assert alone.tree() == OWN
    assert alone.bundle.digest != config.bundle.digest


def test_a_change_of_what_is_shared_is_a_new_version_of_the_agent(config: Config) -> None:
    before = folder_signature(config.agent), config.bundle.digest
    config.write("agents/.shared/utils.sh", "greet() { echo good evening; }\n")
    assert folder_signature(config.agent) != before[0]
    assert config.bundle.digest != before[1]


def test_what_is_shared_is_as_read_only_and_as_intact_as_the_agent(config: Config) -> None:
    """Finding S5."""
    unpacked = config.unpacked()
    shared = unpacked.folder.parent / ".shared" / "utils.sh"
    assert [shared.stat().st_mode & 0o777, shared.parent.stat().st_mode & 0o777] == [0o444, 0o555]
    shared.chmod(0o644)
    shared.write_text("greet() { echo forged; }\n")
    assert not unpacked.is_intact()
    assert config.unpacked().is_intact()
    assert shared.read_text() == "greet() { echo hello; }\n"


def test_a_graph_is_found_behind_what_is_shared(config: Config) -> None:
    assert graph_in(config.bundle.packed, "sisyphus").name == "one"


def test_agents_with_the_same_files_have_folders_of_their_own_names(config: Config) -> None:
    first, second = config.unpacked("sisyphus"), config.unpacked("atlas")
    assert [each.folder.name for each in (first, second)] == ["sisyphus", "atlas"]
    assert first.is_intact() and second.is_intact()
    assert config.unpacked("sisyphus").folder == first.folder


@pytest.mark.parametrize("name", ["..", ".", "", ".shared", "a\0b", "x" * 300, "a\nb"])
def test_a_name_that_is_no_name_of_a_folder_leads_nowhere_else(config: Config, tmp_path: Path, name: str) -> None:
    """Names of agents come in messages."""
    assert agent_folder(tmp_path, name) == tmp_path / "agents" / "agent"
    assert config.unpacked(name).folder.is_relative_to(tmp_path / "unpacked")


@pytest.mark.parametrize("name", ["../../escaped", "/etc", "sisyphus/other"])
def test_a_name_with_a_slash_is_of_a_graph_in_the_definition_and_of_no_other_folder(
    config: Config, tmp_path: Path, name: str
) -> None:
    before = {*tmp_path.iterdir()}
    with pytest.raises(GraphError, match="has no graph"):
        config.unpacked(name)
    assert {*tmp_path.iterdir()} - before == {tmp_path / "unpacked"}


def test_a_link_that_leaves_what_is_shared_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("private")
    (config.root / "agents/.shared/key.txt").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(BundleError, match=r"key\.txt links to a file outside"):
        pack(config.agent, limit_bytes=LIMIT)
