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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
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


def request(*messages: dict[str, Any], **body: Any) -> Request:
    return Request("/chat/completions", None, {"model": "m", "messages": list(messages), **body})


def test_each_agent_of_a_checkout_is_validated_as_installed(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOKI_CONFIG_DIR", "/nowhere")
    assert compat.main([f"HEAD={checkout}", "--validate-only"]) == 1
    out = capsys.readouterr().out
    assert "### HEAD" in out and "1 of 2 agents are valid." in out
    one, two = (next(line for line in out.splitlines() if line.startswith(f"| {name} |")) for name in ("one", "two"))
    assert one.startswith("| one | config | yes | not run | 'memory' is ignored. Memory is part of newer")
    assert two.startswith("| two | graph | no | not run | Start node 'nowhere' not found")
    assert compat.main([str(checkout), "--validate-only", "--agent", "one"]) == 0


def test_what_holds_no_agents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds neither assets/agents nor agents"):
        compat.main([str(tmp_path)])


def test_the_tables_take_the_place_of_those_before() -> None:
    document = f"before\n{compat.BEGIN}\nold\n{compat.END}\nafter\n"
    once = compat.with_tables(document, "new")
    assert once == f"before\n{compat.BEGIN}\n\nnew\n{compat.END}\nafter\n"
    assert compat.with_tables(once, "new") == once
    assert compat.BEGIN in compat.DOCUMENT.read_text() and compat.END in compat.DOCUMENT.read_text()
    with pytest.raises(SystemExit, match="lacks the lines"):
        compat.with_tables("nothing", "new")


def test_a_row_tells_how_the_run_ended_and_what_failed_in_it() -> None:
    seen = compat.Seen()
    seen.hear("visit_closed", {"node": "build", "ok": False, "error": "Traceback\nKeyError: 'a|b'"})
    seen.hear("visit_closed", {"node": "end", "ok": True, "error": None})
    seen.hear("tool_ended", {"name": "fs_ls", "ok": False})
    row = compat.table("HEAD", [compat.Checked("x", "graph", (), "completed", tuple(seen.lines()))]).splitlines()[-1]
    assert (
        row
        == r"| x | graph | yes | completed | visit of `build` failed: KeyError: 'a\|b'<br>a call of `fs_ls` failed |"
    )


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


def test_the_scripted_model_calls_a_tool_that_reads_and_then_answers() -> None:
    names = ("execute_command", "fs_cat", "agent__list_available", "user__confirm")
    takes = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": takes}} for name in names]
    hello = {"role": "user", "content": "hello"}
    first = answer(request(hello, tools=tools))
    assert [(call.name, call.arguments) for call in first.calls] == [
        ("fs_cat", {"path": "."}), ("agent__list_available", {})
    ]  # fmt: skip
    assert answer(request(hello, {"role": "assistant", "content": ""}, tools=tools)).text == SAID
    assert answer(request(hello)).text == SAID
