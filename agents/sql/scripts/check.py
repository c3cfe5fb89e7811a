"""Compile the statement and see what it would touch; try a write on a copy of the database.

In:  `sql`, `attempts`.
Out: `is_write` as SQLite sees it, whatever the model said; `attempts`; of a write `effect`, what it did to the copy.
     `_next` is `read`, `approve`, `write_statement` with `advice`, or `failed` with `problem`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import database

MAX_COPY_BYTES = 256 * 2**20  # a larger database is not copied for a trial


def main() -> None:
    state = database.state()
    sql, attempts = str(state["sql"]).strip().rstrip(";").strip(), int(state["attempts"]) + 1
    try:
        writes = database.is_write(sql)
        effect = trial(sql) if writes else ""
    except (sqlite3.Error, database.Refused) as error:
        database.try_again(sql, str(error), attempts)
        return
    database.finish(
        sql=sql, is_write=writes, attempts=attempts, effect=effect, advice="", _next="approve" if writes else "read"
    )


def trial(sql: str) -> str:
    """The effects of the write, measured on a copy in memory. Raises sqlite3.Error if it fails there."""
    if database.path().stat().st_size > MAX_COPY_BYTES:
        return "The database is too large to try the change on a copy first."
    with closing(database.connect()) as original, closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        original.backup(copy)
        database.bounded(copy)
        before = tables(copy)
        changed = database.plural(database.run(copy, sql), "row")
        schema = " and the schema" if tables(copy) != before else ""
    return f"Tried on a copy, it works. It changes {changed}{schema}."


def tables(connection: sqlite3.Connection) -> list[tuple]:
    return connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()


if __name__ == "__main__":
    main()
