"""Reflection: a writer and a critic take turns until the critic is content, or three drafts exist."""

import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict):
    task: str
    drafts: Annotated[list[str], operator.add]
    critique: str


def generate(state: State) -> dict:
    more = f" ({state['critique']})" if "critique" in state else ""
    return {"drafts": [f"Draft {len(state['drafts']) + 1} of {state['task']}{more}"]}


def reflect(state: State) -> dict:
    return {"critique": "name a source" if len(state["drafts"]) == 1 else "good"}


def decide(state: State) -> str:
    return END if state["critique"] == "good" or len(state["drafts"]) >= 3 else "generate"


graph = (
    StateGraph(State)
    .add_sequence([generate, reflect])
    .add_edge(START, "generate")
    .add_conditional_edges("reflect", decide, ["generate", END])
    .compile(name="reflection")
)

if __name__ == "__main__":
    print(*graph.invoke({"task": "a note on bells"})["drafts"], sep="\n")
