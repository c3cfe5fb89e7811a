"""`sleipnir doctor`, with the machine's redis-server and with a Redis that is down."""

import json
from pathlib import Path

import pytest

from sleipnir.cli import main


def test_the_report_is_complete_without_anything_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SLEIPNIR_REDIS_URL", raising=False)
    assert main(["doctor", "--json"]) == 0
    subjects = [finding["subject"] for finding in json.loads(capsys.readouterr().out)]
    assert subjects[:1] + subjects[-4:] == ["python", "model", "shelf", "redis-server", "stack"]


def test_a_redis_that_is_down_fails_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLEIPNIR_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    assert main(["doctor"]) == 1
    report = capsys.readouterr().out
    assert "fail  redis: " in report and "hunter2" not in report
