"""Commands of `document_loaders`: by extension, by protocol, and in place of our own fetching."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from sleipnir_workers.knowledge import commands
from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.failures import UnreadableContent
from tests.integration.knowledge.loads import loaded
from tests.integration.knowledge.papers import pdf
from tests.integration.knowledge.site import Answer, Site
from tests.processes import wait_until


def script(folder: Path, body: str, name: str = "loader") -> str:
    """A command of that body, for sh."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def run(command: str, folder: Path, *, timeout_s: float = 30, max_bytes: int = 1000) -> str:
    return commands.run(command, "the subject", folder=folder, max_bytes=max_bytes, timeout_s=timeout_s)


# Running one


def test_the_output_of_a_command_is_the_text(tmp_path: Path) -> None:
    assert run("printf '%s|' a 'b c' \"it's $1\" x$1x", tmp_path) == "a|b c|it's the subject|xthe subjectx|"


def test_with_a_second_place_the_text_is_what_it_writes_there(tmp_path: Path) -> None:
    command = script(tmp_path, 'echo "about $1" > "$2"; echo noise')
    assert run(f"{command} $1 $2", tmp_path) == "about the subject\n"


def test_no_shell_looks_at_what_is_put_in_a_place(tmp_path: Path) -> None:
    subject = "$(touch owned); `touch owned` $2 \"'"
    assert commands.run("printf %s $1", subject, folder=tmp_path, max_bytes=100) == subject
    assert list(tmp_path.iterdir()) == []


def test_a_command_runs_in_the_agents_folder_with_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run("pwd", tmp_path) == f"{tmp_path}\n"
    assert "secret" not in run("env", tmp_path, max_bytes=100_000)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo 'no such page' >&2; exit 3", "ended with exit code 3: no such page"),
        ("exit 1", "ended with exit code 1: it printed nothing"),
        ("kill -9 $$", "ended by signal 9: it printed nothing"),
        ("head -c 2000 /dev/zero", "prints too much; at most 1000 bytes are loaded (SLEIPNIR_MAX_DOCUMENT_BYTES)"),
        ("printf '\\377'", "is not valid UTF-8 (byte 0xff at offset 0)"),
    ],
)
def test_a_failed_command_is_named_with_its_output(tmp_path: Path, body: str, expected: str) -> None:
    command = script(tmp_path, body)
    with pytest.raises(UnreadableContent) as error:
        run(f"{command} $1", tmp_path)
    assert f"the command `{command} 'the subject'` {expected}" in str(error.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [("exit 0", "wrote no file at $2"), ('head -c 2000 /dev/zero > "$2"', "wrote 1.953 kB; at most 1000 bytes")],
)
def test_what_is_wrong_with_its_file_is_named(tmp_path: Path, body: str, expected: str) -> None:
    with pytest.raises(UnreadableContent) as error:
        run(f"{script(tmp_path, body)} $1 $2", tmp_path)
    assert expected in str(error.value)


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with pytest.raises(UnreadableContent, match=r"the command `sleep 600` took longer than 0\.3 s"):
        run("sleep 600", tmp_path, timeout_s=0.3)


def test_nothing_of_a_command_outlives_it(tmp_path: Path) -> None:
    command = script(tmp_path, f'sleep 600 & echo $! > "{tmp_path}/child"; echo done')
    assert run(command, tmp_path) == "done\n"
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    wait_until(lambda: not child.exists() or child.read_text().split()[2] == "Z", "the child is dead")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("no-such-program $1", "cannot start 'no-such-program': No such file or directory"),
        ("printf 'open", "its loader `printf 'open` cannot be split into words (No closing quotation)"),
        ("  ", "its loader is an empty command"),
    ],
)
def test_a_command_that_cannot_be_started_is_named(tmp_path: Path, command: str, expected: str) -> None:
    with pytest.raises(UnreadableContent) as error:
        run(command, tmp_path)
    assert expected in str(error.value)


# By extension


def test_a_command_for_an_extension_goes_before_the_loader_we_have(tmp_path: Path) -> None:
    (tmp_path / "a.PDF").write_bytes(pdf(["words"]))
    load = loaded(tmp_path, ["a.PDF"], loaders={"pdf": "printf 'read %s' $1"})
    assert load.documents == [Document(f"{tmp_path}/a.PDF", f"read {tmp_path}/a.PDF", "txt")]


def test_a_file_of_any_size_is_left_to_a_command(tmp_path: Path) -> None:
    with (tmp_path / "film.mp4").open("wb") as file:
        file.truncate(2**30)
    assert loaded(tmp_path, ["film.mp4"], loaders={"mp4": "echo it rains"}).text == "it rains\n"


def test_a_command_that_fails_is_a_failure_of_its_document(tmp_path: Path) -> None:
    (tmp_path / "a.odt").write_text("words")
    failures = loaded(tmp_path, ["a.odt"], loaders={"odt": "false"}).failures
    assert failures == {f"{tmp_path}/a.odt": "the command `false` ended with exit code 1: it printed nothing"}


def test_what_is_downloaded_is_given_to_the_command_for_its_kind(tmp_path: Path) -> None:
    site = Site({"/paper": Answer(b"\0paper", "application/vnd.oasis.opendocument.text")})
    command = script(tmp_path, 'echo "${1##*.}"; tail -c 5 "$1"')
    with site:
        load = loaded(tmp_path, [f"{site.url}/paper"], loaders={"odt": f"{command} $1"}, private_urls=True)
    assert load.documents == [Document(f"{site.url}/paper", "odt\npaper", "txt")]


# By protocol


def test_a_protocol_loader_that_prints_text_gives_one_document(tmp_path: Path) -> None:
    load = loaded(tmp_path, ["jina:https://x.org/a"], loaders={"jina": "printf 'read %s' $1"})
    assert load.documents == [Document("jina:https://x.org/a", "read https://x.org/a", "txt")]


def test_a_protocol_loader_that_prints_documents_gives_each_below_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    printed = script(
        tmp_path,
        """printf '[{"path": "a.md", "contents": "one", "metadata": {"x": "y"}},'
        printf '{"path": "%s/b.md", "contents": "two"},{"path": "git:%s/c.md", "contents": "three"}]' "$1" "$1" """,
    )
    load = loaded(tmp_path, ["git:repo"], loaders={"git": f"{printed} $1"})
    repo = f"git:{tmp_path}/repo"
    assert load.documents == [
        Document(f"{repo}/a.md", "one"),
        Document(f"{repo}/b.md", "two"),
        Document(f"{repo}/c.md", "three"),
    ]


@pytest.mark.parametrize("output", ['[{"path": 1, "contents": "x"}]', '[{"path": "a"}]', '{"path": "a"}', '"a"', "[1"])
def test_json_of_another_shape_is_a_text(output: str) -> None:
    assert commands.documents(output, "db:x", "x") == [Document("db:x", output)]


def test_what_no_text_can_hold_is_taken_out_of_json() -> None:
    output = '[{"path": "a", "contents": "half \\ud800 zero \\u0000 end"}]'
    assert commands.documents(output, "db:x", "x") == [Document("db:x/a", "half ? zero  end")]


# In place of our own fetching


def test_the_loader_url_fetches_pages(tmp_path: Path) -> None:
    load = loaded(tmp_path, ["https://x.invalid/a?b=c"], loaders={"url": "printf 'page %s' $1"})
    assert load.documents == [Document("https://x.invalid/a?b=c", "page https://x.invalid/a?b=c", "txt")]


def test_the_loader_recursive_url_crawls(tmp_path: Path) -> None:
    command = script(
        tmp_path, """printf '[{"path": "%sone", "text": "1"}, {"path": "%stwo", "text": "2"}]' "$1" "$1" """
    )
    load = loaded(tmp_path, ["https://x.invalid/docs/**"], loaders={"recursive_url": f"{command} $1"})
    base = "https://x.invalid/docs/"
    assert load.documents == [Document(f"{base}one", "1", "md"), Document(f"{base}two", "2", "md")]


def test_the_loader_recursive_url_must_print_json(tmp_path: Path) -> None:
    failures = loaded(tmp_path, ["https://x.invalid/**"], loaders={"recursive_url": "echo words"}).failures
    assert failures == {
        "https://x.invalid/**": 'the loader `recursive_url` must print JSON `[{"path": "...", "text": "..."}]`'
    }


def test_a_command_in_python_is_as_good_as_any(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'import sys; print(sys.argv[1].upper())' $1"
    assert run(command, tmp_path) == "THE SUBJECT\n"
