"""What a Python tools file declares (spec 4.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ToolFileError
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.python import declarations

FILE = Path("/agents/triage/tools.py")
OPEN_ENDED = "*args/*kwargs/positional-only parameters are not supported in tool functions"


def declared(text: str, *, agent: bool = True, file: Path = FILE) -> list[Declaration]:
    return declarations(text, file, agent=agent)


def parameters(signature: str, args: str = "") -> dict[str, Any]:
    """The schema of a function with this signature, and these lines in its `Args:` block."""
    block = f"\n\n    Args:\n{args}\n" if args else ""
    (declaration,) = declared(f'from typing import *\n\n\ndef tool({signature}):\n    """Does it.{block}"""\n')
    return dict(declaration.parameters)


@pytest.mark.conformance("X07")
def test_a_function_is_declared_with_its_docstring_its_place_and_how_to_call_it() -> None:
    (found,) = declared(
        'import os\n\n@cache\nasync def getIP(host: str, *, port: int = 80):\n    """  Find it.\n\n    Slowly."""\n'
    )
    assert found == Declaration(
        name="getip",
        description="Find it.\n\nSlowly.",
        parameters={
            "type": "object",
            "properties": {"host": {"type": "string"}, "port": {"type": "integer"}},
            "required": ["host"],
        },
        file=FILE,
        language="python",
        line=4,
        agent=True,
        command="getIP",
        written={"host": "host", "port": "port"},
    )


@pytest.mark.conformance("X07")
@pytest.mark.parametrize(
    ("annotation", "schema", "required"),
    [
        ("str", {"type": "string"}, True),
        ("int", {"type": "integer"}, True),
        ("float", {"type": "number"}, True),
        ("bool", {"type": "boolean"}, True),
        ("any", {"type": "string"}, True),
        ("Any", {"type": "string"}, True),
        ("Path", {"type": "string"}, True),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}, True),
        ("typing.List[str]", {"type": "array", "items": {"type": "string"}}, True),
        ("Optional[int]", {"type": "integer"}, False),
        ("Optional[List[float]]", {"type": "array", "items": {"type": "number"}}, False),
        ('Literal["a", "b"]', {"type": "string", "enum": ["a", "b"]}, True),
        # added by Sleipnir
        ("list[int]", {"type": "array", "items": {"type": "integer"}}, True),
        ("list[list[bool]]", {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, True),
        ("list", {"type": "array", "items": {"type": "string"}}, True),
        ("tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}, True),
        ("Sequence[Literal['x']]", {"type": "array", "items": {"type": "string", "enum": ["x"]}}, True),
        ("dict", {"type": "object"}, True),
        ("dict[str, int]", {"type": "object"}, True),
        ("Mapping[str, list[int]] | None", {"type": "object"}, False),
        ("int | None", {"type": "integer"}, False),
        ("None | str", {"type": "string"}, False),
        ("int | str", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
        ("Union[int, float, None]", {"anyOf": [{"type": "integer"}, {"type": "number"}]}, False),
        ("str | Path", {"type": "string"}, True),
        ("Literal[1, -2]", {"type": "integer", "enum": [1, -2]}, True),
        ("Literal['a', 1]", {"type": "string", "enum": ["a", "1"]}, True),
        ("Literal['a', None]", {"type": "string", "enum": ["a"]}, False),
        ("Literal[Colour.RED]", {"type": "string", "enum": ["Colour.RED"]}, True),
        ("Annotated[int, 'How many']", {"type": "integer", "description": "How many"}, True),
        ("Annotated[int | None, Field(description='How many')]", {"type": "integer", "description": "How many"}, False),
        ("Annotated[str, Doc('Who')]", {"type": "string", "description": "Who"}, True),
        ("Annotated[str, Gt(3)]", {"type": "string"}, True),
        ("'list[int] | None'", {"type": "array", "items": {"type": "integer"}}, False),
        ("'not a type]'", {"type": "string"}, True),
        ("f(x)", {"type": "string"}, True),
    ],
)
def test_annotations_become_schemas(annotation: str, schema: dict[str, Any], required: bool) -> None:
    found = parameters(f"x: {annotation}")
    assert found["properties"] == {"x": schema}
    assert found.get("required") == (["x"] if required else None)


@pytest.mark.conformance("X07")
def test_what_has_a_default_is_not_required_and_an_empty_list_is_left_out() -> None:
    assert parameters("a, b=1, *, c, d=None")["required"] == ["a", "c"]
    assert "required" not in parameters("a=1")
    assert parameters("") == {"type": "object", "properties": {}}


@pytest.mark.conformance("X07")
def test_the_args_block_describes_parameters_and_gives_types_to_those_without() -> None:
    found = parameters(
        "city, days: int, unit, tags, when",
        "        city: Where,\n            exactly\n        days (str): How many\n        unit (int, optional): Which\n"
        "        tags (list[str]): Some\n\n        when (int): after a blank line",
    )
    assert found["properties"] == {
        "city": {"type": "string", "description": "Where, exactly"},
        "days": {"type": "integer", "description": "How many"},
        "unit": {"type": "integer", "description": "Which"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Some"},
        "when": {"type": "string"},
    }
    assert found["required"] == ["city", "days", "tags", "when"]


@pytest.mark.conformance("X13")
def test_private_functions_methods_and_nested_ones_are_not_declared() -> None:
    text = (
        'def _helper():\n    """x"""\n\nclass A:\n    def method(self):\n        """x"""\n\n'
        'def tool():\n    """x"""\n    def inner():\n        """x"""\n\nif True:\n    def later():\n        """x"""\n'
    )
    assert [found.name for found in declared(text)] == ["tool"]


@pytest.mark.conformance("X13")
def test_the_function_that_writes_instructions_keeps_its_name() -> None:
    (found,) = declared('def _instructions():\n    """x"""\n')
    assert (found.name, found.command) == ("_instructions", "_instructions")


def test_of_two_functions_of_one_name_the_last_is_declared_as_it_is_called() -> None:
    (found,) = declared('def tool(a):\n    """first"""\n\n\ndef tool(b):\n    """second"""\n')
    assert (found.description, list(found.written)) == ("second", ["b"])


@pytest.mark.conformance("X15")
def test_a_global_file_declares_its_run_under_its_own_name() -> None:
    text = 'def other():\n    """x"""\n\n\ndef run(code: str):\n    """Runs it."""\n'
    (found,) = declared(text, agent=False, file=Path("/functions/tools/execute-py_code.py"))
    assert (found.name, found.command, found.agent) == ("execute_py_code", "run", False)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("def tool(:\n", 1, "failed to parse python: syntax error in tools.py: "),
        ("x = '\0'\n", None, "failed to parse python: syntax error in tools.py: "),
        ("\ndef tool():\n    pass\n", 2, "Missing or empty description on function: tool"),
        ('def tool():\n    "  "\n', 1, "Missing or empty description on function: tool"),
        ('def tool():\n    f"x"\n', 1, "Missing or empty description on function: tool"),
        ('def tool(*a):\n    "x"\n', 1, OPEN_ENDED),
        (
            'def tool(**a):\n    "x"\n',
            1,
            "*args/*kwargs/positional-only parameters are not supported in tool functions",
        ),
        (
            'def tool(a, /):\n    "x"\n',
            1,
            "*args/*kwargs/positional-only parameters are not supported in tool functions",
        ),
    ],
)
def test_an_impossible_declaration_is_an_error_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(ToolFileError) as caught:
        declared(text)
    assert caught.value.message.startswith(message)
    if line is not None:  # for a NUL it depends on the version of Python
        assert caught.value.line == line
        assert str(caught.value).startswith(f"{FILE}:{line}: {message}")


def test_a_global_file_without_run_reports_it() -> None:
    with pytest.raises(ToolFileError, match="a global Python tool is a function `run`; define it"):
        declared('def tool():\n    "x"\n', agent=False)


def test_nothing_of_the_file_is_run() -> None:
    assert len(declared('raise SystemExit\n\ndef tool(a=exit()):\n    "x"\n')) == 1
