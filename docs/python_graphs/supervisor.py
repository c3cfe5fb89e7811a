"""A supervisor sends work to the member of a team that it fits, until nothing is left."""

import operator
from typing import Annotated, Literal, TypedDict

from sleipnir import END, START, Command, StateGraph


class State(TypedDict):
    work: list[str]
    results: Annotated[list[str], operator.add]


def supervisor(state: State) -> Command[Literal["mathematician", "writer", "__end__"]]:
    if not state["work"]:
        return Command(goto=END)
    is_sum = state["work"][0].replace("+", "").replace(" ", "").isdigit()
    return Command(goto="mathematician" if is_sum else "writer")


def mathematician(state: State) -> dict:
    first, *rest = state["work"]
    return {"results": [f"{first} = {sum(int(part) for part in first.split('+'))}"], "work": rest}


def writer(state: State) -> dict:
    first, *rest = state["work"]
    return {"results": [first.capitalize() + "."], "work": rest}


graph = (
    StateGraph(State)
    .add_node(supervisor)
    .add_node(mathematician)
    .add_node(writer)
    .add_edge(START, "supervisor")
    .add_edge("mathematician", "supervisor")
    .add_edge("writer", "supervisor")
    .compile(name="supervisor")
)

if __name__ == "__main__":
    print(*graph.invoke({"work": ["2 + 3 + 4", "the bell is cracked"]})["results"], sep="\n")
