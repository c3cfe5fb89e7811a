"""Calls whose words need no parser: what the tool sees is the same as with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sleipnir.tools.bash import parse, runnable
from sleipnir.tools.bash.variables import assignments
from tests.examples import examples

TAGS = """
# @option --city! The city
# @option -u --unit[=celsius|fahrenheit] The unit
# @option --days <INT> How many
# @option --tag* Several
# @option --kind*[small|big] Several of a choice
# @option --note=none
# @flag --loud
# @flag --more*
"""
SHOWS = """
weather() {
    declare -p ${!argc_@} argc__args argc__positionals argc__fn
    env | grep argc_
    return 0
}
"""
RAW = f"# @cmd The weather\n{TAGS}{SHOWS}# @cmd Nothing\nother() {{ :; }}\n"
EVALS = f"set -euo pipefail\n{TAGS}{SHOWS}main() {{ weather; }}\n" + 'eval "$(argc --argc-eval "$0" "$@")"\n'
KNOWN = ["--city=Rome"]

values = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["celsius", "big", "$(id)", "`id`", "'", '"', "a b", "*", "~", "-x", "--", "a=b", "\n", ""]
)
options = st.sampled_from(["--city", "-u", "--unit", "--days", "--tag", "--kind", "--note", "--gone"])
word = st.builds("{}={}".format, options, values) | st.sampled_from(
    ["--loud", "--more", "--loud=1", "-h", "x", "--tag"]
)


def ended(program: str, file: Path, words: list[str]) -> tuple[int, bytes, bytes]:
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "argc_city": "outside", "argc_days": "outside"}
    done = subprocess.run(
        ["bash", "-c", program, str(file), *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, list[str]]]:
    """Each with the words before the options."""
    folder = tmp_path_factory.mktemp("tools")
    for name, text in (("raw.sh", RAW), ("evals.sh", EVALS)):
        (folder / name).write_text(text)
    return [(folder / "raw.sh", ["weather"]), (folder / "evals.sh", [])]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(word, max_size=5), st.booleans())
def test_a_tool_sees_the_same_with_and_without_the_parser(
    files: list[tuple[Path, list[str]]], given_words: list[str], has_city: bool
) -> None:
    for file, before in files:
        words = [*before, *(KNOWN if has_city else []), *given_words]
        text = file.read_text()
        with_parser, without = runnable(text, file), runnable(text, file, words)
        assert with_parser is not None and without is not None
        assert ended(without, file, words) == ended(with_parser, file, words)


def test_ordinary_calls_need_no_parser(files: list[tuple[Path, list[str]]]) -> None:
    more = ["--city=Rome", "--unit=celsius", "--days=3", "--tag=a", "--tag=b", "--kind=big", "--note=", "--loud"]
    for file, before in files:
        script = parse(file.read_text(), file)
        assert assignments(script, [*before, *KNOWN])
        assert assignments(script, [*before, *more, "--more", "--more"])


@pytest.mark.parametrize(
    "words",
    [
        [], ["--city=a", "--city=b"], ["--city=a", "--unit=kelvin"], ["--city"], ["--city=a", "x"], ["--city=a", "--"],
        ["--city=a", "--loud=1"], ["--city=a", "--loud", "--loud"], ["--city=a", "--gone=1"], ["--help"],
    ],
)  # fmt: skip
def test_mistakes_are_left_to_the_parser(files: list[tuple[Path, list[str]]], words: list[str]) -> None:
    for file, before in files:
        assert assignments(parse(file.read_text(), file), [*before, *words]) is None


@pytest.mark.parametrize(
    "tag",
    [
        "@arg place", "@option --a <X> <Y>", "@option --a*,", "@option --a~", "@option --a=`f`",
        "@option --a $$", "@env HOME!", "@meta require-tools bash", "@meta dotenv",
    ],
)  # fmt: skip
def test_what_depends_on_more_than_the_words_is_left_to_the_parser(tag: str) -> None:
    script = parse(f"# @option --b\n# {tag}\nf() {{ :; }}\nmain() {{ :; }}\n", Path("x.sh"))
    assert assignments(script, ["--b=1"]) is None


def test_choices_that_a_function_names_are_left_to_the_parser() -> None:
    script = parse("# @option --a[`f`]\nf() { echo x; }\nmain() { :; }\n", Path("x.sh"))
    assert assignments(script, ["--a=x"]) is None
    assert assignments(script, []) is not None


def test_a_file_that_changes_its_words_gets_what_it_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "changes.sh"
    file.write_text(EVALS.replace('\neval "', '\nset -- "$@" --days=7\neval "'))
    words = ["--city=Rome"]
    with_parser, without = runnable(file.read_text(), file), runnable(file.read_text(), file, words)
    assert with_parser is not None and without is not None
    code, stdout, stderr = ended(without, file, words)
    assert (code, stdout, stderr) == ended(with_parser, file, words)
    assert b'argc_days="7"' in stdout
