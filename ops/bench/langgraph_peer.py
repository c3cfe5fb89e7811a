"""LangGraph: a chain of no-op nodes with a checkpointer, `durability="sync"`. Prints its figures as JSON."""

from __future__ import annotations

import sqlite3
from typing import Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from peer_load import Load, OneRun, from_arguments, measure
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool


class State(TypedDict, total=False):
    text: str


def checkpointer(load: Load) -> Any:
    """The set-up of their documentation: a pool for the threads; for SQLite the one connection that they share."""
    if load.sqlite_path:
        return SqliteSaver(sqlite3.connect(load.sqlite_path, check_same_thread=False, timeout=30))
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    return PostgresSaver(
        ConnectionPool(load.store, min_size=load.threads, max_size=load.threads, kwargs=options, open=True)
    )


def prepare(load: Load, _: int) -> OneRun:
    builder = StateGraph(State)
    names = [f"n{i}" for i in range(load.nodes)]
    for name in names:
        builder.add_node(name, lambda state: {})
    for source, target in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(source, target)
    graph = builder.compile(checkpointer=checkpointer(load))

    def one_run(run_id: str) -> None:
        graph.invoke({"text": ""}, {"configurable": {"thread_id": run_id}}, durability="sync")

    return one_run


def make_tables(load: Load) -> None:
    if load.sqlite_path:
        with SqliteSaver.from_conn_string(load.sqlite_path) as saver:
            saver.setup()
    else:
        with PostgresSaver.from_conn_string(load.store) as saver:
            saver.setup()


if __name__ == "__main__":
    wanted = from_arguments(__doc__)
    make_tables(wanted)
    measure(wanted, prepare)
