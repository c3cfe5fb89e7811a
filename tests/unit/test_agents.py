"""Agents found by name, and what the environment says of where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sleipnir.agents import finding
from sleipnir.agents.bundle import BundleCache, folder_signature, graph_in, pack
from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.errors import AgentNotFound, BundleError, GraphError
from sleipnir.graph.load import AgentFolder
from sleipnir.runs.views import AgentInfo
from sleipnir.settings import Settings

LIMIT = 2**20


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    (tmp_path / "agents").mkdir()
    return Settings(agents_dir=tmp_path / "agents", home=tmp_path / "home")


def write(folder: Path, text: str = "name: shown\ndescription: Helps.\n", file: str = "config.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    return folder


def test_an_agent_is_called_like_its_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "agents" / "helper")
    assert finding.look_up("helper", settings) == AgentFolder("helper", folder, "config")
    monkeypatch.chdir(folder)
    for path in (folder, str(folder), f"{folder}/", ".", "../helper", Path()):
        assert finding.look_up(path, settings).name == "helper"
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    assert finding.look_up("..", settings).name == "helper"


def test_the_environment_names_the_folder_of_an_agent(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "agents" / "my-helper", "name: other\n")
    there = write(tmp_path / "elsewhere" / "v2")
    monkeypatch.setenv("MY_HELPER_DATA_DIR", str(there))
    assert finding.look_up("my-helper", settings) == AgentFolder("my-helper", there, "config")
    assert finding.folder_or_none("my-helper", settings) == there
    [listed] = [each for each in finding.known_agents(settings) if each.name == "my-helper"]
    assert (listed.kind, listed.folder, listed.description) == ("config", there, "Helps.")
    monkeypatch.setenv("MY_HELPER_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(AgentNotFound):
        finding.look_up("my-helper", settings)


def test_an_agent_that_only_the_environment_names_can_be_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.endswith("_DATA_DIR")]:
        monkeypatch.delenv(name)
    here = write(tmp_path / "agents" / "here")
    others = [write(tmp_path / "srv" / name) for name in ("my_agent", "v2", "here")]
    for name, folder in zip(("MY_AGENT", "PRICE_CHECK", "HERE"), others, strict=True):
        monkeypatch.setenv(f"{name}_DATA_DIR", str(folder))
    for name in ("LLM_AGENT", "POSTGRES", ""):  # of a script that runs in an agent's folder; of something else
        monkeypatch.setenv(f"{name}_DATA_DIR", str(here if name == "LLM_AGENT" else tmp_path))
    assert {"my_agent", "price-check", "here"} <= set(finding.names(settings))
    assert not {"llm-agent", "v2", "postgres"} & set(finding.names(settings))
    found = {each.name: each.folder for each in finding.known_agents(settings)}
    assert [found[name] for name in ("my_agent", "price-check", "here")] == others
    assert [finding.look_up(name, settings).path for name in ("my_agent", "price-check")] == others[:2]


def test_the_environment_names_the_file_in_place_of_config_yaml(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "agents" / "helper", "name: [broken\n")
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    monkeypatch.setenv("HELPER_CONFIG_FILE", str(tmp_path / "mine.yaml"))
    agent = finding.look_up("helper", settings)
    assert agent.file == tmp_path / "mine.yaml"
    assert finding.describe(folder, "helper").kind == "config"
    bundle = pack(folder, limit_bytes=LIMIT, config_file=agent.config_file)
    assert graph_in(bundle.packed, "helper").name == "mine"
    before = folder_signature(folder, agent.config_file)
    (tmp_path / "mine.yaml").write_text("name: mine too\n")
    assert folder_signature(folder, agent.config_file) != before


def test_an_agent_is_read_again_when_a_file_comes_changes_or_goes(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mine = write(tmp_path / "agents" / "helper"), tmp_path / "mine.yaml"
    preparation = AgentPreparation(settings)
    first = preparation.agent("helper")
    assert preparation.agent("helper") is first
    write(folder, "name: other\ndescription: Helps.\n")
    assert preparation.agent("helper").graph.name == "other"
    (folder / "graph.yaml").touch()
    with pytest.raises(GraphError, match="has both"):
        preparation.agent("helper")
    (folder / "graph.yaml").unlink()
    mine.write_text("name: mine\n")
    monkeypatch.setenv("HELPER_CONFIG_FILE", str(mine))
    assert preparation.agent("helper").graph.name == "mine"
    mine.unlink()
    with pytest.raises(AgentNotFound, match="has neither"):
        preparation.agent("helper")


def test_agents_have_a_description_and_conversation_starters(settings: Settings, tmp_path: Path) -> None:
    text = "name: x\ndescription: Helps.\nconversation_starters: [Hello., 'Help {{who}}.']\n"
    info = finding.describe(write(tmp_path / "agents" / "helper", text))
    assert (info.kind, info.description, info.problem) == ("config", "Helps.", None)
    assert info.conversation_starters == ("Hello.", "Help {{who}}.")
    info = finding.describe(write(tmp_path / "agents" / "broken", "model: a:b\n"))
    assert (info.kind, info.problem) == ("broken", "missing field `name`")


def test_a_bundle_of_a_config_agent_is_read_on_every_machine(tmp_path: Path) -> None:
    bundle = pack(write(tmp_path / "helper"), limit_bytes=LIMIT)
    cache = BundleCache(tmp_path / "bundles", lambda digest: bundle.packed)
    unpacked = cache.get(bundle.digest, "helper")
    assert unpacked.graph == graph_in(bundle.packed, "helper")
    assert unpacked.graph.loop is not None


def test_overrides_of_one_run_are_not_those_of_another(tmp_path: Path) -> None:
    bundle = pack(write(tmp_path / "helper"), limit_bytes=LIMIT)
    cache = BundleCache(tmp_path / "bundles", lambda digest: bundle.packed)
    other = cache.get(bundle.digest, "helper", {"model": "a:b"})
    assert other.graph.model == "a:b"
    assert cache.get(bundle.digest, "helper", {"model": "a:b"}).graph is other.graph
    assert cache.get(bundle.digest, "helper", {"model": "c:d"}).graph.model == "c:d"
    assert cache.get(bundle.digest, "helper", {}).graph.model is None


def test_a_bundle_without_a_definition_is_refused(tmp_path: Path) -> None:
    bundle = pack(write(tmp_path / "helper", file="notes.txt"), limit_bytes=LIMIT)
    for look in (
        lambda: graph_in(bundle.packed, "helper"),
        lambda: BundleCache(tmp_path / "bundles", lambda digest: bundle.packed).get(bundle.digest, "helper"),
    ):
        with pytest.raises(BundleError, match="of agent 'helper' has neither a graph"):
            look()


def test_knowledge_is_left_out_of_the_bundle(tmp_path: Path) -> None:
    folder = write(tmp_path / "helper", "name: x\ndocuments: [docs]\n")
    before = pack(folder, limit_bytes=LIMIT)
    (folder / "docs").mkdir()
    (folder / "docs" / "page.md").write_text("page")
    assert pack(folder, limit_bytes=LIMIT) != before
    assert pack(folder, limit_bytes=LIMIT, graph=graph_in(before.packed, "x")) == before


@pytest.mark.conformance("L02", "L03")
def test_a_folder_with_both_files_or_none_is_refused_in_lokis_words(settings: Settings, tmp_path: Path) -> None:
    folder = write(tmp_path / "agents" / "twofold")
    (folder / "graph.yaml").touch()
    with pytest.raises(GraphError) as both:
        finding.look_up("twofold", settings)
    assert str(both.value) == (
        "Agent 'twofold' has both config.yaml and graph.yaml. A graph agent is defined by graph.yaml alone; "
        "a normal agent by config.yaml alone. Remove one of the two files."
    )
    hollow = tmp_path / "agents" / "hollow"
    hollow.mkdir()
    with pytest.raises(AgentNotFound) as none:
        finding.look_up("hollow", settings)
    assert str(none.value) == f"Agent 'hollow' has neither a config.yaml nor a graph.yaml at '{hollow}'"


def test_a_listing_describes_a_graph_py_by_its_docstring_and_does_not_execute_it(
    settings: Settings, tmp_path: Path
) -> None:
    text = '"""Counts\n  words.\n\nMore about it."""\nraise SystemExit("executed")\n'
    folder = write(tmp_path / "agents" / "counter", text, "graph.py")
    write(tmp_path / "agents" / "silent", "n = 1\n", "graph.py")
    infos = {info.name: info for info in finding.known_agents(settings)}
    assert infos["counter"] == finding.describe(folder) == AgentInfo("counter", "graph", folder, "Counts words.")
    assert (infos["silent"].description, infos["silent"].problem) == ("", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"n = 1\ndef broken(:\n", "graph.py:2: Python cannot read this file: "),
        (b"n = 1\x00\n", "graph.py: Python cannot read this file: "),
        (b"\xff = 1\n", "Python cannot read this file: "),
        (b"-" * 100_000 + b"1", "Python cannot read this file: "),
    ],
    ids=["syntax", "null byte", "no text", "too deep"],
)
def test_a_listing_reports_a_graph_py_that_is_no_python(tmp_path: Path, text: bytes, problem: str) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "graph.py").write_bytes(text)
    info = finding.describe(folder)
    assert (info.kind, problem in str(info.problem)) == ("broken", True), info.problem
