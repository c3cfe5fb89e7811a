"""Read what the model has to know of the database: its tables and views, never its rows.

In:  `initial_prompt`, the question; LLM_AGENT_VAR_DATABASE.
Out: `question`, `tables`, or `problem` when there is no database. `_next`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import database

MAX_SCHEMA = 60_000  # characters; a larger schema does not help a model


def main() -> None:
    file = database.path()
    problem = wrong_with(file)
    if problem:
        database.finish(problem=problem, _next="no_database")
        return
    try:
        tables = schema()
    except sqlite3.Error as error:
        database.finish(problem=f"{file.name} cannot be read as an SQLite database: {error}.", _next="no_database")
        return
    if not tables:
        database.finish(problem=f"{file.name} has no tables.", _next="no_database")
        return
    question = str(database.state().get("initial_prompt", "")).strip()
    database.finish(question=question, tables=tables, _next="write_statement" if question else "ask")


def wrong_with(file) -> str:
    if not file.exists():
        return f"{file} does not exist. Name an SQLite file: --var database=FILE"
    if not file.is_file():
        return f"{file} is not a file. Name an SQLite file: --var database=FILE"
    with file.open("rb") as opened:
        if not opened.read(16).startswith(b"SQLite format 3"):
            return f"{file.name} is not an SQLite database."
    return ""


def schema() -> str:
    with closing(database.connect()) as connection:
        objects = connection.execute(
            "SELECT type, name, sql FROM sqlite_schema"
            " WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' AND sql IS NOT NULL ORDER BY type, name"
        ).fetchall()
        parts = [f"{sql.strip()};{size(connection, name) if kind == 'table' else ''}" for kind, name, sql in objects]
    text = "\n\n".join(parts)
    return text if len(text) <= MAX_SCHEMA else text[:MAX_SCHEMA] + "\n-- and more, which was cut"


def size(connection: sqlite3.Connection, name: str) -> str:
    quoted = name.replace('"', '""')
    try:
        (count,) = connection.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()
    except sqlite3.Error:  # a virtual table whose module is missing, or a count that takes too long
        return ""
    return f"  -- {database.plural(count, 'row')}"


if __name__ == "__main__":
    main()
