"""Starting the command line: what it loads, what its help says, how it reports mistakes."""

import click
import pytest

from sleipnir.cli import front_page, main
from sleipnir.cli.app import app


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["-v", "--help"]])
def test_help_names_every_command_and_option(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    page = capsys.readouterr().out
    assert page == front_page.text() + "\n"
    assert all(f"\n  {name} " in page for name in front_page.COMMANDS)
    assert max(map(len, page.splitlines())) <= 80


def test_the_help_page_lists_exactly_the_options_there_are() -> None:
    there_are = {option for param in app.params for option in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    listed = {word.rstrip(",") for options in front_page.OPTIONS for word in options.split() if word.startswith("-")}
    assert listed == there_are


@pytest.mark.parametrize("name", list(front_page.COMMANDS))
def test_every_command_of_the_table_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert command.name == name
    assert main([name, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert "error: there is no command 'rnu'. Did you mean 'run'?" in capsys.readouterr().err


def test_wrong_usage_is_one_error_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0].startswith("Usage: sleipnir run ")
    assert shown.err.splitlines()[-1].startswith("error: ")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sleipnir ")
