"""Random sequential graphs whose runs differ: what a node does is drawn from its run and visit.

`write(folder, seed, effects)` makes an agent folder: scripts that succeed, fail, take a while, loop by `_next`, are
tried again or must take effect once, and questions that a robot answers or that expire. Every execution of a script
appends one line, `run/visit`, to the file `effects`: how often it really ran, which no journal can tell. How such runs
end depends on time and on people; graphs.py draws those that must end in one way only.
"""

from __future__ import annotations

import random
from pathlib import Path

ANSWERS = ("yes", "no", "free text")

SCRIPT = '''
"""What a node does is drawn from its own name and visit, so that a repeated attempt does the same again."""
import json, os, random, threading

EFFECTS = {effects!r}
ROUTES = {routes!r}


def behave(node, state, run, visit):
    with open(EFFECTS, "a") as file:
        file.write(run + "/" + visit + "\\n")
    chance = random.Random(run + visit + node)
    threading.Event().wait(chance.choice([0, 0, 0.01, 0.05, 0.2, 0.2, 1]))
    if chance.random() < 0.15:
        raise RuntimeError("drawn failure")
    result = {{"trace": state.get("trace", "") + node + " ", "big": "x" * chance.choice([1, 100, 20_000])}}
    if ROUTES[node] and chance.random() < 0.4:
        result["_next"] = chance.choice(ROUTES[node])
    return result


if __name__ == "__main__":
    file = os.environ.get("GRAPH_STATE_FILE")
    state = json.load(open(file)) if file else json.loads(os.environ["GRAPH_STATE"])
    run, _, visit = os.environ["GRAPH_VISIT"].partition("/")
    print(json.dumps(behave(os.environ["GRAPH_NODE_ID"], state, run, visit)))
'''


def write(folder: Path, seed: int, effects: Path) -> Path:
    """An agent folder drawn from `seed`; its nodes append to `effects`. Names of nodes to act once begin so."""
    chance = random.Random(seed)
    names = [chance.choice(["n", "n", "n", "once"]) + str(number) for number in range(chance.randint(2, 7))]
    lines = [f"name: chaos-{seed}", f"start: {names[0]}", "settings: {max_loop_iterations: 6}", "nodes:"]
    routes: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        later = [*names[number + 1 :], "end"]
        routes[name] = [*later, *names[: number + 1]] if chance.random() < 0.5 else []
        lines.append(f"  {name}: {_script(chance, name, later) if name[0] == 'o' else _node(chance, name, later)}")
    lines.append('  end: {type: end, output: "{{trace}}"}')
    folder.mkdir(parents=True)
    (folder / "graph.yaml").write_text("\n".join(lines) + "\n")
    (folder / "node.py").write_text(SCRIPT.format(effects=str(effects), routes=routes))
    return folder


def _node(chance: random.Random, name: str, later: list[str]) -> str:
    expiry = f", timeout: 2, on_timeout: {later[0]}" if chance.random() < 0.3 else ""
    match chance.choices(["script", "approval", "input"], weights=[6, 1, 1])[0]:
        case "approval":
            routes = f"yes: {chance.choice(later)}, no: {chance.choice(later)}"
            question = f"question: go on?, options: [yes, no], routes: {{{routes}}}, on_other: {later[0]}"
            return f"{{type: approval, {question}{expiry}}}"
        case "input":
            return (
                f"{{type: input, question: what?, next: {later[0]}, state_updates: {{said: '{{{{input}}}}'}}{expiry}}}"
            )
        case _:
            return _script(chance, name, later)


def _script(chance: random.Random, name: str, later: list[str]) -> str:
    fallback = f", fallback: {chance.choice(later)}" if chance.random() < 0.5 else ""
    retry = ", retry: {max_attempts: 3, initial_interval: 200ms}" if chance.random() < 0.3 else ""
    once = ", effect: once" if name.startswith("once") else ""
    return f"{{type: script, script: node.py, timeout: 60, next: {later[0]}{fallback}{retry}{once}}}"
