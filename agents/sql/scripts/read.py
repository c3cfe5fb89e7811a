"""Run a query, on a connection that cannot write.

In:  `sql`, `attempts`; LLM_AGENT_VAR_MAX_ROWS.
Out: `table` and `rows`. `_next` is `summarise`, `write_statement` with `advice`, or `failed` with `problem`.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import database


def main() -> None:
    state = database.state()
    limit = max(1, int(os.environ.get("LLM_AGENT_VAR_MAX_ROWS") or 50))
    try:
        with closing(database.connect()) as connection:
            cursor = connection.execute(state["sql"])
            columns = [column[0] for column in cursor.description]
            rows = cursor.fetchmany(limit + 1)
    except sqlite3.Error as error:
        database.try_again(state["sql"], str(error), state["attempts"])
        return
    more = len(rows) > limit
    shown = f"the first {database.plural(limit, 'row')}" if more else database.plural(len(rows), "row")
    database.finish(table=database.markdown(columns, rows[:limit]), rows=shown, _next="summarise")


if __name__ == "__main__":
    main()
