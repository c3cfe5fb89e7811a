"""`sleipnir init`: what it makes, what it refuses, and that it makes all of it or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sleipnir.agents import creation
from sleipnir.cli import main
from sleipnir.cli.agents.init import KINDS
from sleipnir.graph.check import validate
from sleipnir.graph.load import load_graph
from sleipnir.graph.model import SLEIPNIR

TEMPLATES = Path(creation.__file__).parent / "templates"


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


Init = Callable[..., Done]


@pytest.fixture
def init(capsys: pytest.CaptureFixture[str]) -> Init:
    def run(*words: str) -> Done:
        code = main(["init", *words])
        return Done(code, *capsys.readouterr())

    return run


def test_the_command_has_the_templates_that_there_are() -> None:
    folders = {path.name for path in TEMPLATES.iterdir() if not path.name.startswith("__")}
    assert set(KINDS) == set(creation.TEMPLATES) == folders


@pytest.mark.parametrize("name", ["bell-ringer", "true", "3.14", "a_b", "My-Agent"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_is_valid_sleipnir_1_without_a_warning(kind: str, name: str, init: Init) -> None:
    init(name, "--template", kind)
    folder = Path("agents", name)
    assert validate(folder) == []
    graph = load_graph((folder / "graph.yaml").read_text(), "graph.yaml", name)
    assert (graph.name, graph.version) == (name, SLEIPNIR)
    assert (folder / "README.md").read_text().startswith(f"# {name}\n")
    texts = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    assert name == "My-Agent" or ("my-agent" not in texts and "my_agent" not in texts)


def test_what_was_made_is_listed_and_the_next_commands_name_it(init: Init) -> None:
    done = init("desk", "--template", "llm")
    listed = [line.strip() for line in done.stdout.splitlines()]
    assert listed[0] == "made agents/desk:"
    made = sorted(str(file.relative_to("agents/desk")) for file in Path("agents/desk").rglob("*") if file.is_file())
    assert sorted(listed[1:]) == made
    assert "tests/test_desk.py" in made
    assert "  sleipnir validate desk\n" in done.stderr
    assert "six.' --replay agents/desk/recording\n" in done.stderr
    assert "  pytest agents/desk\n" in done.stderr
    assert "OPENAI_API_KEY" in done.stderr


def test_no_key_is_named_where_no_model_is_asked(init: Init) -> None:
    assert "KEY" not in init("words").stderr


@pytest.mark.parametrize(
    ("name", "directory", "named"),
    [("words", "else where", "'else where/words'"), ("hello", "agents", "agents/hello"), ("words", ".", "./words")],
)
def test_what_a_name_would_not_find_is_named_by_its_path(name: str, directory: str, named: str, init: Init) -> None:
    done = init(name, "--dir", directory)
    assert f"  sleipnir validate {named}\n" in done.stderr
    assert f"sleipnir run {named} " in Path(directory, name, "README.md").read_text()


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "../up", "a b", "ä", "a\n", "x" * 65, "{{x}}"])
def test_a_name_that_no_agent_can_have_is_refused_in_one_line(name: str, tmp_path: Path, init: Init) -> None:
    refused = init("--", name)
    assert refused.code == 2
    assert "is not a name for an agent" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["folder", "file", "dangling link"])
def test_what_is_there_is_never_touched(there: str, init: Init) -> None:
    Path("agents").mkdir()
    place = Path("agents/words")
    match there:
        case "folder":
            place.mkdir()
        case "file":
            place.write_text("mine")
        case _:
            place.symlink_to("nowhere")
    refused = init("words")
    assert refused.code == 2
    assert refused.stderr == "error: agents/words exists already. Choose another name, or remove it first\n"
    assert [path.name for path in Path("agents").iterdir()] == ["words"]
    assert there != "file" or place.read_text() == "mine"


def test_when_it_cannot_be_written_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: Init) -> None:
    written: list[Path] = []
    write = Path.write_text

    def full(path: Path, text: str, encoding: str) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    refused = init("words", "--dir", "deep/er")
    assert (refused.code, refused.stderr) == (2, "error: cannot make deep/er/words: No space left on device\n")
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_in_the_way_above_it_is_named(init: Init) -> None:
    Path("agents").write_text("a file")
    refused = init("words")
    assert refused.code == 2
    assert "'agents' is a file" in refused.stderr
    assert Path("agents").read_text() == "a file"


def test_caches_of_a_template_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: Init) -> None:
    copy = tmp_path / "package" / "templates" / "script"
    shutil.copytree(TEMPLATES / "script", copy)
    (copy / "scripts" / "__pycache__").mkdir()
    (copy / "scripts" / "__pycache__" / "count_words.cpython-311.pyc").write_bytes(b"\xff")
    monkeypatch.setattr(creation, "__file__", str(tmp_path / "package" / "creation.py"))
    init("words")
    assert not list(Path("agents").rglob("*.pyc"))
