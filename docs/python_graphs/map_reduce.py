"""Map and reduce: one visit per topic by Send, all at once, and one that joins their results."""

import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, Send, StateGraph


class State(TypedDict):
    topics: list[str]
    lines: Annotated[list[str], operator.add]
    poem: str


class Topic(TypedDict):
    topic: str


def spread(state: State) -> list[Send]:
    return [Send("write_line", {"topic": topic}) for topic in state["topics"]]


def write_line(state: Topic) -> dict:
    return {"lines": [f"A line about {state['topic']}"]}


def join_lines(state: State) -> dict:
    return {"poem": "\n".join(state["lines"])}


graph = (
    StateGraph(State)
    .add_node(write_line)
    .add_node(join_lines)
    .add_conditional_edges(START, spread, ["write_line"])
    .add_edge("write_line", "join_lines")
    .add_edge("join_lines", END)
    .compile(name="map_reduce")
)

if __name__ == "__main__":
    print(graph.invoke({"topics": ["bells", "bridges", "boats"]})["poem"])
