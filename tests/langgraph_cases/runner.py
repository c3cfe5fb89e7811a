"""Run every case against one package and compare with what LangGraph gave.

    python runner.py langgraph               all cases, against the recorded outputs
    python runner.py sleipnir 05 12          only some
    python runner.py sleipnir --texts        compare the texts of the package's own errors too
    python runner.py sleipnir --cases DIR    cases in another folder
    python runner.py langgraph --record      write the outputs again

test_cases.py runs the same cases step by step.

A case says `from PKG import ...`; PKG is the package under test, whichever of its modules holds the name.
`build()` gives the compiled graph, `STEPS` what is done with it, one after the other, on one thread unless a
step says `thread`. A step is a dict:

    do: invoke | stream | ainvoke | astream    with input, and any keyword of the call (stream_mode, context, ...)
    do: resume                                 invoke(Command(resume=value)); `answers` maps the VALUE of a pending
                                               interrupt to its answer, and is sent as a map by interrupt id
    do: state | history                        get_state / get_state_history, newest first
    do: update_state                           with values, as_node
    do: fn                                     `fn(graph, config)`, for what the others cannot say
    config: {...}                              merged into the config
    at: {"next": [...]}                        use the newest checkpoint whose `next` is this ("step": n also works)
    mode: "stream" on resume                   stream instead of invoke
    unordered: True                            the chunks may come in any order
    loose: True                                run, but compared only for langgraph itself: a package may be stricter
                                               (refuse what langgraph ignores) or kinder (need no checkpointer)

Normal form of an output: no ids, no times, tuples as lists, configs as "<config>", exceptions as {"error", "text"},
messages as {"role", "content", ...}. An error counts as equal when the recorded type is among the bases of the one
raised; its text is compared only where the case's own source contains it, or with --texts.
`IN_PROCESS = True` in a case: it looks at module-level memory, so it only makes sense where nodes run in this process.
"""

import argparse
import asyncio
import dataclasses
import difflib
import importlib
import importlib.util
import json
import logging
import pathlib
import re
import sys
import traceback
import types
import uuid
import warnings

MODULES = (
    "", ".graph", ".graph.message", ".graph.state", ".types", ".func", ".runtime", ".config", ".errors", ".prebuilt",
    ".checkpoint.memory", ".cache.memory", ".store.memory", ".managed", ".constants", ".channels",
)  # fmt: skip
# langgraph's messages are langchain-core's, which langgraph itself requires.
EXTRA = {"langgraph": ("langchain_core.messages", "langchain_core.runnables")}
PROGRAMS = pathlib.Path(__file__).parent / "programs"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}
MESSAGE_FIELDS = ("id", "name", "tool_calls", "tool_call_id")
CALL_KEYS = {
    "do", "input", "config", "at", "thread", "unordered", "value", "answers", "values", "as_node", "fn", "mode",
    "loose",
}  # fmt: skip


def package(name):
    """A module PKG holding every public name of the package under test."""
    wanted = [name + suffix for suffix in MODULES] + list(EXTRA.get(name, ()))
    found = []
    for module in wanted:
        try:
            found.append(importlib.import_module(module))
        except ModuleNotFoundError as missing:
            if missing.name and not module.startswith(missing.name):
                raise
    if not found:
        sys.exit(f"no module {name}")
    pkg = types.ModuleType("PKG")

    def lookup(attribute):
        for module in found:
            if hasattr(module, attribute):
                return getattr(module, attribute)
        if attribute in ("InMemorySaver", "InMemoryCache"):  # packages whose runs are durable by themselves
            return lambda *_, **__: None
        raise AttributeError(f"{name} has no {attribute}")

    pkg.__getattr__ = lookup
    pkg.strict = name == "langgraph"
    return pkg


def load(path):
    name = f"case_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def text(value):
    value = re.sub(r":" + UUID, "", value)
    value = re.sub(UUID, "<id>", value)
    return re.sub(r"\b[0-9a-f]{32}\b", "<id>", value)


def normal(value):
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, BaseException):
        return {"error": kind, "text": text(str(value)), "bases": [c.__name__ for c in type(value).__mro__]}
    if kind == "StateSnapshot":
        return snapshot(value)
    if kind == "Interrupt":
        return interrupt_form(value)
    if kind == "GraphOutput":
        return {"value": normal(value.value), "interrupts": normal(value.interrupts)}
    if kind == "Send":
        return {"send": value.node, "arg": normal(value.arg)}
    if hasattr(value, "content") and hasattr(value, "type"):
        return message(value.type, value)
    if isinstance(value, dict):
        return normal_dict(value)
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted(normal(item) for item in value)}
    if hasattr(value, "model_dump"):
        return {"object": kind, **{k: normal(getattr(value, k)) for k in type(value).model_fields}}
    if dataclasses.is_dataclass(value):
        return {"object": kind, **{f.name: normal(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    return f"<{kind}>"


def normal_dict(value):
    if "configurable" in value:
        return "<config>"
    if set(value) >= {"id", "name", "interrupts"}:  # the end of a task, or a task of a checkpoint
        parts = ("name", "error", "interrupts", "result")
        return {part: normal(value[part]) for part in parts if value.get(part) is not None}
    if set(value) >= {"id", "name", "triggers"}:  # the start of a task
        return {"name": value["name"], "input": normal(value["input"])}
    if set(value) >= {"id", "value"} and set(value) <= {"id", "value", "response_schema"}:
        return {"interrupt": normal(value["value"])}
    if "langgraph_node" in value:
        return {"langgraph_node": value["langgraph_node"], "langgraph_step": value.get("langgraph_step")}
    if set(value) >= {"role", "content"}:
        return message(value["role"], types.SimpleNamespace(**value))
    if "source" in value and "step" in value:
        return {"source": value["source"], "step": value["step"]}
    form = {text(str(k)): normal(v) for k, v in value.items() if k not in ("timestamp", "created_at")}
    if "__interrupt__" in form:  # parallel nodes interrupt in any order
        form["__interrupt__"].sort(key=lambda one: json.dumps(one, sort_keys=True))
    return form


def interrupt_form(value):
    form = {"interrupt": normal(value.value)}
    schema = getattr(value, "response_schema", None)
    return {**form, "response_schema": normal(schema)} if schema is not None else form


def message(role, value):
    form = {"role": ROLES.get(role, role), "content": normal(value.content)}
    for field in MESSAGE_FIELDS:
        found = getattr(value, field, None)
        if found:
            form[field] = normal(found)
    return form


def snapshot(value):
    metadata = value.metadata or {}
    form = {
        "values": normal(value.values), "next": list(value.next), "source": metadata.get("source"),
        "step": metadata.get("step"), "parent": value.parent_config is not None,
        "interrupts": normal(value.interrupts), "tasks": [],
    }  # fmt: skip
    for task in value.tasks:
        part = {"name": task.name}
        if task.error is not None:
            part["error"] = text(str(task.error))
        if task.interrupts:
            part["interrupts"] = normal(task.interrupts)
        if task.result is not None:
            part["result"] = normal(task.result)
        if task.state is not None:
            part["state"] = normal(task.state)
        form["tasks"].append(part)
    return form


def config_for(case, step, graph):
    config = {"configurable": {"thread_id": f"{case.RUN}-{step.get('thread', 'main')}"}}
    for key, value in step.get("config", {}).items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    if "at" in step:
        for past in graph.get_state_history(config):
            found = {"next": list(past.next), "step": past.metadata["step"]}
            if all(found[k] == v for k, v in step["at"].items()):
                return past.config
        raise LookupError(f"no checkpoint at {step['at']}")
    return config


def answers(graph, config, by_value):
    pending = graph.get_state(config).interrupts
    return {one.id: by_value[one.value] for one in pending if one.value in by_value}


async def gathered(stream):
    return [chunk async for chunk in stream]


def take(step, case, graph, pkg):
    """Do one step; its output as it came."""
    do, config = step["do"], config_for(case, step, graph)
    more = {k: v for k, v in step.items() if k not in CALL_KEYS}
    if do == "resume":
        value = answers(graph, config, step["answers"]) if "answers" in step else step["value"]
        step = {**step, "input": pkg.Command(resume=value)}
        do = step.get("mode", "invoke")
    if do == "invoke":
        return graph.invoke(step["input"], config, **more)
    if do == "stream":
        return list(graph.stream(step["input"], config, **more))
    if do == "ainvoke":
        return asyncio.run(graph.ainvoke(step["input"], config, **more))
    if do == "astream":
        return asyncio.run(gathered(graph.astream(step["input"], config, **more)))
    if do == "state":
        return graph.get_state(config, **more)
    if do == "history":
        return list(graph.get_state_history(config, **more))
    if do == "update_state":
        graph.update_state(config, step["values"], **({"as_node": step["as_node"]} if "as_node" in step else {}))
        return None
    if do == "fn":
        return step["fn"](graph, config)
    raise ValueError(f"unknown step {do}")


def outputs(path, pkg):
    case = load(path)
    case.RUN = f"{path.stem}-{uuid.uuid4()}"
    graph, out = case.build(), []
    for step in case.STEPS:
        try:
            got = normal(take(step, case, graph, pkg))
        except Exception as error:
            got = normal(error)
            got["trace"] = traceback.format_exc()
        if step.get("unordered") and isinstance(got, list):
            got = sorted(got, key=lambda chunk: json.dumps(chunk, sort_keys=True))
        out.append(got)
    return out, [step.get("loose", False) and not pkg.strict for step in case.STEPS]


def same(got, want, source, texts):
    if isinstance(want, dict) and set(want) == {"error", "text"} and isinstance(got, dict) and "error" in got:
        own = want["text"] and want["text"] in source
        return want["error"] in got.get("bases", [got["error"]]) and (got["text"] == want["text"] or not (own or texts))
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(same(got[k], want[k], source, texts) for k in want)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(same(g, w, source, texts) for g, w in zip(got, want, strict=True))
    return got == want


def bare(value):
    """Without what only helps to explain: the bases and traces of errors."""
    if isinstance(value, dict):
        hide = {"bases", "trace"} if "error" in value and "bases" in value else set()
        return {k: bare(v) for k, v in value.items() if k not in hide}
    return [bare(item) for item in value] if isinstance(value, list) else value


def lines(value):
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


def differences(theirs, mine, name):
    return difflib.unified_diff(lines(theirs), lines(mine), "langgraph", name, lineterm="", n=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("only", nargs="*", help="numbers or names of cases")
    parser.add_argument("--cases", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no differences, only names")
    options = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    pkg = sys.modules["PKG"] = package(options.package)
    paths = sorted(options.cases.glob("[0-9][0-9]_*.py"))
    paths = [path for path in paths if not options.only or any(path.stem.startswith(one) for one in options.only)]
    passed = 0
    for path in paths:
        record = path.with_suffix(".json")
        try:
            got, loose = outputs(path, pkg)
        except Exception:
            print(f"FAIL {path.stem}: could not be built\n{'' if options.quiet else traceback.format_exc()}")
            continue
        if options.record:
            record.write_text(json.dumps(bare(got), indent=1, ensure_ascii=False) + "\n")
        want, source = json.loads(record.read_text()), path.read_text()
        wrong = [
            (number, mine, theirs)
            for number, (mine, theirs, skip) in enumerate(zip(got, want, loose, strict=True))
            if not skip and not same(mine, theirs, source, options.texts)
        ]
        if not wrong:
            passed += 1
            print(f"ok   {path.stem}")
            continue
        print(f"FAIL {path.stem}")
        for number, mine, theirs in wrong if not options.quiet else ():
            print(f"  step {number}")
            print("\n".join("    " + d for d in differences(theirs, bare(mine), options.package)))
            if isinstance(mine, dict) and "trace" in mine:
                print("\n".join("    " + t for t in mine["trace"].splitlines()[-6:]))
    print(f"{passed}/{len(paths)}")
    sys.exit(passed != len(paths))


if __name__ == "__main__":
    main()
