"""The sql agent, run to its ends on a real SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sleipnir.testing import Reply
from tests.shipped import AGENTS, Lab

AGENT = AGENTS / "sql"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((AGENT / "example" / "shop.sql").read_text())
    return file


def ask(file: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(sql).fetchall()


def statement(sql: str, *, is_write: bool = False) -> str:
    """What the model says."""
    return json.dumps({"sql": sql, "is_write": is_write, "explanation": f"Explained: {sql[:20]}"})


BY_CITY = "SELECT city AS City, count(*) AS Customers FROM customers GROUP BY city ORDER BY 2 DESC, 1"
RAISE = "UPDATE articles SET price_cents = price_cents * 2 WHERE name = 'Clapper'"


def test_a_question_is_answered_with_its_rows_and_what_they_mean(lab: Lab, shop: Path) -> None:
    ended = lab.run(
        "sql", "Where do they live?", says=[statement(BY_CITY), "Most live in Oslo."], here=shop.parent,
        database="shop.db", max_rows="2",
    )  # fmt: skip
    assert ended.output == (
        "Most live in Oslo.\n\n"
        "| City | Customers |\n| --- | ---: |\n| Oslo | 2 |\n| Izmir | 1 |\n\n"
        f"the first 2 rows, by: {BY_CITY}"
    )
    first, last = ended.requests
    assert "CREATE TABLE customers" in first.prompt and "-- 5 rows" in first.prompt
    assert "Anna Berg" not in first.prompt, "to write a query the model needs no rows"
    assert "| Oslo | 2 |" in last.prompt


def test_a_failed_statement_is_corrected_and_rows_count_without_a_summary(lab: Lab, shop: Path) -> None:
    says = [statement("SELECT town FROM customers"), statement(BY_CITY + ";"), Reply(status=400)]
    ended = lab.run("sql", "", says=says, answers=[("ask", "Where?")], here=shop.parent, database=str(shop))
    assert "Your last statement was:\nSELECT town FROM customers" in ended.requests[1].prompt
    assert "It failed: no such column: town" in ended.requests[1].prompt
    assert ended.output.startswith("| City | Customers |")


def test_a_write_waits_for_approval_regardless_of_the_models_description(lab: Lab, shop: Path) -> None:
    ended = lab.run(
        "sql", "Double the clapper's price", says=[statement(RAISE, is_write=False)], answers=[("approve", "run")],
        here=shop.parent, database="shop.db",
    )  # fmt: skip
    assert RAISE in ended.questions[0]
    assert "Tried on a copy, it works. It changes 1 row." in ended.questions[0]
    assert ended.output.endswith(f"1 row changed, by: {RAISE}")
    assert ask(shop, "SELECT price_cents FROM articles WHERE name = 'Clapper'") == [(14800,)]


def test_an_objection_goes_back_to_the_model_and_a_dropped_write_changes_nothing(lab: Lab, shop: Path) -> None:
    says = [statement(RAISE), statement(RAISE.replace("2", "3"))]
    answers = [("approve", "three times, please"), ("approve", "drop")]
    ended = lab.run("sql", "Raise it", says=says, answers=answers, here=shop.parent, database="shop.db")
    assert "It was not run. The person says: three times, please" in ended.requests[1].prompt
    assert ended.output.startswith(
        "Nothing was changed. The statement was: UPDATE articles SET price_cents = price_cents * 3"
    )
    assert ask(shop, "SELECT price_cents FROM articles WHERE name = 'Clapper'") == [(7400,)]


def test_an_impossible_statement_is_found_before_a_person_is_asked_and_given_up_after_three_tries(
    lab: Lab, shop: Path
) -> None:
    says = [
        statement("UPDATE articles SET stock = -1", is_write=True),
        statement("SELECT 1; DROP TABLE orders"),
        statement("ATTACH 'other.db' AS other"),
    ]
    ended = lab.run("sql", "Do harm", says=says, here=shop.parent, database="shop.db")
    assert "CHECK constraint failed: stock >= 0" in ended.requests[1].prompt
    assert "one statement at a time" in ended.requests[2].prompt
    assert ended.output.startswith("The question was not answered. 3 statements failed.")
    assert "ATTACH is not allowed" in ended.output
    assert not (shop.parent / "other.db").exists()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.db", "none.db does not exist"), ("notes.txt", "is not an SQLite database"), (".", "is not a file")],
)
def test_a_run_without_a_database_ends_with_what_to_do(lab: Lab, shop: Path, name: str, problem: str) -> None:
    (shop.parent / "notes.txt").write_text("SELECT")
    ended = lab.run("sql", "How many?", here=shop.parent, database=name)
    assert ended.output.startswith("No database was read. ") and problem in ended.output
    assert ended.requests == []


def test_without_a_model_the_run_reports_what_is_missing(lab: Lab, shop: Path) -> None:
    ended = lab.run("sql", "How many?", says=[Reply(status=401)], here=shop.parent, database="shop.db")
    assert ended.output.startswith("The question was not answered. LLM node failed: ")


def check(shop: Path, sql: str) -> dict[str, Any]:
    """What scripts/check.py says of a statement."""
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "LLM_AGENT_VAR_DATABASE": str(shop)}
    state = json.dumps({"sql": sql, "attempts": 0})
    script = [sys.executable, str(AGENT / "scripts" / "check.py")]
    done = subprocess.run(script, env=env | {"GRAPH_STATE": state}, capture_output=True, text=True, check=True)
    output = json.loads(done.stdout)
    assert isinstance(output, dict)
    return output


@pytest.mark.parametrize(
    ("sql", "way"),
    [
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT max(i) FROM n", "read"),
        ("VALUES (1)", "read"),
        ("-- a comment\nSELECT 1", "read"),
        ("DELETE FROM orders RETURNING id", "approve"),
        ("CREATE TABLE t AS SELECT * FROM orders", "approve"),
        ("DROP TABLE orders", "approve"),
        ("REPLACE INTO articles (id, name, price_cents) VALUES (1, 'Gong', 5)", "approve"),
        ("PRAGMA writable_schema = 1", "write_statement"),
        ("BEGIN", "write_statement"),
        ("VACUUM INTO 'copy.db'", "write_statement"),
        ("SELECT ?", "write_statement"),
        (" ; ", "write_statement"),
    ],
)
def test_sqlite_reports_the_effects_of_a_statement_and_a_trial_changes_nothing(shop: Path, sql: str, way: str) -> None:
    before = shop.read_bytes()
    assert check(shop, sql)["_next"] == way
    assert shop.read_bytes() == before


def test_the_trial_reports_changes_of_rows_and_of_the_schema(shop: Path) -> None:
    assert check(shop, "DELETE FROM orders RETURNING id")["effect"] == "Tried on a copy, it works. It changes 6 rows."
    assert check(shop, "DROP TABLE orders")["effect"].endswith("and the schema.")
