"""A chatbot with tools: the model answers, or calls tools whose results it then gets."""

from sleipnir import END, START, AIMessage, MessagesState, StateGraph, ToolMessage


def weather(city: str) -> str:
    return {"Oslo": "rain", "Rome": "sun"}.get(city, "unknown")


TOOLS = {"weather": weather}


def model(messages: list) -> AIMessage:
    """Stands for a model: it asks for the weather once, then answers. Call your provider here."""
    last = messages[-1]
    if last.type == "tool":
        return AIMessage(f"In Oslo: {last.content}.")
    return AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "call-1"}])


def chatbot(state: MessagesState) -> dict:
    return {"messages": [model(state["messages"])]}


def tools(state: MessagesState) -> dict:
    calls = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(TOOLS[call["name"]](**call["args"]), tool_call_id=call["id"]) for call in calls]}


def route(state: MessagesState) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


builder = StateGraph(MessagesState)
builder.add_node(chatbot)
builder.add_node(tools)
builder.add_edge(START, "chatbot")
builder.add_conditional_edges("chatbot", route, ["tools", END])
builder.add_edge("tools", "chatbot")
graph = builder.compile(name="chatbot")

if __name__ == "__main__":
    for message in graph.invoke({"messages": "What is the weather in Oslo?"})["messages"]:
        print(f"{message.type}: {message.content or message.tool_calls[0]['name']}")
