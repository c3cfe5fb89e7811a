"""The scripts of log-triage, run as a worker runs them: a process, the state in its environment, JSON on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).parents[2] / "agents" / "log-triage"


def run_script(name: str, state: dict[str, Any], **env: str) -> dict[str, Any]:
    """The object that the script prints. Fails the test if it prints anything else or exits with an error."""
    base = {"PATH": os.environ["PATH"], "LLM_AGENT_DATA_DIR": str(AGENT), "GRAPH_STATE": json.dumps(state)}
    argv = [sys.executable, str(AGENT / "scripts" / name)]
    done = subprocess.run(argv, env=base | env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert isinstance(output, dict)
    return output


def read_log(path: Path | str, **env: str) -> dict[str, Any]:
    return run_script("read_log.py", {"initial_prompt": str(path)}, **env)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "app.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def kinds(output: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in output["findings"]]


def diagnose(read: dict[str, Any], **more: str) -> dict[str, Any]:
    return run_script("diagnose_by_rules.py", read | more)


def report_of(state: dict[str, Any]) -> str:
    report = run_script("write_report.py", state)["report"]
    assert isinstance(report, str)
    return report


def test_the_shipped_log_has_the_problems_that_were_caused_during_its_recording() -> None:
    output = read_log("server.log")
    assert output["_next"] == "diagnose"
    assert output["log"]["sources"] == ["redis", "worker"]
    assert [(finding["kind"], finding["count"], finding["fatal"]) for finding in output["findings"]] == [
        ("memory", 3, False),
        ("memory", 1, True),
        ("restart", 1, False),
        ("connection", 2, False),
        ("connection", 1, False),
        ("exception", 2, False),
    ]
    assert output["findings"][-1]["where"] == "shop.py:31 in charge"


def test_the_rules_name_the_full_redis_as_the_cause_and_the_report_keeps_the_rest() -> None:
    read = read_log("server.log")
    diagnosis = diagnose(read, model_error="LLM node failed: refused: bad key\nsecond line")
    assert diagnosis["cause"] == "Redis has reached maxmemory and refuses every write."
    assert diagnosis["confidence"] == "high"
    assert diagnosis["diagnosed_by"] == "fixed rules (refused: bad key)"
    report = report_of(read | diagnosis)
    assert report.startswith("Likely cause: Redis has reached maxmemory")
    assert "Task shop.charge raised unexpected: KeyError('currency') (2 times), at shop.py:31 in charge" in report
    assert "22:20:39 redis: Redis started again" in report


def test_a_report_is_written_from_a_models_answer_too() -> None:
    answer = {"cause": "A full cache.", "confidence": "low", "evidence": ["one", "two"], "next_steps": ["Look."]}
    report = report_of(read_log("server.log") | answer | {"diagnosed_by": "a model"})
    assert "Confidence:   low, by a model" in report
    assert "  - one\n  - two\n" in report
    assert "  1. Look.\n" in report


def test_a_log_without_errors_is_all_quiet(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "2026-11-20 10:00:00 INFO started, previous error count 0, connection lost handler installed",
        "2026-11-20 10:00:01 WARNING the error rate is not measured",
        '10.0.0.1 - - [20/Nov/2026:10:00:02 +0000] "GET /error HTTP/1.1" 200 512',
        "time=10:00:03 level=info msg=retry after timeout",
    )
    output = read_log(path)
    assert output["_next"] == "all_quiet"
    assert output["summary"] == "app.log: 4 lines, 10:00:00 to 10:00:03; no errors; 1 warning."


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Nov 20 10:00:00 db kernel: Out of memory: Killed process 812 (postgres)", "memory"),
        ("2026-11-20T10:00:00Z ERROR write /var/lib/x: no space left on device", "disk"),
        ("10:00:00 panic: runtime error: index out of range", "crash"),
        ("2026-11-20 10:00:00 UTC LOG:  database system was not properly shut down", "restart"),
        ("2026-11-20 10:00:00 ERROR dial tcp 10.0.0.5:5432: connect: connection refused", "connection"),
        ("2026-11-20 10:00:00 ERROR permission denied for table orders", "access"),
        ("2026-11-20 10:00:00 ERROR upstream request timed out", "timeout"),
        ('10.0.0.1 - - [20/Nov/2026:10:00:02 +0000] "GET / HTTP/1.1" 502 157', "error"),
    ],
)
def test_common_problems_are_recognised_and_every_kind_has_a_rule(tmp_path: Path, line: str, kind: str) -> None:
    output = read_log(write(tmp_path, line))
    assert kinds(output) == [kind]
    diagnosis = diagnose(output)
    assert diagnosis["cause"]
    assert diagnosis["next_steps"]
    assert "{" not in "".join(diagnosis["next_steps"])


def test_a_traceback_is_one_finding_with_the_place_that_raised(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "2026-11-20 10:00:00 ERROR job 17 died",
        "Traceback (most recent call last):",
        '  File "jobs.py", line 3, in run',
        "    1 / 0",
        "ZeroDivisionError: division by zero",
        "2026-11-20 10:00:01 INFO next",
    )
    (finding,) = read_log(path)["findings"]
    assert (finding["kind"], finding["where"]) == ("exception", "jobs.py:3 in run")
    assert finding["detail"] == "ZeroDivisionError: division by zero"


def test_the_same_error_with_other_numbers_is_counted_not_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, *(f"2026-11-20 10:00:{n:02} ERROR order {n} was lost" for n in range(30)))
    (finding,) = read_log(path)["findings"]
    assert (finding["count"], finding["first"], finding["last"]) == (30, "10:00:00", "10:00:29")


def test_the_values_in_the_state_are_bounded_for_any_log(tmp_path: Path) -> None:
    lines = (f"2026-11-20 10:00:00 ERROR {word * 3000} {word}" for word in map(chr, range(0x4E00, 0x4E00 + 700)))
    output = read_log(write(tmp_path, *lines))
    assert len(output["findings"]) == 12
    assert len(json.dumps(output, ensure_ascii=False).encode()) < 32 * 1024


def test_a_line_that_never_ends_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("10:00:00 ERROR " + "x" * 5_000_000 + "\n10:00:01 INFO fine\n")
    output = read_log(path)
    assert output["log"]["lines"] == 2
    assert len(output["findings"][0]["message"]) == 240


def test_only_the_end_of_a_very_large_file_is_read_and_the_summary_reports_that(tmp_path: Path) -> None:
    path = write(tmp_path, *["10:00:00 ERROR old trouble"] * 80_000, "10:00:01 ERROR connection refused")
    output = read_log(path, LLM_AGENT_VAR_MAX_MEGABYTES="1")
    assert output["log"]["lines"] < 80_000
    assert "the end of the file; 1 MB before it were not read" in output["summary"]
    assert kinds(output) == ["connection", "error"]


def test_a_gigabyte_that_is_not_text_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "core"
    with path.open("wb") as file:
        file.truncate(2**30)
    assert read_log(path)["_next"] == "unreadable"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "app.log is empty."), (b"\x7fELF\0\0", "app.log is not a text file."), (b"\x1f\x8b\x08", "not a text file")],
)
def test_an_empty_or_binary_file_ends_with_the_reason(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(content)
    output = read_log(path)
    assert output["_next"] == "unreadable"
    assert problem in output["problem"]


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("", "No log file was named."),
        ("no-such.log", "no-such.log does not exist"),
        ("scripts", "scripts is not a file."),
        ("10:00:00 ERROR a\n10:00:01 ERROR b", "the text of something, not a path"),
        ("x" * 5000, "the text of something, not a path"),
        ("x" * 300, "does not exist"),
        ("a\0b", "does not exist"),
    ],
)
def test_a_prompt_that_names_no_log_ends_with_what_to_do(prompt: str, problem: str) -> None:
    output = read_log(prompt)
    assert output["_next"] == "unreadable"
    assert problem in output["problem"]


def test_a_path_is_looked_up_where_the_caller_is_before_the_agents_folder(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("10:00:00 INFO mine\n")
    assert read_log("server.log", GRAPH_CALLER_DIR=str(tmp_path))["log"]["lines"] == 1
    assert read_log("server.log", GRAPH_CALLER_DIR=str(tmp_path / "elsewhere"))["log"]["lines"] > 300


def test_a_state_that_is_too_large_for_the_environment_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"initial_prompt": "server.log", "ballast": "x" * 40_000}))
    output = run_script("read_log.py", {}, GRAPH_STATE="", GRAPH_STATE_FILE=str(file))
    assert output["_next"] == "diagnose"


def test_bytes_that_are_not_utf8_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes("10:00:00 ERROR Gerät nicht gefunden\n".encode("latin-1"))
    assert read_log(path)["findings"][0]["message"] == "ERROR Ger\ufffdt nicht gefunden"


def test_the_shipped_log_names_no_machine_and_no_directory() -> None:
    text = (AGENT / "server.log").read_text()
    assert not [line for line in text.splitlines() if "/home/" in line or "/root/" in line or "/tmp/" in line]
    assert 200 <= text.count("\n") <= 400
