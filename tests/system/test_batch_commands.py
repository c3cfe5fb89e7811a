"""`sleipnir batch` against real processes: from a file of rows to a file of results."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import RedisServer, Stack, wait_until, write_agent

DOUBLES = """
name: doubles
version: sleipnir/1
start: double
state: {n: {type: int}}
nodes:
  double: {type: function, call: "steps.py:double"}
  done: {type: end, output: "{{initial_prompt}}: {{twice}}"}
"""
STEPS = """
from pathlib import Path

def double(state):
    if state["n"] % 30 == 29 and not Path("FOLDER/mended").exists():
        raise ValueError("the row is broken")
    return {"twice": state["n"] * 2, "_next": "done"}
"""


@pytest.fixture
def fleet(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    write_agent(tmp_path / "agents" / "doubles", DOUBLES, steps_py=STEPS.replace("FOLDER", str(tmp_path)))
    prefix = f"cli-{request.node.name[:20]}"
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=tmp_path / "agents") as stack:
        yield stack


def ok(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_batch_from_its_rows_to_its_results(fleet: Stack, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,prompt,n\n" + "".join(f"k{n},row {n},{n}\n" for n in range(60)) + "kx,row x,x\n")
    submit = ["batch", "submit", "doubles", str(rows), "--key", "id", "--name", "monday"]
    done = fleet.sleipnir(*submit)
    batch = ok(done, 1)
    assert f"{rows}:62: " in done.stderr
    assert f"▸ 60 rows added to batch {batch}; 1 bad row left out" in done.stderr
    again = fleet.sleipnir(*submit, "--json")
    assert json.loads(ok(again, 1)) == {"id": batch, "added": 0, "known": 60, "bad": 1}
    assert f"nothing is added: batch {batch} has 60 rows of these already; 1 bad row left out" in again.stderr

    assert "is paused" in (fleet.sleipnir("batch", "pause", "monday").stderr)
    shown = json.loads(ok(fleet.sleipnir("batch", "show", batch[:7], "--json")))
    assert (shown["id"], shown["state"], shown["total"], shown["plan"]["name"]) == (batch, "paused", 60, "monday")
    assert batch in ok(fleet.sleipnir("batch", "ls"))
    pressed = {"_SLEIPNIR_COMPLETE": "bash_complete", "COMP_WORDS": "sleipnir batch show ", "COMP_CWORD": "3"}
    offered = [f"plain,{batch}", "plain,monday"]
    wait_until(lambda: ok(fleet.sleipnir(**pressed)).splitlines() == offered, "it is completed in time")
    ok(fleet.sleipnir("batch", "parallel", batch, "7"))
    early = fleet.sleipnir("batch", "results", batch, "-o", str(tmp_path / "early.jsonl"))
    assert "early.jsonl: 0 results written, 0 of 60 rows in all; 60 have not ended" in early.stderr

    fleet.start_scheduler()
    fleet.start_worker()
    ok(fleet.sleipnir("batch", "resume", "monday"))
    watched = fleet.sleipnir("batch", "watch", "monday")
    assert ok(watched, 1) == ""
    assert "done: 60 of 60 rows are over: 58 completed, 2 failed; " in watched.stderr
    assert f"batch errors {batch}   shows why rows failed" in watched.stderr

    errors = json.loads(ok(fleet.sleipnir("batch", "errors", batch, "--json")))
    assert [(group["node"], group["count"], group["keys"]) for group in errors] == [("double", 2, ["k29", "k59"])]
    failed = json.loads(ok(fleet.sleipnir("ps", "--batch", batch, "--status", "failed", "--json")))
    assert [run["batch"] for run in failed] == [f"{batch}/59", f"{batch}/29"]

    out, table = tmp_path / "out.jsonl", tmp_path / "out.csv"
    ok(fleet.sleipnir("batch", "results", batch, "-o", str(out)))
    ok(fleet.sleipnir("batch", "results", batch, "-o", str(table), "--as-they-come"))
    assert [(line["row"], line["key"]) for line in lines(out)] == [(n + 1, f"k{n}") for n in range(60)]
    assert lines(out)[3]["output"] == "row 3: 6"
    (tmp_path / "mended").touch()
    assert "2 failed rows will continue" in fleet.sleipnir("batch", "retry-failed", batch).stderr
    assert ok(fleet.sleipnir("batch", "watch", batch)) == ""
    for file in (out, table):  # cut off in the midst of a line, as a full disk leaves it
        file.write_bytes(file.read_bytes()[:-10])
        ok(fleet.sleipnir("batch", "results", batch, "-o", str(file)))
    last = {line["key"]: line for line in lines(out)}
    assert {key: line["output"] for key, line in last.items()} == {f"k{n}": f"row {n}: {2 * n}" for n in range(60)}
    with table.open(newline="") as file:
        cells = {row["key"]: row["output"] for row in csv.DictReader(file)}
    assert cells == {f"k{n}": f"row {n}: {2 * n}" for n in range(60)}
    assert len(lines(out)) == 61, "row 29 before and after its retry; the line of row 59 was cut off"
    assert ok(fleet.sleipnir("batch", "results", "monday")).count("\n") == 59


def test_rows_come_from_a_pipe_and_a_canary_waits_for_a_decision(fleet: Stack, tmp_path: Path) -> None:
    fleet.start_scheduler()
    fleet.start_worker()
    rows = [json.dumps({"prompt": f"row {n}", "n": 2 * n}) + "\n" for n in range(60)]
    command = [sys.executable, "-m", "sleipnir", "batch", "submit", "doubles", "-", "--canary", "4", "--name", "piped"]
    pipe = subprocess.PIPE
    broken = subprocess.Popen(command, env=fleet.environment(), stdin=pipe, stderr=pipe, stdout=pipe, text=True)
    assert broken.stdin is not None
    assert broken.stderr is not None
    broken.stdin.write("".join(rows) + "no row\n")
    broken.stdin.flush()
    assert broken.stderr.readline().startswith("standard input:61:1: the row is not JSON")
    broken.send_signal(signal.SIGINT)  # the first fifty rows have been sent
    out, told = broken.communicate(timeout=60)
    assert (broken.returncode, out) == (130, "")
    assert " has 50 rows of these, which run" in told
    done = subprocess.run(
        command, env=fleet.environment(), input="".join(rows), capture_output=True, text=True, timeout=60, check=False
    )
    batch = ok(done)
    assert f"10 rows added to batch {batch}, 50 were already present" in done.stderr
    watching = subprocess.Popen(
        [sys.executable, "-m", "sleipnir", "batch", "watch", batch],
        env=fleet.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    said = ""
    while "Continue with 56 more?" not in said:
        line = watching.stderr.readline()
        assert line, said
        said += line
    assert f"batch resume {batch}" in said + watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130
    assert f"batch watch {batch}    to see it" in watching.stderr.read()
    watching.stderr.close()
    ok(fleet.sleipnir("batch", "resume", batch))
    file = tmp_path / "out.jsonl"
    ok(fleet.sleipnir("batch", "results", batch, "-o", str(file), "--follow"))
    assert [line["status"] for line in lines(file)] == ["completed"] * 60
    with fleet.client() as client:
        wait_until(lambda: client.open_batch("piped").info().is_over, "the batch is done")
    assert "had already ended" in fleet.sleipnir("batch", "cancel", batch).stderr
