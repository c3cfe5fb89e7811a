"""`sleipnir limits`: the table, the JSON, and what it says when there is nothing to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.cli import main
from sleipnir.cli.fleet.limits import COLUMNS, row, show, to_data
from sleipnir.cli.terminal.render import plain_table
from sleipnir.models.limits import HeldPermit, Limit, LimitUse

NOW_MS = 1_800_000_000_000
USES = [
    LimitUse(
        Limit("openai:*", 600, 200_000, 20), NOW_MS, 594, 151_000,
        tuple(HeldPermit(f"r{number}/2/1/1", NOW_MS + 9_000) for number in range(5)), 1_204, NOW_MS + 12_000,
    ),
    LimitUse(Limit("ollama:*", max_parallel=1), NOW_MS, slots=(HeldPermit("r9/4/1/2", NOW_MS + 1),)),
]  # fmt: skip


def test_the_table_has_the_use_and_its_holders() -> None:
    assert plain_table(COLUMNS, [row(use) for use in USES]) == [
        "MODELS    RPM      TPM              PARALLEL  COOLING  WAITING  HOLDERS",
        "openai:*  594/600  151,000/200,000  5/20      12.00s   1,204    r0/2/1/1, r1/2/1/1, r2/2/1/1 and 2 more",
        "ollama:*  0        0                1/1       -        -        r9/4/1/2",
    ]


def test_programs_get_all_holders_and_the_bounds() -> None:
    data = to_data(USES[1])
    assert data == {
        "pattern": "ollama:*", "requests_per_minute": None, "tokens_per_minute": None, "max_parallel": 1,
        "at_ms": NOW_MS, "requests": 0, "tokens": 0, "slots": [{"holder": "r9/4/1/2", "until_ms": NOW_MS + 1}],
        "waiting": 0, "cooling_until_ms": None, "change": None, "written": None,
    }  # fmt: skip


def test_json_is_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    show(USES, as_data=True)
    assert [use["pattern"] for use in json.loads(capsys.readouterr().out)] == ["openai:*", "ollama:*"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLEIPNIR_LIMITS", str(tmp_path / "limits.yaml"))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path))
    return tmp_path / "limits.yaml"


def test_without_limits_the_place_of_the_file_is_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("models:\n")
    assert main(["limits"]) == 0
    assert capsys.readouterr().err == f"no limits: none are written in {file}\n"


def test_when_nothing_runs_it_shows_the_bounds_and_starts_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("models:\n  'openai:*': {requests_per_minute: 1200, more: 1}\n")
    assert main(["limits"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["MODELS    RPM    TPM  PARALLEL", "openai:*  1,200  -    -"]
    assert f"{file}:2:43: warning: unknown key 'more' is ignored" in shown.err
    assert [path.name for path in file.parent.iterdir()] == ["limits.yaml"]


def test_a_file_that_cannot_be_used_is_an_error_of_its_author(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("models:\n  'openai:*': {requests_per_minute: lots}\n")
    assert main(["limits"]) == 2
    assert f"{file}:2:16: 'requests_per_minute' must be a whole number" in capsys.readouterr().err
