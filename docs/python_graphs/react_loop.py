"""A ReAct loop: think, act, observe, until the thought is an answer. `recursion_limit` bounds it."""

import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, Command, StateGraph

FACTS = {"capital of Norway": "Oslo", "population of Oslo": "717,710"}


class State(TypedDict):
    question: str
    steps: Annotated[list[str], operator.add]
    answer: str


def model(steps: list[str]) -> str:
    """Stands for a model that writes `look up: ...` or `answer: ...`."""
    if not steps:
        return "look up: capital of Norway"
    if len(steps) == 2:
        return f"look up: population of {steps[-1]}"
    return f"answer: {steps[-1]}"


def think(state: State) -> Command:
    action, _, text = model(state["steps"]).partition(": ")
    if action == "answer":
        return Command(update={"answer": text}, goto=END)
    return Command(update={"steps": [text]}, goto="act")


def act(state: State) -> dict:
    return {"steps": [FACTS[state["steps"][-1]]]}


graph = (
    StateGraph(State)
    .add_node("think", think, destinations=("act", END))
    .add_node("act", act)
    .add_edge(START, "think")
    .add_edge("act", "think")
    .compile(name="react")
)

if __name__ == "__main__":
    done = graph.invoke({"question": "How many people live in Norway's capital?"}, {"recursion_limit": 20})
    print(*done["steps"], done["answer"], sep="\n")
