"""`sleipnir compare` against real processes: two runs, and the rows of two batches."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.async_client import AsyncClient
from sleipnir.client.client import Batch, Client, Run
from sleipnir.errors import BatchNotFound, RunNotFound, UsageError
from sleipnir.runs.comparison import Comparison, summary_of
from tests.processes import Stack, write_agent

GRAPH = """\
version: sleipnir/1
name: chain
state:
  n: {type: int, default: 0}
start: first
nodes:
  first: {type: function, call: "work.py:first", next: [left, right]}
  left: {type: function, call: "work.py:left", next: third}
  right: {type: function, call: "work.py:right", next: third}
  third: {type: function, call: "work.py:third", next: done}
  done: {type: end, output: "{{n}}: {{result}}"}
"""
WORK = """
import random, time
def first(state): return {"mark": "<b>"}
def left(state): time.sleep(random.random() / 50); return {}
def right(state): time.sleep(random.random() / 50); return {}
def third(state): %s
"""


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def agent(place: Path, third: str) -> Path:
    return write_agent(place / "chain", GRAPH, work_py=WORK % third)


BROKEN = 'raise ValueError("no")'
TWICE, THRICE = (f'return {{"result": state["n"] * {times}}}' for times in (2, 3))


def ended(run: Run) -> Run:
    run.wait(60)
    return run


def batch(client: Client, folder: Path, rows: list[int], name: str = "") -> Batch:
    made = client.batch(folder, ({"key": f"k{n}", "n": n} for n in rows), key="key", name=name)
    made.wait(120)
    return made


def test_a_failed_run_and_its_mended_fork_side_by_side(client: Client, stack: Stack, tmp_path: Path) -> None:
    source = ended(client.submit(agent(tmp_path, BROKEN), state={"n": 4}))
    fork = ended(source.fork(before="third", agent=agent(tmp_path, TWICE)))
    found = client.compare(source, fork.id[:8])
    assert found.a is not None and found.b is not None
    assert (found.a.status, found.b.status, found.b.output) == ("failed", "completed", "4: 8")
    assert found.changed == ("status", "output", "error", "state", "path")
    assert found.state.added == {"result": 8} and not found.state.changed
    assert sorted(found.state.removed) == ["_error", "last_error"]
    assert found.a.path == ("first", "left", "right", "third")
    assert found.b.path == ("first", "left", "right", "third", "done"), "it begins with the past of its source"
    shown = stack.sleipnir("compare", source.id, fork.id, "--judge", "b.status == 'completed'")
    assert shown.returncode == 0, shown.stderr
    assert "changed   status, output, error, state (_error, last_error, result), path" in shown.stdout
    assert "judge     better" in shown.stdout and "first > left > right > third > done" in shown.stdout
    again = stack.sleipnir("compare", fork.id, fork.id, "--exit-code")
    assert again.returncode == 0 and "changed   nothing" in again.stdout
    assert stack.sleipnir("compare", source.id, fork.id, "--exit-code").returncode == 1


def test_rows_of_two_batches_with_the_same_key_side_by_side(client: Client, stack: Stack, tmp_path: Path) -> None:
    first = batch(client, agent(tmp_path, TWICE), list(range(600)), "mo<n>day")
    folder = agent(tmp_path, THRICE)
    second = batch(client, folder, [n for n in range(599, -1, -1) if n % 200] + [1000])
    files = [tmp_path / "found.csv", tmp_path / "found.html"]
    judge = "b.state.result > a.state.result"
    done = stack.sleipnir(
        "compare", "mo<n>day", second.id, "--json", "--csv", str(files[0]), "--html", str(files[1]), "--judge", judge
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert (read["kind"], read["a"], read["b"]) == ("batch", first.id, second.id)
    summary = read["summary"]
    counts = {name: summary[name] for name in ("rows", "same", "changed", "only_a", "only_b", "unfinished")}
    assert counts == {"rows": 601, "same": 0, "changed": 597, "only_a": 3, "only_b": 1, "unfinished": 0}
    assert summary["verdicts"] == {"better": 597, "worse": 0, "equal": 0, "undecided": 0}
    assert summary["differing"] == {"status": 0, "output": 597, "error": 0, "state": 597, "path": 0}
    rows = {row["key"]: row for row in read["rows"]}
    assert len(rows) == 601 and rows["k7"]["state"]["changed"] == {"result": {"a": 14, "b": 21}}
    assert (rows["k7"]["a"]["id"], rows["k7"]["b"]["output"]) == (first.run_id(7), "7: 21")
    assert (rows["k0"]["outcome"], rows["k0"]["b"], rows["k1000"]["outcome"]) == ("only_a", None, "only_b")
    with files[0].open(newline="") as file:
        records = {record["key"]: record for record in csv.DictReader(file)}
    assert {key: record["outcome"] for key, record in records.items()} == {k: row["outcome"] for k, row in rows.items()}
    page = files[1].read_text()
    assert page.count("<tbody") == 601 and "mo&lt;n&gt;day" in page and "<n>" not in page

    text = stack.sleipnir("compare", "mo<n>day", second.id, "--limit", "2")
    assert "rows      601: 0 same, 597 changed, 3 only in a, 1 only in b" in text.stdout
    assert "595 more rows changed" in text.stderr
    assert stack.sleipnir("compare", "mo<n>day", first.id, "--exit-code").returncode == 0
    worse = stack.sleipnir("compare", second.id, first.id, "--exit-code", "--judge", judge)
    assert worse.returncode == 1 and "judge     597 worse" in worse.stdout

    async def count() -> int:
        async with AsyncClient(stack.settings) as asking:
            return len([row async for row in asking.compare_batches(first.id, second.id)])

    assert asyncio.run(count()) == 601


def test_rows_that_have_no_run_or_have_not_ended_are_compared_as_they_are(client: Client, tmp_path: Path) -> None:
    folder = agent(tmp_path, TWICE)
    done = batch(client, folder, [1, 2, 3])
    waiting = client.batch(folder, [{"key": f"k{n}", "n": n} for n in (1, 2)], key="key", canary=1)
    canary_is_over(waiting)
    found: dict[str | None, Comparison] = {row.key: row for row in client.compare_batches(done, waiting)}
    assert found["k1"].outcome == "same"
    assert found["k2"].b is not None
    assert (found["k2"].b.status, found["k2"].changed) == ("waiting", ("status", "output", "state", "path"))
    assert summary_of(found.values()).unfinished == 1
    waiting.cancel()


def canary_is_over(waiting: Batch) -> None:
    for info in waiting.watch(0.05):
        if info.state == "canary":
            return


def test_what_cannot_be_compared_is_refused(client: Client, stack: Stack, tmp_path: Path) -> None:
    folder = agent(tmp_path, TWICE)
    run, made = ended(client.submit(folder)), batch(client, folder, [1])
    for arguments, said in (
        ((run.id, made.id), f"{run.id!r} is a run and {made.id!r} is a batch"),
        ((run.id, "nothing-at-all"), "no run and no batch 'nothing-at-all'"),
        ((run.id, run.id, "--judge", "c.cost > 1"), "'c' does not exist; there are a, b"),
        ((run.id, run.id, "--csv", str(tmp_path / "no" / "file.csv")), "cannot write"),
    ):
        wrong = stack.sleipnir("compare", *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "") and said in wrong.stderr, wrong.stderr
    with pytest.raises(RunNotFound):
        client.compare(run, "aaaaaaaaaaaa")
    with pytest.raises(BatchNotFound):
        client.compare_batches(made, "aaaaaaaaaaaa")
    with pytest.raises(UsageError, match="the judge cannot be used"):
        client.compare(run, run, judge="b.cost <")


JUDGE = """\
version: sleipnir/1
name: judge
start: judge
nodes:
  judge: {type: function, call: "work.py:judge", next: done}
  done: {type: end, output: "{{said}}"}
"""
JUDGING = """
def judge(state):
    a, b = state["a"], state["b"]
    assert f"Answer a:\\n{a}\\n\\nAnswer b:\\n{b}\\n" in state["initial_prompt"]
    assert state["initial_prompt"].startswith("Compare two answers to the same task.\\n\\nThe task:\\nrow ")
    n = int(a.split(":")[0])
    if n == 3: raise ValueError("I cannot say")
    return {"said": {0: "a", 1: " B.", 2: "same"}.get(n, "well, both")}
"""


def test_an_agent_judges_outputs_that_differ(client: Client, stack: Stack, tmp_path: Path) -> None:
    judge = write_agent(tmp_path / "judge", JUDGE, work_py=JUDGING)

    def rows(third: str, numbers: range) -> Batch:
        given = [{"key": f"k{n}", "prompt": f"row {n}", "n": n} for n in numbers]
        made = client.batch(agent(tmp_path, third), given, key="key")
        made.wait(60)
        return made

    odd = '\n    if state["n"] == 6: raise ValueError\n    return {"result": state["n"] // 5 * 5 + (state["n"] < 5)}'
    first, second = rows(TWICE.replace("* 2", "// 5 * 5"), range(8)), rows(odd, range(7))
    done = stack.sleipnir("compare", first.id, second.id, "--judge", str(judge), "--json")
    assert done.returncode == 0, done.stderr
    found = {row["key"]: (row["verdict"], row["why"]) for row in json.loads(done.stdout)["rows"]}
    assert [found[f"k{n}"][0] for n in (0, 1, 2, 5, 6, 7)] == ["worse", "better", "equal", "equal", "worse", None]
    assert found["k3"][0] == found["k4"][0] == "undecided"
    assert "I cannot say" in found["k3"][1] and "said 'well, both', not a, b or same" in found["k4"][1]
    made = client.batches(1)[0]
    assert (made.name, made.total, made.state) == (f"judge of {first.id} and {second.id}", 5, "done")
    assert f"batch {made.id}: 5 of 5 judgements made" in done.stderr
    runs = [first.run_id(1), second.run_id(1)]
    assert client.compare(runs[0], runs[1], judge=judge).verdict == "better"
    assert client.compare(runs[1], runs[0], judge=str(judge)).verdict == "better", "it says b again"
    batches = len(client.batches())
    assert client.compare(runs[0], runs[0], judge=judge).verdict == "equal"
    assert len(client.batches()) == batches, "there was nothing to judge"
    wrong = stack.sleipnir("compare", *runs, "--judge", str(tmp_path / "nowhere"))
    assert wrong.returncode == 2 and "nor is there an agent or a folder of this name" in wrong.stderr
