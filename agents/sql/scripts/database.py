"""The common code of the scripts of this agent: the state, the database, and the rights of a statement."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

MAX_CELL = 200  # characters of one value in a table
MAX_STATEMENTS = 3  # that the model may write until one works: the first and two repairs
LONGEST_S = 60.0  # that one statement may take

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
REFUSED = {
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
    sqlite3.SQLITE_TRANSACTION: "BEGIN, COMMIT and ROLLBACK",
    sqlite3.SQLITE_SAVEPOINT: "SAVEPOINT",
}


class Refused(Exception):
    """The statement is not one that this agent runs."""


def state() -> dict:
    return json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))


def finish(**output: object) -> None:
    """A script speaks once: one JSON object on stdout."""
    print(json.dumps(output, ensure_ascii=False))


def path() -> Path:
    """The file that the variable `database` names."""
    asked = os.path.expanduser(os.environ.get("LLM_AGENT_VAR_DATABASE", "").strip())
    return Path(os.environ.get("GRAPH_CALLER_DIR") or ".", asked)


def connect(*, writes: bool = False) -> sqlite3.Connection:
    """One connection, read-only by default. It never creates a file. The caller closes it."""
    mode = "rw" if writes else "ro"
    connection = sqlite3.connect(
        f"{path().absolute().as_uri()}?mode={mode}", uri=True, timeout=10, isolation_level=None
    )
    bounded(connection)
    return connection


def bounded(connection: sqlite3.Connection) -> None:
    """Every statement on this connection is interrupted after LONGEST_S."""
    deadline = time.monotonic() + LONGEST_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)


def is_write(sql: str) -> bool:
    """Whether the statement would change the database. It is compiled, not run.

    Raises Refused for a statement that this agent never runs, sqlite3.Error for invalid SQL or one that does not fit
    the schema.
    """
    if not sql.strip():
        raise Refused("the statement is empty")
    seen: set[int] = set()
    refused: list[str] = []

    def note(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        seen.add(action)
        if action in REFUSED:
            refused.append(REFUSED[action])
        return sqlite3.SQLITE_OK

    with closing(connect()) as connection:
        connection.set_authorizer(note)
        try:
            connection.execute(f"EXPLAIN {sql}").close()
        except (sqlite3.ProgrammingError, sqlite3.Warning) as error:
            raise Refused(f"it cannot be run as one statement: {error}") from error
    if not seen:
        raise Refused("only statements that read or change data are run (no VACUUM, no EXPLAIN)")
    if refused:
        raise Refused(f"{refused[0]} is not allowed")
    return not seen <= READS


def run(connection: sqlite3.Connection, sql: str) -> int:
    """Run a statement that writes to its end, and say how many rows it has changed, those of triggers too."""
    before = connection.total_changes
    connection.execute(sql).fetchall()  # of RETURNING, which works row by row
    return connection.total_changes - before


def try_again(sql: str, problem: str, attempts: int) -> None:
    """Let the model correct its statement, or give up after the last attempt."""
    if attempts >= MAX_STATEMENTS:
        finish(problem=f"{attempts} statements failed. The last one was:\n\n    {sql}\n\n{problem}", _next="failed")
        return
    advice = f"\nYour last statement was:\n{sql}\nIt failed: {problem}\nWrite one that works."
    finish(advice=advice, attempts=attempts, _next="write_statement")


def plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def markdown(columns: list[str], rows: list[tuple]) -> str:
    """A Markdown table. Long values are cut; numbers are aligned to the right."""
    numeric = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    rule = ["---:" if right else "---" for right in numeric]
    lines = [columns, rule, *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[cell(name) for name in lines[0]], *lines[1:]])


def cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"({plural(len(value), 'byte')})"
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
