"""A subgraph: a compiled graph is a node of another one; the keys that both declare go in and come out."""

from typing import TypedDict

from sleipnir import END, START, StateGraph


class Review(TypedDict):
    draft: str
    notes: str


class Letter(TypedDict):
    topic: str
    draft: str


def read(state: Review) -> dict:
    return {"notes": "too short" if len(state["draft"]) < 20 else "good"}


def revise(state: Review) -> dict:
    return {"draft": state["draft"] + " and more"} if state["notes"] == "too short" else {}


review = StateGraph(Review).add_sequence([read, revise]).add_edge(START, "read").compile(name="review")


def write(state: Letter) -> dict:
    return {"draft": f"About {state['topic']}"}


graph = (
    StateGraph(Letter)
    .add_node(write)
    .add_node("review", review)
    .add_edge(START, "write")
    .add_edge("write", "review")
    .add_edge("review", END)
    .compile(name="letter")
)

if __name__ == "__main__":
    for namespace, update in graph.stream({"topic": "bells"}, subgraphs=True):
        print("review" if namespace else "letter", update)
