"""No text of a file or of a model is ever run, and each arrives as it was given."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sleipnir.errors import ToolFileError
from sleipnir.tools.bash import argv, declarations, parse, runnable
from tests.integration.tools.bash.running import Run, in_folder, main


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return in_folder(tmp_path)


@pytest.mark.parametrize("line", ['eval "$(argc --argc-eval "$0" "$@")"\n', ""])
def test_texts_of_a_file_are_never_run(line: str, tmp_path: Path, run: Run) -> None:
    hostile = f"x'; touch {tmp_path}/ran; $(touch {tmp_path}/ran) \\"
    tags = [f"@describe {hostile}", f"@option --x[{hostile}|b] <{hostile}> {hostile}", f"@env E[a|{hostile}] {hostile}"]
    text = main(*tags) + line
    assert run(text, "--help").code == 0
    assert run(text, f"--x={hostile}", E=hostile).shown["argc_x"] == [hostile]
    assert run(text, "--x=c").code == 1
    assert not (tmp_path / "ran").exists()


TAGS = ["@option", "@flag", "@arg", "@env", "@cmd", "@alias", "@meta", "@describe", "version"]
PARTS = ["--x", "-a", "X", "!", "*,", "~", "=", "[", "]", "|", "`_f`", "<N>", "$$", "$Y", "f()", "{", "\n", "\n# ", " "]
QUOTES = ["'", '"', "\\", "$(id)", "`id`"]


@given(st.lists(st.sampled_from(TAGS + PARTS + QUOTES), max_size=25).map("".join))
@settings(max_examples=100, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        program = runnable("# " + text, Path("prog.sh"))
    except ToolFileError as error:
        assert str(error).startswith("prog.sh:")
    else:
        assert program is not None


@given(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=15, deadline=None)
def test_texts_of_a_file_are_quoted_in_the_program(text: str) -> None:
    quoted = text.replace("\\", "").replace('"', "'")
    tags = f'# @describe {text}\n# @option --x["{quoted}"|b] {text}\n# @arg y="{quoted}"\n# @env Z="{quoted}" {text}\n'
    program = runnable(tags, Path("prog.sh"))
    assert program is not None
    checked = subprocess.run(["bash", "-n", "-c", program], capture_output=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, b"")


HOSTILE = [
    "-1",
    "--x",
    "--",
    "$(id)",
    "`id`",
    "${HOME}",
    "a\nb\n",
    "'\"\\",
    "*",
    "!!",
    "~",
    "a=b",
    ";&|<>",
    "\t \r",
    "ü😀",
]

TEXTS = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30
)

ROUND_TRIP = main("@option --a_b", "@option -c", "@option --d-e*", "@option -f-*", "@flag --g", "@option --h~")


@given(
    a_b=TEXTS,
    c=TEXTS,
    d_e=st.lists(TEXTS, min_size=1, max_size=3),
    f=st.lists(TEXTS.filter(bool), min_size=1, max_size=2),
    g=st.booleans(),
    h=st.lists(TEXTS, min_size=1, max_size=3),
    line=st.sampled_from(['eval "$(argc --argc-eval "$0" "$@")"\n', ""]),
    locale=st.sampled_from(["C", "C.UTF-8"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_reaches_its_variable_unchanged(
    run: Run, a_b: str, c: str, d_e: list[str], f: list[str], g: bool, h: list[str], line: str, locale: str
) -> None:
    (tool,) = declarations("# @describe Text\n" + ROUND_TRIP, Path("prog.sh"), agent=False)
    arguments = {"a_b": a_b, "h": h, "c": c, "d_e": d_e, "f": f, "g": g}
    ended = run(ROUND_TRIP + line, *argv(tool, parse(ROUND_TRIP, Path("prog.sh")), arguments), LC_ALL=locale)
    assert (ended.code, ended.stderr) == (0, "")
    flags = {"argc_g": ["1"]} if g else {}
    given = {"argc_a_b": [a_b], "argc_c": [c], "argc_d_e": d_e, "argc_f": f, "argc_h": h, **flags}
    assert ended.shown == {**given, "argc__positionals": [], "words": []}
