"""Whole files: which tag belongs to which command, what texts go on, and the errors (spec/graph-agents.md 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sleipnir.errors import ToolFileError
from sleipnir.tools.bash import BashFile, parse
from sleipnir.tools.bash.model import BashCommand

FILE = Path("tools.sh")


def read(text: str) -> BashFile:
    return parse(text, FILE)


@pytest.mark.conformance("X05")
def test_a_description_continues_over_the_comment_lines_below_its_tag() -> None:
    first = "# @describe First\n#\n# * second\n#     indented\n## \\@third\n#fourth\n#\n"
    script = read(first + "# @option --x One\n# more\n\n# not this\n")
    assert script.root.description == "First\n\n* second\n    indented\n@third\nfourth"
    assert script.root.options[0].description == "One\nmore"


@pytest.mark.conformance("X05")
@pytest.mark.parametrize(
    ("tag", "description"),
    [
        ("# @cmd A\n# b\nf() {", lambda root: root.commands[0].description),
        ("# @env A a\n# b", lambda root: root.envs[0].description),
        ("# @arg a a\n# b", lambda root: root.arguments[0].description),
        ("# @flag --a a\n# b", lambda root: root.options[0].description),
        ("# @describe\n# a\n# b", lambda root: root.description),
    ],
)
def test_every_tag_with_a_text_may_have_several_lines(tag: str, description: Callable[[BashCommand], str]) -> None:
    assert description(read(tag).root).lower() == "a\nb"


def test_only_comments_at_the_start_of_a_line_are_tags() -> None:
    script = read(
        "  # @nonsense\necho '# @nonsense'\nx=1 # @nonsense\n# @ nonsense\n#!@describe no\n#@describe Yes\r\n"
    )
    assert script.root.description == "Yes"


@pytest.mark.conformance("X01")
@pytest.mark.parametrize("head", ["f() {", "f () {", "f ( ) {", "function f {", "function f() {", "f(){ :; }"])
def test_the_first_function_after_a_cmd_is_its_command(head: str) -> None:
    script = read(f"# @cmd Text\n# @option --x\n\nlist=()\n  g() {{ :; }}\n{head}\n}}\nh() {{ :; }}\n")
    (command,) = script.root.commands
    assert (command.name, command.function, command.description) == ("f", "f", "Text")
    assert [found.id for found in command.options] == ["x"]
    assert script.functions == {"f", "h"}


def test_a_command_is_called_as_its_function_without_underscores_at_the_end() -> None:
    (command,) = read("# @cmd\ntest__() {\n}").root.commands
    assert (command.name, command.function) == ("test", "test__")


def test_a_function_with_colons_is_a_command_below_another() -> None:
    script = read("# @cmd A\na() {\n}\n# @cmd B\na::b_() {\n}\n# @cmd C\na::b::c() {\n}\na::main() {\n}\n")
    (a,) = script.root.commands
    (b,) = a.commands
    (c,) = b.commands
    assert (a.function, b.path, b.function, c.path, c.function) == (
        "a::main",
        ("a", "b"),
        None,
        ("a", "b", "c"),
        "a::b::c",
    )


def test_the_file_runs_main_if_it_has_one() -> None:
    assert read("main() {\n}\n").root.function == "main"
    assert read("other() {\n}\n").root.function is None


def test_variables_and_programs_are_inherited_and_options_only_if_the_file_declares_it() -> None:
    text = (
        "# @env A\n# @env B=1\n# @option --x\n# @flag -v --v\n{meta}# @meta require-tools a, b\n"
        "# @cmd\n# @env B=2\n# @option -v\n# @meta require-tools b c\nf() {{\n}}\n"
    )
    (command,) = read(text.format(meta="")).root.commands
    assert [env.name for env in command.envs] == ["A", "B"]
    assert command.envs[1].default is not None and command.envs[1].default.text == "2"
    assert command.tools == ("a", "b", "c")
    assert [option.names for option in command.options] == [("-v",)]
    (command,) = read(text.format(meta="# @meta inherit-flag-options\n")).root.commands
    assert [option.names for option in command.options] == [("--x",), ("-v",)]


def test_meta_of_the_file() -> None:
    script = read("# @meta version 1.2\n# @meta dotenv\n# @meta combine-shorts\n# @meta man-section 8\n")
    assert (script.root.version, script.dotenv, script.combine_shorts, script.inherit_options) == (
        "1.2",
        ".env",
        True,
        False,
    )
    assert read("# @meta dotenv conf/.env.local").dotenv == "conf/.env.local"
    assert read("").dotenv is None
    assert read("# @version 3").root.version == "3"


def test_two_dollars_name_a_variable_after_the_command_and_the_parameter() -> None:
    script = read("# @option --a-b $$\n# @cmd\n# @option --c.d $$\n# @arg e $$\nf-g() {\n}\n")
    assert script.root.options[0].env == "A_B"
    assert [script.root.commands[0].options[0].env, script.root.commands[0].arguments[0].env] == ["F_G_C_D", "F_G_E"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\n# @todo fix\n", 2, "@todo(line 2) is unknown tag"),
        ("# @author me\n", 1, "@author(line 1) is unknown tag"),
        ("# @cmd one\n\n# @cmd two\nf() {\n", 1, "@cmd(line 1) missing function?"),
        ("# @cmd one\n", 1, "@cmd(line 1) missing function?"),
        ("f() {\n}\n# @option --x\n", 3, "@option(line 3) shouldn't be here, @cmd is missing?"),
        ("# @cmd\nf() {\n}\n# @meta dotenv\n", 4, "@meta(line 4) shouldn't be here, @cmd is missing?"),
        ("f() {\n}\n# @describe Late\n", 3, "@describe(line 3) shouldn't be here, @cmd is missing?"),
        ("# @option -f --a\n# @flag -f --b\n", 2, "@flag(line 2) has '-f' already exists at line 1"),
        ("# @option --a\n#\n# @option -b --a\n", 3, "@option(line 3) has '--a' already exists at line 1"),
        ("# @arg a\n# @arg a\n", 2, "@arg(line 2) has 'a' already exists at line 1"),
        ("# @env A\n# @env A\n", 2, "@env(line 2) has 'A' already exists at line 1"),
        ("# @cmd\nf() {\n}\n# @cmd\nf() {\n}\n", 5, "f(line 5) conflicts with cmd or alias at line 2"),
        ("# @cmd\nf() {\n}\n# @cmd\nf_() {\n}\n", 5, "f_(line 5) conflicts with cmd or alias at line 2"),
        ("# @cmd\nf() {\n}\n# @cmd\n# @alias f\ng() {\n}\n", 5, "@alias(line 5) conflicts with cmd or alias at line 2"),
        ("# @cmd\n# @alias g\nf() {\n}\n# @cmd\ng() {\n}\n", 6, "g(line 6) conflicts with cmd or alias at line 2"),
        ("# @cmd\na::b() {\n}\n", 2, "a::b(line 2) lack of parent command"),
        ("# @meta version\n", 1, "@meta(line 1) invalid version value"),
        ("# @meta symbol tool\n", 1, "@meta(line 1) invalid symbol value"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ToolFileError) as error:
        read(text)
    assert (error.value.line, error.value.message) == (line, message)


def test_the_same_name_may_be_used_by_two_commands() -> None:
    script = read("# @cmd\n# @option --x\nf() {\n}\n# @cmd\n# @option --x\ng() {\n}\n")
    assert [command.options[0].line for command in script.root.commands] == [2, 6]
