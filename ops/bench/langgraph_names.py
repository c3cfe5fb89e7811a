"""The public names of LangGraph with their parameters, as JSON: run by the interpreter of the peers' environment.

tests/fixtures/langgraph_names.json keeps what it prints, and docs/from-langgraph.md compares each name with ours.
"""

from __future__ import annotations

import inspect
import json
from importlib.metadata import version
from typing import Any

import langgraph.func
import langgraph.graph
import langgraph.types
from langgraph.graph.state import CompiledStateGraph, StateGraph

CLASSES = {"StateGraph": StateGraph, "CompiledStateGraph": CompiledStateGraph}


def parameters_of(value: Any) -> list[str] | None:
    """The names of the parameters, without `self`; after "*" those that are given by name only. None: it is not
    called."""
    if not callable(value):
        return None
    try:
        named = [parameter for name, parameter in inspect.signature(value).parameters.items() if name != "self"]
    except (TypeError, ValueError):
        return None
    by_name = [parameter.name for parameter in named if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_place = [parameter.name for parameter in named if parameter.kind in kinds]
    return [*by_place, "*", *by_name] if by_name else by_place


def names() -> dict[str, Any]:
    modules = (langgraph.graph, langgraph.types, langgraph.func)
    listed = {
        module.__name__: {name: parameters_of(getattr(module, name)) for name in sorted(module.__all__)}
        for module in modules
    }
    for name, owner in CLASSES.items():
        members = {member: getattr(owner, member) for member in dir(owner) if not member.startswith("_")}
        own = {member: value for member, value in members.items() if is_of_langgraph(owner, member)}
        listed[name] = {member: parameters_of(value) for member, value in sorted(own.items()) if callable(value)}
    return {"version": version("langgraph"), **listed}


def is_of_langgraph(owner: type, member: str) -> bool:
    """Whether a member is LangGraph's, and not one that it inherits from LangChain."""
    defining = next((base for base in owner.__mro__ if member in vars(base)), owner)
    return defining.__module__.startswith("langgraph")


if __name__ == "__main__":
    print(json.dumps(names(), indent=1))
