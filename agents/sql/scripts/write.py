"""Run the statement that a person has approved: all of it, or nothing.

In:  `sql`, `attempts`.
Out: `rows`. `_next` is `changed`, `write_statement` with `advice`, or `failed` with `problem`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import database


def main() -> None:
    state = database.state()
    try:
        database.is_write(state["sql"])  # the schema may have changed while a person thought about it
        with closing(database.connect(writes=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            changed = database.run(connection, state["sql"])
            connection.execute("COMMIT")
    except (sqlite3.Error, database.Refused) as error:
        database.try_again(state["sql"], str(error), state["attempts"])
        return
    database.finish(rows=f"{database.plural(changed, 'row')} changed", _next="changed")


if __name__ == "__main__":
    main()
