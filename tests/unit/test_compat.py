"""The compatibility run (ops/compat) as far as it needs no servers: what it installs, checks, prints, and what its
scripted model says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.compat import run as compat
from ops.compat.scripted import SAID, answer, least_of
from sleipnir.graph import schema as json_schema
from sleipnir.testing import Request

CONFIG = "name: one\nmemory: true\nglobal_tools: [fs_ls.sh]\n"
BROKEN = "name: two\nstart: nowhere\nnodes:\n  a: {type: end}\n"
TOOL = "# @describe List files\nmain() { :; }\n"


def write_checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    files = {
        "agents/one/config.yaml": CONFIG, "agents/two/graph.yaml": BROKEN, "agents/.shared/utils.sh": "",
        "agents/notes/README.md": "", "functions/tools/fs_ls.sh": TOOL,
    }  # fmt: skip
    for name, text in files.items():
        file = root / "assets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return write_checkout(tmp_path)


def request(*messages: dict[str, Any], **body: Any) -> Request:
    return Request("/chat/completions", None, {"model": "m", "messages": list(messages), **body})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{root}/nowhere"], "nowhere has no assets/agents and no agents folder"),
        (["{root}", "--agent", "three"], "has no agent three; there are one, two"),
        (["{root}", "--write", "--validate-only"], "--write replaces whole tables"),
        (["a={root}", "a={root}"], "two checkouts have one name"),
        ([], "the following arguments are required"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_runs(
    checkout: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        compat.main([each.format(root=checkout) for each in arguments])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_agents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agents" / "notes").mkdir(parents=True)
    with pytest.raises(compat.Unusable, match="holds no folder with a graph"):
        compat.chosen_of(compat.source_of(tmp_path), None)


@pytest.mark.parametrize(
    ("cargo", "program"),
    [('[package]\nname = "loki-ai"\n', "loki"), ('[package]\nname = "coyote-ai"\n', "coyote"), ("[", "coyote")],
)
def test_a_checkout_is_installed_where_its_release_looks(checkout: Path, cargo: str, program: str) -> None:
    (checkout / "Cargo.toml").write_text(cargo)
    home = checkout.parent
    assert compat.install(checkout, home) == home / ".config" / program
    assert (home / ".config" / program / "agents" / ".shared" / "utils.sh").is_file()


def test_no_path_of_the_machine_is_written_down() -> None:
    found = compat.Checked("x", "graph", ("/h/.config/coyote/a is bad",), differs=("/h/projects/x is bad",))
    cleaned = found.cleaned({"/h": "HOME", "/h/.config/coyote": "CONFIG"})
    assert (cleaned.errors, cleaned.differs) == (("CONFIG/a is bad",), ("HOME/projects/x is bad",))


def test_the_tables_take_the_place_of_those_before() -> None:
    document = f"before\n{compat.BEGIN}\nold\n{compat.END}\nafter\n"
    once = compat.with_tables(document, "new")
    assert once == f"before\n{compat.BEGIN}\n\nnew\n{compat.END}\nafter\n"
    assert compat.with_tables(once, "new") == once
    assert compat.BEGIN in compat.DOCUMENT.read_text() and compat.END in compat.DOCUMENT.read_text()
    with pytest.raises(compat.Unusable, match="lacks the lines"):
        compat.with_tables("nothing", "new")


def test_a_row_has_the_end_of_the_run_and_its_failures() -> None:
    seen = compat.Seen()
    seen.hear("visit_closed", {"node": "build", "ok": False, "error": "Traceback\nKeyError: 'a|b'"})
    seen.hear("visit_closed", {"node": "end", "ok": True, "error": None})
    seen.hear("tool_ended", {"name": "fs_ls", "ok": False})
    found = compat.Checked("x", "graph", (), "completed", "2 of 3 nodes", tuple(seen.lines()))
    told = r"visit of `build` failed: KeyError: 'a\|b'<br>a call of `fs_ls` failed"
    row = compat.Table("HEAD", "~/.config/coyote", [found]).text().splitlines()[-1]
    assert (row, seen.nodes) == (f"| x | graph | yes | completed, 2 of 3 nodes | {told} |", {"build", "end"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 2}}, "required": ["n"]},
        {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"type": ["boolean", "null"]},
        {"type": "string", "minLength": 3},
    ],
)
def test_the_scripted_model_gives_what_a_schema_permits(schema: dict[str, Any]) -> None:
    asked = request({"role": "user", "content": f"Do it.\n\nSchema:\n{json.dumps(schema)}\n\nNow."})
    assert json_schema.violation(schema, json.loads(answer(asked).text or "")) is None
    assert least_of(schema) == json.loads(answer(asked).text or "")


def test_the_scripted_model_calls_what_it_can_loads_a_skill_and_then_answers() -> None:
    names = ("send_mail", "fs_cat", "skill__list", "user__confirm")
    takes = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": takes}} for name in names]
    hello = {"role": "user", "content": "hello"}
    first = answer(request(hello, tools=tools))
    assert [(call.name, call.arguments) for call in first.calls] == [
        ("fs_cat", {"path": "README.md"}), ("skill__list", {})
    ]  # fmt: skip
    function = {"name": "skill__list", "arguments": "{}"}
    asked = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    listed = {"role": "tool", "tool_call_id": "c", "content": json.dumps({"skills": [{"name": "git"}]})}
    [second] = answer(request(hello, asked, listed, tools=tools)).calls
    assert (second.name, second.arguments) == ("skill__load", {"name": "git"})
    assert answer(request(hello, asked, {**listed, "content": '{"skills": []}'}, tools=tools)).text == SAID
    assert answer(request(hello)).text == SAID
