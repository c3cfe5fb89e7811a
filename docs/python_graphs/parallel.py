"""Parallel branches: both write one key, whose reducer combines the writes in the order of the nodes' names."""

import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict):
    text: str
    findings: Annotated[list[str], operator.add]
    report: str


def count_words(state: State) -> dict:
    return {"findings": [f"{len(state['text'].split())} words"]}


def find_names(state: State) -> dict:
    return {"findings": [f"names: {', '.join(word for word in state['text'].split() if word.istitle())}"]}


def report(state: State) -> dict:
    return {"report": "; ".join(state["findings"])}


graph = (
    StateGraph(State)
    .add_node(find_names)
    .add_node(count_words)
    .add_node("write_report", report)
    .add_edge(START, "count_words")
    .add_edge(START, "find_names")
    .add_edge(["count_words", "find_names"], "write_report")
    .add_edge("write_report", END)
    .compile(name="parallel")
)

if __name__ == "__main__":
    print(graph.invoke({"text": "yesterday Ada met Grace"})["report"])
