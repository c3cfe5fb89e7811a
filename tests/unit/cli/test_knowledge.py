"""`sleipnir kb`, as far as it needs no builder; tests/system/test_kb.py has the rest."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from sleipnir.cli import main
from sleipnir.cli.app import app
from sleipnir.cli.knowledge.bases import print_base, print_forecast, print_hits
from sleipnir.cli.terminal import terminal

GRAPH = """\
name: helper
start: look
nodes:
  look: {type: rag, documents: [docs], next: words}
  words: {type: rag, documents: [docs], embedding_model: none, next: done}
  done: {type: end}
"""
CONFIG = "name: reader\ninstructions: i\ndocuments: [docs]\n"


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The agents `helper` (two rag nodes), `reader` (documents) and `plain` (neither)."""
    for name, file, text in (
        ("helper", "graph.yaml", GRAPH),
        ("reader", "config.yaml", CONFIG),
        ("plain", "config.yaml", "name: plain\n"),
    ):
        folder = tmp_path / "agents" / name
        folder.mkdir(parents=True)
        (folder / file).write_text(text)
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path / "agents"))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "agents"


def test_bases_are_listed_whether_built_or_not(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (agents / "helper" / "words.yaml").write_text("12345")
    assert main(["kb", "ls", "--json"]) == 0
    rows = {(row["agent"], row["node"]): row for row in json.loads(capsys.readouterr().out)}
    mine = {key: row for key, row in rows.items() if key[0] in ("helper", "reader", "plain")}
    assert {key: (row["built"], row["file_bytes"]) for key, row in mine.items()} == {
        ("helper", "look"): (False, None),
        ("helper", "words"): (True, 5),
        ("reader", "rag"): (False, None),
    }
    assert rows["reader", "rag"]["file"] == str(agents / "reader" / "rag.yaml")

    assert main(["kb", "ls", "helper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["AGENT", "NODE", "SIZE"],
        ["helper", "look", "-"],
        ["helper", "words", "5"],
    ]
    assert "not yet" in lines[1]
    assert main(["kb", "ls", "plain"]) == 0
    assert capsys.readouterr().err == "agent 'plain' has no rag node and no documents\n"


def test_a_base_is_removed_only_after_a_yes(
    agents: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents / "helper" / "look.yaml"
    base.write_text("built")
    assert main(["kb", "rm", "helper", "look"]) == 2  # nobody is there
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr(terminal, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["kb", "rm", "helper", "look"]) == 1
    assert capsys.readouterr().err == f"Remove {base}? [y/N] "
    assert base.exists()

    assert main(["kb", "rm", "helper", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"agent": "helper", "node": "look", "removed": str(base)}]
    assert not base.exists()
    assert main(["kb", "rm", "helper", "--yes"]) == 2
    assert capsys.readouterr().err == "error: agent 'helper' has no base to remove\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "nobody"], "no agent 'nobody'"),
        (["build", "plain"], "agent 'plain' has no rag node and no documents"),
        (["build", "helper", "lok"], "agent 'helper' has no rag node 'lok'; it has: look, words"),
        (["build", "helper", "--chunk-size", "0"], "0 is not in the range x>=1"),
        (["show", "plain"], "agent 'plain' has no rag node"),
        (["search", "helper", "what is it"], "agent 'helper' has several bases, name one of them: look, words"),
        (["search", "helper", "what", "is"], "agent 'helper' has no rag node 'what'"),
        (["search", "helper", "look", "what", "is"], "quote the query"),
        (["search", "helper", "look", "what"], "'look' is not built; `sleipnir kb build helper look` builds it"),
        (["search", "helper"], "Missing argument '[NODE] QUERY'"),
    ],
)
def test_mistakes_are_reported_before_any_process_starts(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kb", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.conformance("K08")
def test_looking_builds_nothing(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kb", "show", "helper"]) == 0
    assert "look: not built; `sleipnir kb build helper look` builds it" in capsys.readouterr().err
    for command in (["agents", "show", "helper"], ["validate", "helper"], ["draw", "helper"], ["kb", "ls"]):
        assert main(command) == 0
    assert [path.name for path in (agents / "helper").iterdir()] == ["graph.yaml"]


def test_the_nodes_of_an_agent_are_completed() -> None:
    complete = ShellComplete(app, {}, "sleipnir", "_X")
    for command in ("build", "show", "search"):
        found = complete.get_completions(["kb", command, "helper"], "")
        assert [item.value for item in found] == ["look", "words"]
    assert [item.value for item in complete.get_completions(["kb", "rm", "reader"], "")] == ["rag"]
    assert complete.get_completions(["kb", "search", "helper", "look"], "") == []
    assert "helper" in [item.value for item in complete.get_completions(["kb", "build"], "h")]


SPENT = {"embedded": 2, "reused": 1, "tokens": 30, "cost_usd": None, "took_s": 1.5}
BASE = {
    "agent": "helper", "node": "look", "file": "/a/look.yaml", "file_bytes": 2048, "digest": "ab12",
    "embedding_model": "a:b", "dimensions": 3, "chunks": 3, "chunk_size": 1000, "chunk_overlap": 50,
    "sources": {"/a/x.md": 2, "/a/y.md": 1}, "top_k": 5, "reranker_model": None, "index_bytes": 4096,
    "spent": SPENT, "notices": ["docs/z.md does not exist"],
}  # fmt: skip


def test_a_base_is_printed_with_what_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    print_base(BASE, Path("/a"))
    assert capsys.readouterr().out.splitlines() == [
        "base      helper/look",
        "file      /a/look.yaml (2.0 kB)",
        "digest    ab12",
        "searched  by keywords and a:b (3 dimensions)",
        "chunks    3 of 1000 bytes, overlap 50",
        "sources   2",
        "               2  x.md",
        "               1  y.md",
        "top_k     5",
        "index     4.1 kB",
        "vectors   2 chunks embedded, 1 known, 30 tokens, cost unknown, in 1.50s",
        "notices   1 notice",
        "          docs/z.md does not exist",
    ]


def test_a_forecast_reports_that_nothing_was_built(capsys: pytest.CaptureFixture[str]) -> None:
    forecast = {
        "agent": "helper", "node": "look", "embedding_model": "a:b", "sources": {"x.md": 9}, "chunks": 9,
        "to_embed": 4, "tokens": 1000, "cost_usd": 0.5, "notices": [],
    }  # fmt: skip
    print_forecast(forecast, Path("/b"))
    print_forecast({**forecast, "embedding_model": None}, Path("/b"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "base      helper/look, not built by --dry-run"
    assert "to embed  4 chunks, about 1,000 tokens, $0.5000" in lines
    assert lines[-1] == "searched  by keywords only, no embedding model"


def test_hits_are_printed_short_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    hits = [
        {"source": "/a/docs/x.md", "text": "one\n\ntwo\x1b[2J", "score": 0.25, "lines": [3, 5]},
        {"source": "https://h/p", "text": "\n".join("abcdefgh"), "score": 0.1, "lines": None},
    ]
    print_hits(hits, Path("/a"), full=False)
    assert capsys.readouterr().out.splitlines() == [
        "1. docs/x.md:3-5  0.2500", "   one", "   two\\x1b[2J",
        "2. https://h/p  0.1000", "   a", "   b", "   c", "   d", "   e", "   …",
    ]  # fmt: skip
    print_hits(hits[1:], Path("/a"), full=True)
    assert capsys.readouterr().out.splitlines()[1:] == [f"   {letter}" for letter in "abcdefgh"]
