"""What people and programs see of a batch, and what of `batch`'s command lines is refused."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sleipnir.batches.records import BatchInfo, BatchPlan, ErrorGroup, submission_id
from sleipnir.batches.rows import BadRow
from sleipnir.cli import main
from sleipnir.cli.batches import submit as batch_submit
from sleipnir.cli.batches import view as batch_view
from sleipnir.cli.batches.batch import error_row
from sleipnir.cli.batches.submit import RowSource, SubmitView, in_words
from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.terminal import terminal
from sleipnir.client.batch import SubmittedRows
from sleipnir.messages import Usage

OPTIONS = GlobalOptions(redis_url="redis://:secret@box/1")
NOW_MS = 1_800_000_000_000
RUNNING = BatchInfo(
    id="b1", agent="triage", state="running", created_ms=NOW_MS - 20_000, now_ms=NOW_MS, started_ms=NOW_MS - 10_000,
    total=200, waiting=88, active=12, completed=97, failed=3, plan=BatchPlan("monday", max_cost_usd=2, max_tokens=1),
    usage=Usage(input_tokens=40_000, output_tokens=5_000, calls=100, cost_usd=0.12),
)  # fmt: skip


def test_a_line_has_rows_pace_and_cost() -> None:
    assert batch_view.line(RUNNING) == (
        "running: 100 of 200 rows are over: 97 completed, 3 failed; 12 active, 88 waiting; 10 rows/s, 10.00s left; "
        "45,000 tokens, $0.1200 so far, about $0.2400 in all"
    )
    unpriced = replace(RUNNING, usage=Usage(input_tokens=1, calls=1, cost_usd=None))
    assert batch_view.cost_in_words(unpriced) == "1 token, cost unknown"
    empty = BatchInfo("b2", "triage", "accepting", NOW_MS, NOW_MS)
    assert batch_view.line(empty) == "accepting: 0 of 0 rows are over"


def test_a_batch_is_shown_in_fields() -> None:
    over = replace(RUNNING, state="over_budget")
    shown = dict(batch_view.fields(over, OPTIONS))
    assert shown["budget"] == "$2, 1 token"
    assert shown["took"] == "10.00s"
    question, command = shown["next"].splitlines()
    assert question == "It has used $0.12 and 45,000 tokens, as much as it may. Continue?"
    assert command == "sleipnir --redis-url 'redis://:***@box/1' batch resume b1 --max-cost USD"


def test_programs_get_what_is_reckoned_too() -> None:
    data = batch_view.to_data(RUNNING)
    assert (data["rate_per_s"], data["eta_s"], data["forecast_usd"], data["question"]) == (10, 10, 0.24, None)
    assert data["plan"]["name"] == "monday"


def test_the_bar_has_the_same_width_for_all_rows() -> None:
    assert batch_view.segments(RUNNING, 20) == [
        (10, "completed"), (0, "failed"), (0, "cancelled"), (1, "active"), (9, "waiting"),
    ]  # fmt: skip
    for waiting in range(97):
        info = replace(RUNNING, total=112 + waiting, waiting=waiting)
        assert sum(length for length, _ in batch_view.segments(info, 60)) == 60


def test_a_terminal_shows_the_bar_and_the_counts() -> None:
    shown = io.StringIO()
    Console(file=shown, width=100).print(batch_view.drawn(replace(RUNNING, plan=BatchPlan("mon\x1b[2Jday"))))
    head, bar, counts, pace, cost = shown.getvalue().splitlines()
    assert head == "triage mon\\x1b[2Jday  running"
    assert bar == "█" * 34 + "░" * 26 + "  50% of 200"
    assert counts.split() == ["97", "completed", "3", "failed", "12", "active", "88", "waiting"]
    assert (pace, cost) == ("10 rows/s, 10.00s left", "45,000 tokens, $0.1200 so far, about $0.2400 in all")


def test_away_from_a_terminal_each_new_state_leaves_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with batch_view.WatchView(OPTIONS) as view:
        for state, failed in (("running", 0), ("running", 1), ("canary", 1), ("done", 1)):
            view.see(replace(RUNNING, state=state, failed=failed))  # type: ignore[arg-type]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["▸ running", "▸ canary"]
    assert said[2] == "98 rows are over, 1 of them failed. Continue with 88 more?"
    assert said[3].endswith(" batch resume b1")
    assert len(said) == 4


def test_on_a_terminal_the_bar_goes_when_the_batch_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "can_redraw", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # T3 of the second review: rich draws nothing on a dumb one
    with batch_view.WatchView(OPTIONS) as view:
        view.see(RUNNING)
        view.see(replace(RUNNING, state="paused"))
        view.see(replace(RUNNING, state="done"))
    shown = capsys.readouterr().err
    assert "█" in shown
    assert "it is paused; sleipnir" in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h"))


def test_the_result_of_a_submission_is_reported() -> None:
    assert in_words(SubmittedRows(1), "b1") == "1 row added to batch b1"
    assert in_words(SubmittedRows(60, 3, 2), "b1") == (
        "60 rows added to batch b1, 3 were already present; 2 bad rows left out"
    )
    assert in_words(SubmittedRows(0, 60), "b1") == (
        "nothing is added: batch b1 has 60 rows of these already; use another --name for another batch"
    )


def test_submitting_reports_bad_rows_and_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batch_submit, "SAY_S", 0.0)
    (tmp_path / "rows.jsonl").write_text("{}\n" * 100)
    with (tmp_path / "rows.jsonl").open("rb") as file:
        source = RowSource(file, "rows.jsonl", size=300)
        with SubmitView(source) as view:
            view.refuse(BadRow("rows.jsonl:7", "its prompt \x1b[2J is bad"))
            view.see(SubmittedRows(1_200, 0, 1))
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "rows.jsonl:7: its prompt \\x1b[2J is bad"
        assert lines[1].startswith("▸ 1,201 rows, 1 bad, ")
        monkeypatch.setattr(terminal, "can_redraw", lambda: True)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")  # T3 of the second review: rich draws nothing on a dumb one
        file.seek(150)
        with SubmitView(source) as view:
            view.see(SubmittedRows(50))
        assert "submitting" in capsys.readouterr().err


def test_the_same_submission_has_the_same_id() -> None:
    assert submission_id("a", "name", "x") == submission_id("a", "name", "x")
    assert len({submission_id("a", "b", "c"), submission_id("a", "bc"), submission_id("ab", "c")}) == 3


def test_rows_with_the_same_failure_are_one_line_with_some_of_their_runs() -> None:
    group = ErrorGroup("double", "broken", 1_200, ("k1", "k2"), ("r1", "r2", "r3", "r4"))
    assert error_row(group) == ("1,200", "double", "r1, r2, r3", "broken")
    assert error_row(replace(group, node=None))[1] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "triage"], "Missing argument 'ROWS'"),
        (["submit", "triage", "nowhere.jsonl"], "'nowhere.jsonl' does not exist"),
        (["submit", "nosuchagent", "-"], "nosuchagent"),
        (["submit", "triage", "-", "--priority", "6"], "1<=x<=5"),
        (["submit", "triage", "-", "--canary", "0"], "--canary"),
        (["parallel", "b1", "0"], "x>=1"),
        (
            ["results", "b1", "-o", "out.txt"],
            "'out.txt' has no known format; end it in .jsonl or .csv, or give --format",
        ),
        (["results", "b1", "--overwrite"], "--overwrite needs a file; name one with -o"),
        (["wach", "b1"], "No such command 'wach'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["batch", *words]) == 2
    assert said in capsys.readouterr().err


def test_runs_of_a_batch_are_listed_without_their_children(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--batch", "b1", "--children"]) == 2
    assert "omit --children" in capsys.readouterr().err
