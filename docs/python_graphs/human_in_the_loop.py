"""A person decides: the run stops at an approval node and goes on with the answer."""

from typing import TypedDict

from sleipnir import END, START, Command, StateGraph


class State(TypedDict):
    topic: str
    draft: str
    decision: str
    sent: bool


def write(state: State) -> dict:
    return {"draft": f"Dear all, about {state['topic']}."}


def send(state: State) -> dict:
    return {"sent": True}


graph = (
    StateGraph(State)
    .add_node(write)
    .add_approval_node(
        "approve",
        question="Send this?\n{{draft}}",
        options=["yes", "no"],
        routes={"yes": "send", "no": END},
        on_other="write",
        state_updates={"decision": "{{choice}}"},
    )
    .add_node(send)
    .add_edge(START, "write")
    .add_edge("write", "approve")
    .add_edge("send", END)
    .compile(name="letter")
)

if __name__ == "__main__":
    thread = {"configurable": {"thread_id": "1"}}
    asked = graph.invoke({"topic": "bells"}, thread)
    print(asked["__interrupt__"][0].value["question"])
    print(graph.invoke(Command(resume="yes"), thread))
