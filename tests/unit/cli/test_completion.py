"""Tab completion where Redis is slow, silent or down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem

from sleipnir.cli import completion
from sleipnir.cli.options import GlobalOptions


def values(candidates: completion.Candidates, home: Path, url: str | None = "redis://:secret@db/0") -> list[str]:
    return [item.value for item in candidates(GlobalOptions(home=home, redis_url=url))]


def test_a_stack_that_does_not_answer_in_time_is_completed_from_its_last_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding U18 of the second review: it completed nothing, without a word."""
    delay_s = 0.0

    def ask(options: GlobalOptions) -> Iterator[CompletionItem]:
        time.sleep(delay_s)
        return iter([CompletionItem("4kq0aaaaaaaa", help="triage, running")])

    monkeypatch.setattr(completion, "TIME_LIMIT_S", 0.2)
    kept = completion._kept("runs", ask)
    assert values(kept, tmp_path) == ["4kq0aaaaaaaa"]
    delay_s = 30.0
    started = time.monotonic()
    assert values(kept, tmp_path) == ["4kq0aaaaaaaa"]
    assert time.monotonic() - started < 20
    [file] = (tmp_path / "completion").iterdir()
    assert "secret" not in file.name + file.read_text() and file.stat().st_mode & 0o077 == 0


def test_the_answer_of_one_deployment_is_not_used_for_another(tmp_path: Path) -> None:
    said = completion._kept("runs", lambda options: iter([CompletionItem("one")]))
    assert values(said, tmp_path, "redis://one/0") == ["one"]

    def silent(options: GlobalOptions) -> Iterator[CompletionItem]:
        raise ConnectionError

    assert values(completion._kept("runs", silent), tmp_path, "redis://one/0") == ["one"]
    with pytest.raises(FileNotFoundError):  # which completes nothing (completion._matching)
        values(completion._kept("runs", silent), tmp_path, "redis://two/0")


def test_runs_of_a_private_stack_that_is_down_are_completed_and_it_is_not_started(tmp_path: Path) -> None:
    """Finding U18 of the second review."""
    said = completion._kept("runs", lambda options: iter([CompletionItem("one")]))
    values(said, tmp_path, None)
    assert values(completion._kept("runs", completion._runs), tmp_path, None) == ["one"]
    assert not (tmp_path / "redis").exists()


def test_threads_are_completed_by_name_and_only_those_of_the_agent_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"counts/ann": "2 turns, completed", "talks/anton": "1 turn, failed"}
    found = [CompletionItem(name, help=help_) for name, help_ in told.items()]
    monkeypatch.setattr(completion, "_threads", lambda options: iter(found))
    command = click.Command("show", params=[click.Argument(["agent"], required=False)])

    def offered(agent: str | None, word: str) -> list[tuple[str, str | None]]:
        context = click.Context(command, obj=GlobalOptions(home=tmp_path, redis_url="redis://db/0"))
        context.params = {"agent": agent}
        items = completion.complete_thread(context, command.params[0], word)
        return [(item.value, item.help) for item in items]

    everything = [("ann", "counts, 2 turns, completed"), ("anton", "talks, 1 turn, failed")]
    assert offered(None, "") == everything
    assert offered("counts", "a") == everything[:1] and offered("./agents/talks", "an") == everything[1:]
    assert offered(None, "x") == []
