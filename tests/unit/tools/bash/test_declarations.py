"""What a model is told of a bash file, and how its arguments become words (spec/graph-agents.md 4.2, 4.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sleipnir.errors import ToolFileError
from sleipnir.tools.bash import argv, declarations, parse
from sleipnir.tools.declaration import Declaration

FIXTURES = Path(__file__).parents[3] / "fixtures" / "tools"
FILE = Path("functions/tools/my-tool.sh")


def fixture(name: str, *, agent: bool = False) -> list[Declaration]:
    return declarations((FIXTURES / name).read_text(), FIXTURES / name, agent=agent)


def declared(*lines: str) -> Declaration:
    (found,) = declarations("\n".join(["# @describe Text", *lines]), FILE, agent=False)
    return found


def schema(line: str) -> dict[str, Any]:
    (found,) = declared(line).parameters["properties"].values()
    assert isinstance(found, dict)
    return found


def words(line: str, **arguments: Any) -> list[str]:
    text = f"# @describe Text\n{line}\n"
    (found,) = declarations(text, FILE, agent=False)
    return argv(found, parse(text, FILE), arguments)


@pytest.mark.conformance("X02", "X03", "X05")
def test_a_file_without_commands_is_one_tool_named_after_it() -> None:
    (tool,) = fixture("kinds.sh")
    assert (tool.name, tool.command, tool.agent, tool.language, tool.line) == ("kinds", None, False, "bash", 4)
    assert tool.description == (
        "Take one parameter of every kind\n\nThe rest of the text is for those who read on:\n"
        "  * a list keeps its indentation\n@someone is no tag"
    )
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "A text that must be there"},
            "place": {"type": "string", "enum": ["inside", "outside"], "description": "Where it is"},
            "count": {"type": "integer", "description": "How many"},
            "share": {"type": "number", "description": "How much"},
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Who,\n                                one after the other",
            },
            "tags": {
                "type": "array",
                "items": {"type": "string", "enum": ["red", "green"]},
                "description": "Which colours",
            },
            "note": {"type": "string", "description": "What else there is to say"},
            "my_opt": {"type": "string", "description": "A name with an underscore"},
            "set_up": {"type": "string", "description": "A name with a dash"},
            "size": {"type": "string", "enum": ["small", "large"], "description": "How large"},
            "loud": {"type": "boolean", "description": "Say it loudly"},
        },
        "required": ["text", "place", "count", "share", "names"],
    }
    assert tool.written["my_opt"] == "--my_opt"
    assert tool.written["set_up"] == "--set-up"


@pytest.mark.conformance("X01", "X13")
def test_the_commands_of_a_file_are_tools_but_those_that_are_hidden_or_below_another() -> None:
    tools = fixture("tools.sh", agent=True)
    assert [(tool.name, tool.command, tool.line) for tool in tools] == [
        ("add_note", "add_note", 7),
        ("find_notes", "find-notes", 17),
        ("remove", "remove", 23),
        ("_instructions", "_instructions", 34),
        ("test", "test", 44),
    ]
    assert all(tool.agent for tool in tools)
    assert tools[0].description == "Write a note\nthat is found again by its title"
    assert tools[0].parameters["required"] == ["title"]
    assert tools[2].parameters == {"type": "object", "properties": {}, "required": []}


@pytest.mark.conformance("X02")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# @option --x", {"type": "string"}),
        ("# @option --x <Int>", {"type": "integer"}),
        ("# @option --x <num> T", {"type": "number", "description": "T"}),
        ("# @option --int", {"type": "integer"}),
        ("# @option --num!", {"type": "number"}),
        ("# @option --x[1|2] <INT>", {"type": "integer", "enum": [1, 2]}),
        ("# @option --x[=a|b]", {"type": "string", "enum": ["a", "b"]}),
        ("# @option --x[`_f`]", {"type": "string"}),
        ("# @option --x=5", {"type": "string"}),
        ("# @option --x* <INT>", {"type": "array", "items": {"type": "string"}}),
        ("# @option --x+,[a|b]", {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
        ("# @option --x <A> <B>", {"type": "array", "items": {"type": "string"}}),
        ("# @option --x~", {"type": "array", "items": {"type": "string"}}),
        ("# @flag -x", {"type": "boolean"}),
        ("# @flag --x*", {"type": "boolean"}),
    ],
)
def test_the_schema_of_a_parameter(line: str, expected: dict[str, Any]) -> None:
    assert schema(line) == expected
    jsonschema.Draft202012Validator.check_schema(dict(declared(line).parameters))


@pytest.mark.conformance("X02")
def test_a_value_with_a_default_is_not_required() -> None:
    found = declared("# @option --a!", "# @option --b!=1", "# @option --c+", "# @option --d+[=x|y]", "# @option --e")
    assert found.parameters["required"] == ["a", "c"]


@pytest.mark.conformance("X03")
def test_positional_arguments_and_variables_are_not_declared() -> None:
    assert declared("# @arg a!", "# @env B!").parameters["properties"] == {}


def test_options_of_the_file_are_those_of_a_command_only_if_the_file_declares_it() -> None:
    text = "# @option --x\n{}# @cmd F\nf() {{\n}}\n"
    (plain,) = declarations(text.format(""), FILE, agent=True)
    (inheriting,) = declarations(text.format("# @meta inherit-flag-options\n"), FILE, agent=True)
    assert plain.parameters["properties"] == {}
    assert inheriting.parameters["properties"] == {"x": {"type": "string"}}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("# @option --x\n", 1, "Tool definition missing or empty description: my-tool.sh"),
        ("# @describe\n", 1, "Tool definition missing or empty description: my-tool.sh"),
        ("# @cmd\n# @alias a\nf-g() {\n}\n", 1, "Tool definition missing or empty description: my-tool.sh f-g"),
    ],
)
def test_a_tool_without_a_description_is_refused(text: str, line: int, message: str) -> None:
    with pytest.raises(ToolFileError) as error:
        declarations(text, FILE, agent=False)
    assert (error.value.line, error.value.message) == (line, message)


def test_what_a_model_does_not_see_needs_no_description() -> None:
    (found,) = declarations("# @cmd\n_helper() {\n}\n# @cmd\n_instructions() {\n}\n", FILE, agent=True)
    assert found.name == "_instructions"


@pytest.mark.conformance("X02")
@pytest.mark.parametrize(
    ("line", "value", "expected"),
    [
        ("# @option --x", "a b", ["--x=a b"]),
        ("# @option --x", "", ["--x="]),
        ("# @option --x", "-1", ["--x=-1"]),
        ("# @option --x", None, ["--x=null"]),
        ("# @option --x", True, ["--x=true"]),
        ("# @option --x", 1.5, ["--x=1.5"]),
        ("# @option --x <INT>", 5.0, ["--x=5"]),
        ("# @option --x <NUM>", 5.0, ["--x=5.0"]),
        ("# @option --x", {"a": ["é", 1]}, ['--x={"a": ["é", 1]}']),
        ("# @option --x", ["a", "b"], ["--x=a", "--x=b"]),
        ("# @option --x*", ["a", 1, {"b": None}], ["--x=a", "--x=1", '--x={"b": null}']),
        ("# @option --x*", [], []),
        ("# @option --x*", "a", ["--x=a"]),
        ("# @option -x", "a", ["-x=a"]),
        ("# @option -s -x", "a", ["-x=a"]),
        ("# @option --x:", "a", ["--x=a"]),
        ("# @option -x-*", ["a=1", "b"], ["-xa=1", "-xb"]),
        ("# @option --x <A> <B>", ["a", "b"], ["--x", "a", "b"]),
        ("# @flag --x", True, ["--x"]),
        ("# @flag --x", False, []),
        ("# @flag --x", None, []),
        ("# @flag --x", "true", ["--x"]),
        ("# @flag --x", "maybe", ["--x=maybe"]),
    ],
)
def test_the_words_of_an_argument(line: str, value: Any, expected: list[str]) -> None:
    assert words(line, x=value) == expected


def test_an_option_that_takes_all_that_follows_comes_last() -> None:
    assert words("# @option --x~\n# @option --y", x=["a", "--b"], y="c") == ["--y=c", "--x", "a", "--b"]


def test_names_are_those_of_the_file_and_unknown_ones_are_left_to_the_tool() -> None:
    line = "# @option --a_b\n# @option --c-d"
    assert words(line, a_b="1", c_d="2") == ["--a_b=1", "--c-d=2"]
    assert words(line, e_f=["3", 4], g=True, h=False) == ["--e-f=3", "--e-f=4", "--g"]


def test_a_command_is_named_as_the_file_spells_it() -> None:
    text = (FIXTURES / "tools.sh").read_text()
    tools = {tool.name: tool for tool in declarations(text, FILE, agent=True)}
    script = parse(text, FILE)
    assert argv(tools["find_notes"], script, {"words": ["a"]}) == ["find-notes", "--words=a"]
    assert argv(tools["test"], script, {"verbose": True}) == ["test", "--verbose"]


def test_a_command_that_the_file_has_lost_is_an_error() -> None:
    (tool,) = declarations("# @cmd A\na() {\n}\n", FILE, agent=True)
    with pytest.raises(ToolFileError, match="there is no command 'a'"):
        argv(tool, parse("# @cmd B\nb() {\n}\n", FILE), {})


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_what_no_command_line_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        words("# @option --x", x=text)
