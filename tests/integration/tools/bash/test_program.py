"""Tool files under a real bash: variables, checks, hooks, and that files run as they are (spec/graph-agents.md 4.2)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sleipnir.tools.bash import argv, declarations, parse, runnable
from sleipnir.tools.bash.program import WORDS_FILE
from tests.integration.tools.bash.running import Ended, Run, execute, in_folder, main

FIXTURES = Path(__file__).parents[3] / "fixtures" / "tools"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return in_folder(tmp_path)


@pytest.mark.conformance("X06")
@pytest.mark.parametrize("name", ["raw", "eval", "built"])
def test_raw_eval_and_built_files_run_as_they_are(name: str, tmp_path: Path) -> None:
    file, output = FIXTURES / f"{name}.sh", tmp_path / "output"
    before = file.read_bytes()
    ended = execute(file, "--who=Ann's $(id)", env={"LLM_OUTPUT": str(output)})
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert output.read_text() == "body\nHello, Ann's $(id)\n"
    refused = execute(file, env={"LLM_OUTPUT": str(output)})
    assert (refused.code, refused.stderr) == (
        1,
        "error: the following required arguments were not provided:\n  --who <WHO>\n",
    )
    assert file.read_bytes() == before
    assert (runnable(file.read_text(), file) is None) == (name == "built")


def test_the_commands_of_an_agents_file_run_by_their_declarations(tmp_path: Path) -> None:
    file, output = FIXTURES / "tools.sh", tmp_path / "output"
    text = file.read_text()
    script, tools = parse(text, file), {tool.name: tool for tool in declarations(text, file, agent=True)}
    env = {"LLM_OUTPUT": str(output), "NOTES_DIR": "/notes"}
    for name, arguments in (
        ("add_note", {"title": "a  b", "urgent": True}),
        ("find_notes", {"words": ["x y", "-z"]}),
        ("test", {}),
        ("_instructions", {}),
    ):
        assert execute(file, *argv(tools[name], script, arguments), env=env) == Ended(0, "", "")
    assert execute(file, "remove", "one", "--title=t", env=env).code == 0
    assert execute(file, "new", "--title", "t", env=env).code == 0
    assert output.read_text().splitlines() == [
        "added a  b (1) to /notes",
        "found x y",
        "found -z",
        "tested 0",
        "You keep notes in /notes.",
        "removed t",
        "added t (0) to /notes",
    ]


def test_every_kind_of_parameter_reaches_the_tool(tmp_path: Path) -> None:
    file, output = FIXTURES / "kinds.sh", tmp_path / "output"
    text = file.read_text()
    (tool,) = declarations(text, file, agent=False)
    arguments = {"text": "a", "place": "inside", "count": 3.0, "share": 0.5, "names": ["b", "c"], "loud": True}
    words = argv(tool, parse(text, file), arguments)
    assert execute(file, *words, env={"LLM_OUTPUT": str(output)}) == Ended(0, "", "")
    assert output.read_text().splitlines() == [
        "text=a",
        "place=inside",
        "count=3",
        "share=0.5",
        "name=b",
        "name=c",
        "size=small loud=1 region=north",
    ]


VARIABLES: list[tuple[list[str], list[str], dict[str, list[str]]]] = [
    (["@option --a-b.c"], ["--a-b.c", "1"], {"argc_a_b_c": ["1"]}),
    (["@option --a", "@option --b"], ["--b=x=y"], {"argc_b": ["x=y"]}),
    (["@option -a --aa"], ["-a=1"], {"argc_aa": ["1"]}),
    (["@option -a"], ["-a", ""], {"argc_a": [""]}),
    (["@option --a*"], ["--a", "1", "--a=", "--a=3"], {"argc_a": ["1", "", "3"]}),
    (["@option --a*,"], ["--a=1,2", "--a", ",3"], {"argc_a": ["1", "2", "", "3"]}),
    (["@option --a~"], ["--a", "1", "--b", "--", "-c"], {"argc_a": ["1", "--b", "--", "-c"]}),
    (["@option --a <A> <B>"], ["--a", "1", "2"], {"argc_a": ["1", "2"]}),
    (["@option --a <A+>", "@flag --b"], ["--a", "1", "2", "--b"], {"argc_a": ["1", "2"], "argc_b": ["1"]}),
    (["@option --a <A?>"], ["--a"], {"argc_a": [""]}),
    (["@option --a:"], ["--a=1"], {"argc_a": ["1"]}),
    (["@option -D-*"], ["-Dk=v", "-Dx"], {"argc_D": ["k=v", "x"]}),
    (["@option +a"], ["+a=1"], {"argc_a": ["1"]}),
    (["@option -all"], ["-all=1"], {"argc_all": ["1"]}),
    (["@option --a=1", "@option --b=`_b`"], [], {"argc_a": ["1"], "argc_b": ["from b"]}),
    (["@option --a[=x|y]"], [], {"argc_a": ["x"]}),
    (["@option --a='$(id) \"'"], [], {"argc_a": ['$(id) "']}),
    (["@option --a=`_b`"], ["--a="], {"argc_a": [""]}),
    (["@option --a*,=1,2"], [], {"argc_a": ["1", "2"]}),
    (["@option --a[`_choices`]"], ["--a=two words"], {"argc_a": ["two words"]}),
    (["@option --a[?`_choices`]"], ["--a=other"], {"argc_a": ["other"]}),
    (["@option --a $BOUND", "@flag --b $YES", "@flag --c $NO"], [], {"argc_a": ["from outside"], "argc_b": ["1"]}),
    (["@option --a*, $COMMAS"], [], {"argc_a": ["1", "2"]}),
    (["@option --a $BOUND"], ["--a=1"], {"argc_a": ["1"]}),
    (["@flag --a", "@flag -b --bb*"], ["-b", "--a", "--bb"], {"argc_a": ["1"], "argc_bb": ["2"]}),
    (["@meta combine-shorts", "@flag -a", "@option -c"], ["-ac", "1"], {"argc_a": ["1"], "argc_c": ["1"]}),
    (["@meta symbol +tool"], ["+stable"], {"argc_tool": ["stable"]}),
    (["@arg a", "@arg b=2"], ["1"], {"argc_a": ["1"], "argc_b": ["2"], "words": ["1", "2"]}),
    (["@arg a*", "@arg b"], ["1", "2", "3"], {"argc_a": ["1", "2"], "argc_b": ["3"], "words": ["1", "2", "3"]}),
    (["@arg a*", "@arg b*"], ["1", "--", "2", "3"], {"argc_a": ["1"], "argc_b": ["2", "3"], "words": ["1", "2", "3"]}),
    (["@arg a*,", "@arg b"], ["1,2", "3"], {"argc_a": ["1", "2"], "argc_b": ["3"], "words": ["1", "2", "3"]}),
    (["@arg a $BOUND"], [], {"argc_a": ["from outside"], "words": ["from outside"]}),
    (["@arg a~"], ["-x", "--help", "--"], {"argc_a": ["-x", "--help", "--"], "words": ["-x", "--help", "--"]}),
    (["@flag --f", "@arg a~"], ["--f", "1", "--f"], {"argc_f": ["1"], "argc_a": ["1", "--f"], "words": ["1", "--f"]}),
    (["@flag --f", "@arg a*"], ["--", "--f"], {"argc_a": ["--f"], "words": ["--f"]}),
    (["@flag --f"], ["1", "-"], {"words": ["1", "-"]}),
    ([], ["-1", "2"], {"words": ["-1", "2"]}),
]  # fmt: skip


@pytest.mark.conformance("X02", "X03")
@pytest.mark.parametrize(("tags", "words", "expected"), VARIABLES)
def test_what_is_given_is_in_variables(
    tags: list[str], words: list[str], expected: dict[str, list[str]], run: Run
) -> None:
    text = main(*tags) + "_b() { echo from b; }\n_choices() { printf '%s\\n' one 'two words'; }\n"
    ended = run(text, *words, BOUND="from outside", YES="true", NO="0", COMMAS="1,2")
    assert (ended.code, ended.stderr) == (0, "")
    shown = ended.shown
    positionals = shown.pop("argc__positionals")
    assert positionals == shown["words"]
    assert shown == {"words": [], **expected}


@pytest.mark.parametrize("tag", ["@option --a", "@flag --a", "@arg a", "@meta symbol +a"])
def test_a_variable_of_the_caller_is_not_taken_for_an_argument(tag: str, run: Run) -> None:
    assert "argc_a" not in run(main(tag), argc_a="1").shown


BOUND = "environment variable `SET` that bound to `--x <X>`"

REFUSED = [
    (["@option --x!", "@arg y!"], [], "the following required arguments were not provided:\n  --x <X>\n  <Y>"),
    (["@option -x --xx+ <FILE>"], [], "the following required arguments were not provided:\n  --xx <FILE>"),
    (["@env NAME!", "@env OTHER!"], [], "the following required environments were not provided:\n  NAME\n  OTHER"),
    (["@option --x"], ["--z=1"], "unexpected argument `--z` found"),
    (["@option +x"], ["+z"], "unexpected argument `+z` found"),
    (["@arg a"], ["1", "2"], "unexpected argument `2` found"),
    (["@option --x[a|b]"], ["--x=v"], "invalid value `v` for `<X>`\n  [possible values: a, b]"),
    (["@option --x[a|b]"], ["--x=a\nb"], "invalid value `a\nb` for `<X>`\n  [possible values: a, b]"),
    (["@option --x*,[a|b]"], ["--x=a,"], "invalid value `` for `<X>`\n  [possible values: a, b]"),
    (["@option --x[`_f`] <K>"], ["--x=*"], "invalid value `*` for `<K>`\n  [possible values: one, two]"),
    (["@arg a*[a|b]"], ["a", "c"], "invalid value `c` for `<A>`\n  [possible values: a, b]"),
    (["@env SET[a|b]"], [], "invalid value `s` for environment variable `SET`\n  [possible values: a, b]"),
    (["@option --x[a|b] $SET"], [], f"invalid value `s` for {BOUND}\n  [possible values: a, b]"),
    (["@flag --x $SET"], [], "environment variable 'SET' has invalid value for param '--x'"),
    (["@option --x"], ["--x=1", "--x=2"], "the argument `--x` cannot be used multiple times"),
    (["@flag -x"], ["-x", "-x"], "the argument `-x` cannot be used multiple times"),
    (["@option --x"], ["--x"], "incorrect number of values for `--x <X>`"),
    (["@option --x"], ["--x", "-1"], "incorrect number of values for `--x <X>`"),
    (["@option --x <A> <B>"], ["--x=1"], "incorrect number of values for `--x <A> <B>`"),
    (["@option --x:"], ["--x", "1"], "incorrect number of values for `--x <X>`"),
    (["@flag --f"], ["--f=1"], "flag `--f` don't accept any value"),
    (["@meta require-tools cat,no-such-a no-such-b"], [], "missing tools: no-such-a no-such-b"),
]  # fmt: skip


@pytest.mark.conformance("X04")
@pytest.mark.parametrize(("tags", "words", "message"), REFUSED)
def test_what_cannot_be_is_refused_before_the_tool_runs(
    tags: list[str], words: list[str], message: str, run: Run
) -> None:
    ended = run(main(*tags) + "_f() { printf '%s\\n' one two; }\n", *words, SET="s")
    assert ended == Ended(1, "", f"error: {message}\n")


@pytest.mark.conformance("X04")
def test_defaults_of_variables_are_exported(run: Run) -> None:
    text = '# @env A=1\n# @env B=`_b`\n# @env C=1\n_b() { echo "a b"; }\nmain() { printenv A B C; }\n'
    assert run(text, C="2").stdout == "1\na b\n2\n"


def test_a_file_of_variables_is_loaded_and_exported(tmp_path: Path, run: Run) -> None:
    (tmp_path / ".env").write_text('A=1\nB="$A 2"\n')
    text = "# @meta dotenv\n# @env A!\nmain() { printenv A B; C=3; printenv C || echo none; }\n"
    assert run(text).stdout == "1\n1 2\nnone\n"
    assert run("# @meta dotenv other\nmain() { echo ran; }\n").stdout == "ran\n"


MISSING = "the following required arguments were not provided"

NO_COMMAND = "`prog-b` requires a subcommand but one was not provided"

COMMANDS = r"""
# @describe About it
# @meta version 1.2.3
# @option --root-option!
# @cmd The first
# @meta default-subcommand
# @option --x
a() { echo "a $argc_root_option ${argc_x-}"; }
# @cmd The second
# @alias bee
b() { echo "b $# ${argc__fn} ${argc__args[*]}"; }
# @cmd Below
b::c() { echo "b c"; }
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--root-option=1", "a", "--x=2"], Ended(0, "a 1 2\n", "")),
        (["--root-option=1"], Ended(0, "a 1 \n", "")),
        (["--root-option=1", "--", "b"], Ended(0, "a 1 \n", "")),
        (["--root-option=1", "bee", "c"], Ended(0, "b c\n", "")),
        (["a"], Ended(1, "", f"error: {MISSING}:\n  --root-option <ROOT-OPTION>\n")),
        (["b"], Ended(1, "", f"error: {NO_COMMAND}\n  [subcommands: c]\n")),
        (["b", "d"], Ended(1, "", f"error: {NO_COMMAND}\n  [subcommands: c]\n")),
        (["a", "--root-option=1"], Ended(1, "", "error: unexpected argument `--root-option` found\n")),
        (["--version"], Ended(0, "prog 1.2.3\n", "")),
        (["-V"], Ended(0, "prog 1.2.3\n", "")),
    ],
)  # fmt: skip
def test_commands_are_found_by_their_names(words: list[str], expected: Ended, run: Run) -> None:
    assert run(COMMANDS, *words) == expected


def test_a_command_is_required_where_there_is_no_default(run: Run) -> None:
    text = "# @cmd A\n# @alias x\na() { :; }\n# @cmd B\nb() { :; }\n"
    message = "error: `prog` requires a subcommand but one was not provided\n  [subcommands: a, x, b]\n"
    assert run(text) == run(text, "c") == Ended(1, "", message)
    assert run(text + "main() { echo main; }\n") == Ended(0, "main\n", "")


def test_inherited_options_may_be_before_and_after_the_command(run: Run) -> None:
    text = "# @meta inherit-flag-options\n# @option --x!\n# @cmd A\na() { echo $argc_x; }\n"
    assert run(text, "--x=1", "a").stdout == "1\n"
    assert run(text, "a", "--x=1").stdout == "1\n"
    assert run(text, "a").stderr == "error: the following required arguments were not provided:\n  --x <X>\n"


def test_help_is_printed_and_nothing_runs(run: Run) -> None:
    text = COMMANDS + "echo body >&2\n"
    expected = (
        "prog 1.2.3\nAbout it\n\nUSAGE: prog --root-option <ROOT-OPTION> <COMMAND>\n\nOPTIONS:\n"
        "  --root-option <ROOT-OPTION>\n\nCOMMANDS:\n  a  The first [default]\n  b  The second [aliases: bee]\n"
    )
    for words in (["--help"], ["-h"], ["-help"], ["help"]):
        assert run(text, *words) == Ended(0, expected, "body\n")
    assert run(COMMANDS, "help", "a").stdout.startswith("The first\n\nUSAGE: prog a [OPTIONS]\n")
    assert run(COMMANDS, "a", "--help").stdout.endswith("OPTIONS:\n  --x <X>\n")
    assert run("# @option -h\nmain() { echo $argc_h; }\n", "-h", "1").stdout == "1\n"


def test_hooks_run_around_the_function_and_read_the_variables(run: Run) -> None:
    text = (
        "# @option --x\n_argc_before() { echo before $argc_x; y=1; }\n_argc_after() { echo after $y; }\n"
        "main() { y=2; echo main; }\n"
    )
    assert run(text, "--x=1").stdout == "before 1\nmain\nafter 2\n"


@pytest.mark.conformance("X06")
def test_a_file_has_the_same_bash_source_as_if_bash_ran_it(tmp_path: Path, run: Run) -> None:
    (tmp_path / "lib.sh").write_text("helper() { echo helped; }\n")
    text = (
        'source "$(dirname "$0")/lib.sh"\n[[ ${BASH_SOURCE[0]} == "$0" ]] && echo itself\n'
        'main() { helper; echo "$LINENO $0 ${BASH_SOURCE[0]}"; exit 7; }\n'
        'eval "$(argc --argc-eval "$0" "$@")"\necho not here\n'
    )
    file = str(tmp_path / "prog.sh")
    assert run(text) == Ended(7, f"itself\nhelped\n3 {file} {file}\n", "")


@pytest.mark.parametrize("line", ['eval "$(argc --argc-eval "$0" "$@")"', 'eval $(argc --argc-eval "$0" "$@")', ""])
def test_the_code_of_a_file_ends_it_as_in_any_script(line: str, run: Run) -> None:
    """A failure ends it under `set -e`, the last command gives the exit code, and options in the first line hold."""
    assert run(f"set -e\nmain() {{ false; echo on; }}\n{line}\n") == Ended(1, "", "")
    assert run(f"#!/bin/bash -e\nmain() {{ false; echo on; }}\n{line}\n") == Ended(1, "", "")
    assert run(f"main() {{ false; echo on; return 3; }}\n{line}\n") == Ended(3, "on\n", "")
    assert run(f"exit 4\nmain() {{ echo on; }}\n{line}\n") == Ended(4, "", "")
    assert run(f"trap 'echo bye' EXIT\nmain() {{ echo on; }}\n{line}\n") == Ended(0, "on\nbye\n", "")


def test_options_in_the_first_line_of_a_built_file_hold(run: Run) -> None:
    text = "#!/usr/bin/env -S bash -eu\n# ARGC-BUILD {\nfalse\necho on\n# ARGC-BUILD }\n"
    assert run(text) == Ended(1, "", "")


def test_code_after_the_eval_line_reads_the_variables(run: Run) -> None:
    text = '# @option --x\nIFS=xyz\neval "$(argc --argc-eval "$0" "$@")"\necho "$argc_x ${argc__fn:-none}"\n'
    assert run(text, "--x=1 x  2") == Ended(0, "1 x  2 none\n", "")


def test_a_raw_file_of_plain_code_has_the_variables_from_the_start(run: Run) -> None:
    text = '# @option --x!\necho "$argc_x $#"\n'
    assert run(text, "--x=1") == Ended(0, "1 1\n", "")
    assert run(text) == Ended(1, "", "error: the following required arguments were not provided:\n  --x <X>\n")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    program = runnable("main() { :; }\n", tmp_path / "gone.sh")
    assert program is not None
    ended = subprocess.run(["bash", "-c", program, str(tmp_path / "gone.sh")], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr.decode()) == (126, f"{tmp_path}/gone.sh: cannot be read\n")


def test_words_may_come_from_a_file_where_they_are_too_long_for_a_command_line(tmp_path: Path, run: Run) -> None:
    words = tmp_path / "words"
    words.write_bytes(b"--x=" + b"a" * 300_000 + b"\0--y=\nb\0")
    text = '# @option --x\n# @option --y\nmain() { echo ${#argc_x} "$argc_y"; printenv ' + WORDS_FILE + "; }\n"
    assert run(text, "--z", **{WORDS_FILE: str(words)}) == Ended(1, "300000 \nb\n", "")
