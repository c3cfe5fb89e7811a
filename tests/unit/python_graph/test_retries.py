"""Retries of a graph in this process, as the caller of its stream sees them."""

from __future__ import annotations

from typing import TypedDict

import pytest

from sleipnir import START, RetryPolicy, StateGraph, get_stream_writer


class State(TypedDict, total=False):
    tries: int


@pytest.mark.conformance("RY-13")
def test_the_next_try_begins_when_the_caller_is_done_with_the_failed_one() -> None:
    log: list[str] = []

    def work(state: State) -> State:
        tries = sum(line.startswith("try") for line in log) + 1
        log.append(f"try {tries}")
        get_stream_writer()(tries)
        if tries < 3:
            raise ConnectionError("gone")
        return {"tries": tries}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
    graph = StateGraph(State).add_node("work", work, retry_policy=policy).add_edge(START, "work").compile()
    for chunk in graph.stream({}, stream_mode="custom"):
        log.append(f"handled {chunk}")
    assert log == ["try 1", "handled 1", "try 2", "handled 2", "try 3", "handled 3"]
