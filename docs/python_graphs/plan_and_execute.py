"""Plan and execute: a planner lists steps, an executor takes one at a time, and the planner looks at what is left."""

import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict):
    goal: str
    plan: list[str]
    done: Annotated[list[str], operator.add]
    answer: str


def make_plan(state: State) -> dict:
    return {"plan": [f"find {state['goal']}", f"compare {state['goal']}", "write it down"]}


def execute(state: State) -> dict:
    return {"done": [f"{state['plan'][0]}: done"], "plan": state["plan"][1:]}


def replan(state: State) -> dict:
    return {} if state["plan"] else {"answer": f"{len(state['done'])} steps for {state['goal']}"}


def is_done(state: State) -> bool:
    return "answer" in state


graph = (
    StateGraph(State)
    .add_sequence([make_plan, execute, replan])
    .add_edge(START, "make_plan")
    .add_conditional_edges("replan", is_done, {True: END, False: "execute"})
    .compile(name="plan_and_execute")
)

if __name__ == "__main__":
    for update in graph.stream({"goal": "train fares"}):
        print(update)
