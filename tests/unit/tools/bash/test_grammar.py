"""One annotation line at a time: what it says, and what is refused (spec/graph-agents.md 4.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import ToolFileError
from sleipnir.tools.bash import parse
from sleipnir.tools.bash.model import BashCommand, Choices, Default, EnvVar, Parameter, Symbol

FILE = Path("agents/a/tools.sh")


def root(*lines: str) -> BashCommand:
    return parse("\n".join(lines), FILE).root


def option(text: str) -> Parameter:
    (found,) = root(f"# @option {text}").options
    return found


@pytest.mark.conformance("X02")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--x", Parameter("option", "x", 1, names=("--x",), notations=("X",))),
        ("--x  The text", Parameter("option", "x", 1, "The text", names=("--x",), notations=("X",))),
        ("-a --xy", Parameter("option", "xy", 1, names=("-a", "--xy"), notations=("XY",))),
        ("+a +xy", Parameter("option", "xy", 1, names=("+a", "+xy"), notations=("XY",))),
        ("-xy", Parameter("option", "xy", 1, names=("-xy",), notations=("XY",))),
        ("-c", Parameter("option", "c", 1, names=("-c",), notations=("C",))),
        ("-?", Parameter("option", "?", 1, names=("-?",), notations=("?",))),
        ("--a.b:c@d", Parameter("option", "a.b:c@d", 1, names=("--a.b:c@d",), notations=("A.B:C@D",))),
        ("--x!", Parameter("option", "x", 1, names=("--x",), required=True, notations=("X",))),
        ("--x*", Parameter("option", "x", 1, names=("--x",), multiple=True, notations=("X",))),
        ("--x+", Parameter("option", "x", 1, names=("--x",), required=True, multiple=True, notations=("X",))),
        ("--x~", Parameter("option", "x", 1, names=("--x",), rest=True, notations=("X",))),
        ("--x: T", Parameter("option", "x", 1, "T", names=("--x",), assigned=True, notations=("X",))),
        ("-D-*", Parameter("option", "D", 1, names=("-D",), prefixed=True, multiple=True, notations=("D",))),
        ("--x=a", Parameter("option", "x", 1, names=("--x",), default=Default("a"), notations=("X",))),
        ("--x= T", Parameter("option", "x", 1, "T", names=("--x",), default=Default(""), notations=("X",))),
        ('--x="a \\"b" T', Parameter("option", "x", 1, "T", ("--x",), default=Default('a "b'), notations=("X",))),
        ("--x='' T", Parameter("option", "x", 1, "T", names=("--x",), default=Default(""), notations=("X",))),
        ("--x=`_f`", Parameter("option", "x", 1, names=("--x",), default=Default(function="_f"), notations=("X",))),
        ("--x!=a", Parameter("option", "x", 1, names=("--x",), default=Default("a"), notations=("X",))),
        ("--x[a|b c]", Parameter("option", "x", 1, names=("--x",), choices=Choices(("a", "b c")), notations=("X",))),
        (
            "--x![=a|'b|c'|\"\"] T",
            Parameter(
                "option",
                "x",
                1,
                "T",
                ("--x",),
                default=Default("a"),
                choices=Choices(("a", "b|c", "")),
                notations=("X",),
            ),
        ),
        ("--x[`_f`]", Parameter("option", "x", 1, names=("--x",), choices=Choices(function="_f"), notations=("X",))),
        (
            "--x[?`_f`]",
            Parameter(
                "option", "x", 1, names=("--x",), choices=Choices(function="_f", checked=False), notations=("X",)
            ),
        ),
        (
            "--x+/[`_f`] $HOME_X <DIR> Where",
            Parameter(
                "option",
                "x",
                1,
                "Where",
                ("--x",),
                required=True,
                multiple=True,
                delimiter="/",
                choices=Choices(function="_f"),
                env="HOME_X",
                notations=("DIR",),
            ),
        ),
        ("--x $$ T", Parameter("option", "x", 1, "T", names=("--x",), env="X", notations=("X",))),
        ("--x <A> <B+> T", Parameter("option", "x", 1, "T", names=("--x",), notations=("A", "B+"))),
        ("--x<INT> T", Parameter("option", "x", 1, "T", names=("--x",), notations=("INT",))),
        ("--x costs $5 or <more>", Parameter("option", "x", 1, "costs $5 or <more>", ("--x",), notations=("X",))),
    ],
)
def test_an_option_is_read_as_it_is_written(text: str, expected: Parameter) -> None:
    assert option(text) == expected


@pytest.mark.conformance("X02")
@pytest.mark.parametrize("delimiter", ",:;@|/")
@pytest.mark.parametrize("sign", "*+")
def test_a_delimiter_follows_the_sign_for_many(sign: str, delimiter: str) -> None:
    found = option(f"--x{sign}{delimiter} T")
    assert (found.multiple, found.delimiter, found.required) == (True, delimiter, sign == "+")


@pytest.mark.conformance("X02")
@pytest.mark.parametrize(
    ("text", "words", "is_list"),
    [
        ("--x", (1, 1), False),
        ("--x*", (1, 1), True),
        ("--x <A> <B>", (2, 2), True),
        ("--x <A> <B?>", (1, 2), True),
        ("--x <A+>", (1, 1_000_000), True),
        ("--x <A*>", (0, 1_000_000), True),
        ("--x <A?>", (0, 1), False),
        ("--x~", (1, 1_000_000), True),
    ],
)
def test_notations_report_how_many_values_one_use_takes(text: str, words: tuple[int, int], is_list: bool) -> None:
    assert (option(text).words, option(text).is_list) == (words, is_list)


@pytest.mark.conformance("X03")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--f", Parameter("flag", "f", 1, names=("--f",))),
        ("-f --force* $F Do it", Parameter("flag", "force", 1, "Do it", ("-f", "--force"), multiple=True, env="F")),
        ("-v Say more", Parameter("flag", "v", 1, "Say more", names=("-v",))),
    ],
)
def test_a_flag_is_read_as_it_is_written(text: str, expected: Parameter) -> None:
    assert root(f"# @flag {text}").options == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("va", Parameter("argument", "va", 1, notations=("VA",))),
        ("va! $V <PATH> T", Parameter("argument", "va", 1, "T", required=True, env="V", notations=("PATH",))),
        (
            "va*,[a|b]",
            Parameter(
                "argument", "va", 1, multiple=True, delimiter=",", choices=Choices(("a", "b")), notations=("VA",)
            ),
        ),
        ("va~ T", Parameter("argument", "va", 1, "T", rest=True, notations=("VA",))),
        ("va <A> <B>", Parameter("argument", "va", 1, "<B>", notations=("A",))),
    ],
)
def test_an_argument_is_read_as_it_is_written(text: str, expected: Parameter) -> None:
    assert root(f"# @arg {text}").arguments == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("KEY", EnvVar("KEY", 1)),
        ("KEY! The key", EnvVar("KEY", 1, "The key", required=True)),
        ("KEY!=a T", EnvVar("KEY", 1, "T", default=Default("a"))),
        ("KEY[=a|b] <X> T", EnvVar("KEY", 1, "T", default=Default("a"), choices=Choices(("a", "b")))),
        ("KEY=`_f`", EnvVar("KEY", 1, default=Default(function="_f"))),
    ],
)
def test_a_variable_is_read_as_it_is_written(text: str, expected: EnvVar) -> None:
    assert root(f"# @env {text}").envs == (expected,)


@pytest.mark.parametrize(
    "line",
    [
        "# @option",
        "# @option x",
        "# @option --",
        "# @option --x&",
        "# @option --x[",
        "# @option --x[a|b",
        "# @option --x[?a|b]",
        "# @option --x=`$(id)`",
        "# @option --x[`a b`]",
        "# @option --x: <A> <B>",
        "# @option --x*, <A> <B>",
        "# @option -D- $$",
        "# @flag --x!",
        "# @flag --x=a",
        "# @flag --x:",
        "# @arg --x",
        "# @env 1X",
        "# @env MY-KEY",
        "# @alias",
        "# @meta",
        "# @version",
    ],
)
def test_a_tag_of_another_form_is_a_syntax_error_with_its_line(line: str) -> None:
    with pytest.raises(ToolFileError) as error:
        parse(f"#!/bin/bash\n\n{line}\n", FILE)
    assert str(error.value) == "agents/a/tools.sh:3: syntax error at line 3"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("+toolchain", (Symbol("+", "toolchain"),)),
        ("@file[`_files`]", (Symbol("@", "file", Choices(function="_files")),)),
    ],
)
def test_a_symbol_is_read_as_it_is_written(value: str, expected: tuple[Symbol, ...]) -> None:
    assert root(f"# @meta symbol {value}").symbols == expected
