"""A loop with a condition: a guess is halved until it is close enough."""

from typing import TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict):
    number: float
    guess: float
    rounds: int


def start(state: State) -> dict:
    return {"guess": state["number"], "rounds": 0}


def improve(state: State) -> dict:
    guess = (state["guess"] + state["number"] / state["guess"]) / 2
    return {"guess": guess, "rounds": state["rounds"] + 1}


def is_close(state: State) -> str:
    return "close" if abs(state["guess"] ** 2 - state["number"]) < 1e-6 else "far"


graph = (
    StateGraph(State)
    .add_sequence([start, improve])
    .add_edge(START, "start")
    .add_conditional_edges("improve", is_close, {"close": END, "far": "improve"})
    .compile(name="square_root")
)

if __name__ == "__main__":
    found = graph.invoke({"number": 2})
    print(f"{found['guess']:.4f} after {found['rounds']} rounds")
