"""Which tools an agent has from files (spec 2.3, 4.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.agents.bundle import pack, unpack
from sleipnir.errors import ToolFileError
from sleipnir.graph.check import validate
from sleipnir.graph.model import EndNode, Graph
from sleipnir.tools.folder import Tools, custom_tools, global_complaint, global_file, tools_of

SH = "# @cmd Of bash\n# @option --city!\nof-bash() { :; }\n"
PY = 'def ofPython(a):\n    """Of Python.\n\n    More."""\n'
TS = "/** Of TypeScript. */\nexport function ofTypeScript() {}\n"


def tools(tmp_path: Path, *names: str, **files: str) -> Tools:
    """The tools of an agent with these global tools and these files, `tools_dot_py` for `tools.py`."""
    folder, config = in_folder(tmp_path, "agent", files), tmp_path / "loki"
    return tools_of(folder, config / "functions", graph(global_tools=list(names)))


def graph(**fields: Any) -> Graph:
    return Graph(name="a", start="end", nodes={"end": EndNode(id="end", output="x")}, **fields)


def in_folder(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file.replace("_dot_", ".")).write_text(text)
    return folder


def functions(tmp_path: Path, **files: str) -> None:
    in_folder(tmp_path, "loki/functions/tools", files)


@pytest.mark.conformance("X01", "X07", "X12", "X16")
def test_only_the_first_of_the_tools_files_counts(tmp_path: Path) -> None:
    assert tools(tmp_path, helper_dot_sh=SH, tools_dot_ts=TS).names == ["oftypescript"]
    assert tools(tmp_path, tools_dot_py=PY).names == ["ofpython"]
    assert tools(tmp_path, tools_dot_sh=SH).names == ["of_bash"]


def test_an_agent_without_a_tools_file_has_none(tmp_path: Path) -> None:
    assert tools(tmp_path, other_dot_py=PY) == Tools()


@pytest.mark.conformance("X15")
@pytest.mark.parametrize("name", ["web_search", "web_search.sh"])
def test_a_global_tool_is_named_with_or_without_its_extension(tmp_path: Path, name: str) -> None:
    functions(tmp_path, web_search_dot_sh="# @describe Search\n# @option --query!\nmain() { :; }\n", other_dot_py=PY)
    found = tools(tmp_path, name, tools_dot_py=PY)
    assert found.names == ["web_search", "ofpython"]
    assert [each.agent for each in found.declarations] == [False, True]
    for spelling in ("web_search", "web_search.sh", "web_search.py"):
        assert found.find(spelling) == found.declarations[0]


def test_a_function_is_found_by_its_declared_name_and_by_its_own(tmp_path: Path) -> None:
    found = tools(tmp_path, tools_dot_py=PY)
    assert found.find("ofpython") == found.find("ofPython") == found.declarations[0]
    assert found.find("ofpythons") is None
    assert tools(tmp_path, tools_dot_sh=SH).find("of-bash") is not None


@pytest.mark.conformance("X13")
def test_the_function_that_writes_instructions_is_not_among_the_tools(tmp_path: Path) -> None:
    found = tools(tmp_path, tools_dot_py=PY + 'def _instructions():\n    """x"""\ndef _helper(): ...\n')
    assert found.names == ["ofpython"]
    assert found.instructions is not None and found.instructions.command == "_instructions"
    assert found.find("_instructions") is None and found.find("_helper") is None


def test_a_node_has_the_tools_that_it_names(tmp_path: Path) -> None:
    found = tools(tmp_path, tools_dot_py=PY + 'def b():\n    """x"""\ndef c():\n    """x"""\n')
    assert found.only(["c.py", "mcp:x", "user__ask", "ofPython"]).names == ["ofpython", "c"]
    assert found.only([]).names == []


def test_an_agent_of_a_config_yaml_has_all_tools_of_its_own_file_and_the_global_ones_that_it_names(
    tmp_path: Path,
) -> None:
    files = {"tools_dot_py": PY + 'def b():\n    """x"""\n'}
    assert tools(tmp_path, **files).only(["agent:*", "user__ask"]).names == ["ofpython", "b"]


def test_the_listing_has_a_numbered_line_per_tool(tmp_path: Path) -> None:
    assert tools(tmp_path, tools_dot_py=PY + 'def b():\n    """x"""\n').listing() == "1. ofpython: Of Python.\n2. b: x"


def test_in_a_bundle_the_tools_are_those_of_the_bundle(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, "agent", {"graph_dot_yaml": "name: a\n", "tools_dot_py": PY})
    unpack(pack(folder, limit_bytes=2**20).packed, tmp_path / "tree", "agent")
    bundle = tmp_path / "tree" / "agents" / "agent"
    (folder / "tools.py").write_text(PY.replace("ofPython", "changed"))
    (found,) = tools_of(bundle, tmp_path, graph()).declarations
    assert (found.name, found.file) == ("ofpython", bundle / "tools.py")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert tools(tmp_path, tools_dot_py=PY).names == ["ofpython"]
    assert tools(tmp_path, tools_dot_py=PY.replace("ofPython", "now")).names == ["now"]


@pytest.mark.parametrize(
    ("names", "files", "message"),
    [
        (["missing.sh"], {}, "Tool definition file not found: {loki}/functions/tools/missing.sh"),
        (["missing"], {}, "Tool definition file not found: {loki}/functions/tools/missing.sh"),
        (["../secret.sh"], {}, "'../secret.sh' is not the name of a global tool"),
        (["a/b.py"], {}, "'a/b.py' is not the name of a global tool"),
        ([".sh"], {}, "'.sh' is not the name of a global tool"),
        (["old.js"], {}, "Unsupported tool file extension: .js"),
        ([], {"tools_dot_js": ""}, "Unsupported tool file extension: .js"),
        ([], {"tools_dot_sh": "# @cmd x\nuser__ask() { :; }"}, "`user__ask` is named like a built-in tool"),
        ([], {"tools_dot_py": 'def ab():\n    "x"\ndef aB():\n    "x"'}, "tool `ab` is already declared at"),
        (["ab"], {"tools_dot_py": 'def ab():\n    "x"'}, "tool `ab` is already declared at"),
        ([], {"tools_dot_py": 'def ä():\n    "x"'}, "a tool needs a name with a letter or a digit"),
        ([], {"tools_dot_py": "def ab(): ..."}, "Missing or empty description on function: ab"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_file(
    tmp_path: Path, names: list[str], files: dict[str, str], message: str
) -> None:
    functions(tmp_path, old_dot_js="", ab_dot_py='def run():\n    "x"')
    with pytest.raises(ToolFileError) as caught:
        tools(tmp_path, *names, **files)
    assert caught.value.message.startswith(message.format(loki=tmp_path / "loki"))
    assert str(caught.value).startswith(str(caught.value.path))


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (in_folder(tmp_path, "agent", {}) / "tools.py").write_bytes(b'def x():\n  "\xff"')
    with pytest.raises(ToolFileError, match="byte 12 is not UTF-8"):
        tools(tmp_path)


LLM = "name: a\nstart: n\nnodes:\n  n: {type: llm, prompt: p, tools: [ofPython, ofpython, _hidden], next: e}\n"
LLM += "  e: {type: end, output: x}\n"


def test_a_graph_is_checked_against_what_its_tools_file_really_declares(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, "agent", {"graph_dot_yaml": LLM, "tools_dot_py": PY + "def _hidden(): ..."})
    (problem,) = validate(folder, read_tools=custom_tools)
    assert problem.message == "llm node references unknown tool '_hidden'"


def test_the_check_of_a_graph_reports_why_the_tools_are_not_known(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, "agent", {"graph_dot_yaml": LLM, "tools_dot_py": "def ofPython(): ..."})
    found = validate(folder, read_tools=custom_tools)
    reason = f"{folder}/tools.py:1: Missing or empty description on function: ofPython"
    assert {problem.hint for problem in found} == {f"The tools of the folder are not known: {reason}"}


def test_a_global_tool_that_is_not_here_is_a_warning_with_its_place(tmp_path: Path) -> None:
    functions(tmp_path, find_dot_py='def run():\n    "x"', broken_dot_py="def run(): ...")
    text = LLM.replace("start: n\n", "start: n\nglobal_tools: [find.py, missing.sh, broken]\n")
    folder = in_folder(tmp_path, "agent", {"graph_dot_yaml": text.replace(", _hidden", ""), "tools_dot_py": PY})
    loki = tmp_path / "loki"
    found = validate(
        folder, read_tools=custom_tools, global_tools=lambda name: global_complaint(name, loki / "functions")
    )
    assert [(problem.level, problem.line, problem.column, problem.message) for problem in found] == [
        ("warning", 3, 25, f"Tool definition file not found: {loki}/functions/tools/missing.sh"),
        (
            "warning",
            3,
            37,
            f"{loki}/functions/tools/broken.py:1: Missing or empty description on function: run",
        ),
    ]


def test_a_global_tool_that_is_named_in_both_ways_is_one_tool(tmp_path: Path) -> None:
    functions(tmp_path, find_dot_py='def run():\n    "x"')
    assert tools(tmp_path, "find", "find.py").names == ["find"]


def test_a_global_tool_that_coyote_does_not_have_is_lokis_where_both_are_installed(tmp_path: Path) -> None:
    """An agent of Loki's directory was found when Coyote was installed too, and its global tools were not."""
    coyote, loki = (tmp_path / name / "functions" for name in ("coyote", "loki"))
    for functions, name in ((coyote, "both.sh"), (loki, "both.sh"), (loki, "old.sh")):
        (functions / "tools").mkdir(parents=True, exist_ok=True)
        (functions / "tools" / name).write_text("# @describe Do it\nmain() { :; }\n")
    assert global_file("old", coyote) == loki / "tools" / "old.sh"
    assert global_file("both.sh", coyote) == coyote / "tools" / "both.sh"
    with pytest.raises(ToolFileError, match=r"not found: .*/coyote/functions/tools/none"):
        global_file("none", coyote)
    with pytest.raises(ToolFileError, match="not found"):
        global_file("old", tmp_path / "mine" / "functions")
