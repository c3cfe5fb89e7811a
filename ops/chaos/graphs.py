"""Random valid graphs with branches, whose runs always end in the same way, regardless of faults.

`write(folder, seed, effects)` makes an agent folder of one of three kinds, by the folder's name: `loki-*`, `bsp-*` and
`dag-*` are of version 1.0, and of sleipnir/1 on either engine. A graph is made of blocks, from its end to its start, so
that each block knows what comes after it: steps, parallel edges and their joins, quorums, maps, lists of commands,
conditional edges, loops, waits, questions, calls of tools; the code of some nodes asks or waits. What a node does is
drawn from its name and from what it may read, never from its run, its visit or the time; only its duration is really
random. Which keys it may read:

* in super-steps all of them, because a visit sees the state as it was when its step began;
* in a `dag` its own counter and its item; all of them too where nothing can run beside it.

Some nodes of sleipnir/1 have a `cache`: what is drawn from the state is the same in all runs. Some have callbacks,
which skip a node, replace its result or recover its failure, by its name and how often it has run. With `others` there
are nodes that ask a model or start another agent (models.py).

Failures are of four sorts. Some are drawn from what the node reads, and come back whenever it runs again. A `flaky`
node fails on its first executions, fewer than its policy tries. A node that stumbles fails on its very first execution
in a run, for good; the robot retries the run. Items of maps fail by their value.

Every execution of a script appends one line, `run/visit`, to the file `effects`: how often it really ran, which is not
in the journal. Functions do not know their run and only write state.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ops.chaos import models
from sleipnir.graph.model import SLEIPNIR

KINDS: Final = ("loki", "bsp", "dag")
RETRIES: Final = 3  # as often a failed run is retried; more than nodes that stumble in one graph
ANSWERS: Final = ("yes", "no", "free text")
ERRORS: Final = ("_error", "last_error", "messages")
"""The state keys that a failure writes. No node reads it: one that stumbles where its worker is killed leaves
nothing. Nor messages, whose ids name their run."""
MOST_NODES = 16
EMISSIONS: Final = 50  # of a node that emits

UNDECIDED: Final = frozenset({"goto", "ways", "labels", "loops", "back", "sends", "calls", "flaky", "stumbles"})
"""What a node does that callbacks leave alone."""

SHARED: Final = ("log", "total", "most", "facts")
"""Keys with reducers, which any node may write."""
MORE: Final = ("seen", "chain", "last")
"""Those of sleipnir/1 besides: `chain` has a reducer of the agent's own, `last` has none."""

SCRIPT: Final = '''
"""What a node does is drawn from its name and what it reads, so that every attempt and every run does the same."""
import json, os, random, sys, threading, zlib

EFFECTS = {effects!r}
DOES = {does!r}
ERRORS = {errors!r}
ANSWERS = {answers!r}
EMISSIONS = {emissions!r}


def behave(node, state, visit=None):
    does, run = DOES[node], (visit or "").partition("/")[0]
    for number in range(does.get("asks", 0)):  # before anything is done: the node runs again with the answer
        if ask(node, number, visit) not in ANSWERS:
            raise ValueError("an answer that nobody gave")
    if "awaits" in does:
        from sleipnir import wait
        wait("20ms")
        if wait(event=does["awaits"], consume="one")["data"] not in ANSWERS:
            raise ValueError("an event that nobody sent")
    if visit:
        with open(EFFECTS, "a") as file:
            file.write(visit + "\\n")
    threading.Event().wait(random.choice(does["waits"]))
    tell(node, visit)
    count = state.get("c_" + node, 0)
    seen = {{key: state.get(key) for key in (sorted(state) if does["sees"] is None else does["sees"])
            if key not in ERRORS}}
    given = zlib.crc32(json.dumps([node, count, seen], sort_keys=True).encode())
    chance = random.Random(given)
    if chance.random() < does["fails"]:
        raise Failed("drawn failure")
    if any(is_first(visit.replace("/", "-") + "-" + str(number)) for number in range(does.get("flaky", 0))):
        raise Failed("flaky failure")
    if does.get("stumbles") and is_first(run + "-" + node):
        raise Failed("it stumbles")
    values = {{"log": node + ":" + str(given), "total": given % 9, "most": given % 1000, "seen": "s" + str(given % 7),
              "facts": {{"f" + str(given % 5): node}}, "chain": given, "last": node, "big": "x" * (given % 20_000),
              "mid": given, "output": given}}
    result = {{key: values[key] for key in does["writes"]}}
    if does["counts"]:
        result["c_" + node] = count + 1
    if "loops" in does:
        ends = count + 1 >= does["loops"]
        result |= {{"c_" + node: 0 if ends else count + 1, "go_" + node: "done" if ends else "again"}}
        if "back" in does and not ends:
            result["_next"] = does["back"]
    if "labels" in does:
        result["go_" + node] = chosen(node, chance)
    if "ways" in does:
        result["_next"] = does["ways"][chosen(node, chance)]
    if "calls" in does:
        calls = [{{"id": "c%d" % number, "type": "function", "function": {{
            "name": name, "arguments": json.dumps({{"value": given % 100 + number}})}}}}
            for number, name in enumerate(does["calls"])]
        result["messages"] = [{{"op": "remove_all"}}, {{"role": "assistant", "content": "", "tool_calls": calls}}]
    if "goto" in does:
        result["_next"] = does["goto"]
    if "sends" in does:
        result["_next"] = [{{"to": does["sends"], "update": {{"item": number}}}} for number in range(does["count"])]
    return result


def ask(node, number, visit):
    """A question to a person, by its key or by its position."""
    key = None if number % 2 else "k" + str(number)
    if not visit:
        from sleipnir import interrupt
        return interrupt({{"node": node, "number": number}}, key)
    answers = json.loads(os.environ.get("GRAPH_RESUME", "{{}}"))
    name = key or node + "#" + str(number // 2)
    if name not in answers:
        print(json.dumps({{"_interrupt": {{"value": number, **({{"key": key}} if key else {{}})}}}}))
        sys.exit()
    return answers[name]


def tell(node, visit):
    """Every third node emits numbers, whose order the verdict checks."""
    if zlib.crc32(node.encode()) % 3:
        return
    if not visit:
        from sleipnir import emit
    for number in range(EMISSIONS):
        if visit:
            os.write(3, b'{{"type": "told", "payload": %d}}\\n' % number)
        else:
            emit("told", number)


def skipped(node, state, info):
    """What a callback `before` a node gives in its place."""
    if draw_of(node, state, info) % 4 == 0:
        # Visits of one node that run beside each other, as those of `sends` do, have no counter that they could read.
        counted = {{"c_" + node: state.get("c_" + node, 0) + 1}} if DOES.get(node, {{}}).get("counts") else {{}}
        return {{"log": node + " is skipped", **counted}}


def changed(node, state, info, result, error):
    """What a callback `after` a node makes of its outcome."""
    number = draw_of(node, state, info)
    if error is not None:
        return {{"log": node + " has recovered"}} if number % 2 else None
    return {{**result, "most": number % 1000}} if number % 4 == 1 else None


def draw_of(node, state, info):
    if info.node != node:
        raise ValueError("a callback of another node")
    return zlib.crc32(json.dumps(["callback", node, state.get("c_" + node, 0)]).encode())


def before_all(state, info):
    """A callback of the graph: it decides nothing."""


def after_all(state, info, result, error):
    if (result is None) == (error is None):
        raise ValueError("neither a result nor a failure, or both")


def error_all(state, info, error):
    raise ValueError("nobody minds: " + str(error))


def goes_in(node, state):
    """The first state of a child run."""
    return {{"depth": zlib.crc32(node.encode()) % 5, "notes": [node]}}


def comes_out(node, state, child):
    return {{"log": [child.status, child.output], "most": child.state.get("depth", 7),
             "of_" + node: child.state.get("seen")}}


def chosen(node, chance):
    labels = DOES[node]["labels"] if "labels" in DOES[node] else sorted(DOES[node]["ways"])
    return chance.sample(labels, chance.randint(1, len(labels))) if DOES[node].get("many") else chance.choice(labels)


class Failed(Exception):
    """This is how a node fails."""


def is_first(name):
    """Whether this is the first call with this name."""
    try:
        os.close(os.open(EFFECTS + "." + name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def square(value):
    """A tool: its result depends on its argument alone."""
    threading.Event().wait(random.choice([0, 0, 0.05, 0.3]))
    return value * value % 97


def chain(current, incoming):
    """A reducer of the agent's own: each order of writes gives another number."""
    return zlib.crc32(json.dumps([current, incoming]).encode())


{functions}
if __name__ == "__main__":
    file = os.environ.get("GRAPH_STATE_FILE")
    state = json.load(open(file)) if file else json.loads(os.environ["GRAPH_STATE"])
    try:
        print(json.dumps(behave(os.environ["GRAPH_NODE_ID"], state, os.environ["GRAPH_VISIT"])))
    except Failed as error:
        sys.exit(str(error))
'''

TOOLS: Final = '''
"""A tool that leaves a line for each execution, as scripts do."""
import os


def leave(value: int):
    """Leave a line.

    Args:
        value: any number
    """
    with open({effects!r}, "a") as file:
        file.write(os.environ["GRAPH_VISIT"] + "\\n")
    return {{"left": value}}
'''

FUNCTION = """
def {name}(state):
    return behave("{name}", state)
"""

CHOOSE = """
def choose_{name}(state):
    threading.Event().wait(random.choice([0, 0, 0.05, 0.4]))
    return state["go_{name}"]
"""

AROUND = """
def before_{name}(state, info):
    return skipped("{name}", state, info)


def after_{name}(state, info, result, error):
    return changed("{name}", state, info, result, error)
"""

MAPPERS = """
def into_{name}(state):
    return goes_in("{name}", state)


def out_of_{name}(state, child):
    return comes_out("{name}", state, child)
"""


def kind_of(agent: str) -> str:
    """`loki`, `bsp`, `dag`; anything else names a graph of wild.py, whose runs differ."""
    return agent.partition("-")[0]


def answer(agent: str, node: str) -> str:
    """The robot's answer to a node of one of these graphs; always the same for the same node."""
    return ANSWERS[zlib.crc32(f"{agent}/{node}".encode()) % len(ANSWERS)]


def write(folder: Path, seed: int, effects: Path, *, others: bool = False) -> Path:
    """An agent folder drawn from `seed`; its scripts append to `effects`. The names of nodes with `effect: once` start
    with `once`. With `others` also nodes that need the model server and the helper of models.py, which is written
    beside it."""
    drawn = _Draw(random.Random(seed), folder.name, others)
    if others:
        models.write_helper(folder.parent / models.HELPER, effects)
    start = drawn.whole()
    lines = [f"name: {folder.name}", f"start: {start}", *(f"{key}: {_text(drawn.top[key])}" for key in drawn.top)]
    lines += ["nodes:", *(f"  {name}: {_text(node)}" for name, node in drawn.nodes.items())]
    functions = [FUNCTION.format(name=name) for name, node in drawn.nodes.items() if node["type"] == "function"]
    functions += [CHOOSE.format(name=name) for name, node in drawn.nodes.items() if "call" in node.get("branch", ())]
    functions += [AROUND.format(name=name) for name, node in drawn.nodes.items() if "callbacks" in node]
    functions += [MAPPERS.format(name=name) for name, node in drawn.nodes.items() if node["type"] == "agent"]
    folder.mkdir(parents=True)
    (folder / "graph.yaml").write_text("\n".join(lines) + "\n")
    script = SCRIPT.format(
        effects=str(effects),
        does=drawn.does,
        errors=ERRORS,
        answers=ANSWERS,
        emissions=EMISSIONS,
        functions="\n".join(functions),
    )
    (folder / "node.py").write_text(script)
    (folder / "tools.py").write_text(TOOLS.format(effects=str(effects)))
    return folder


def _text(value: Any) -> str:
    return json.dumps(value)  # YAML, too


@dataclass(frozen=True)
class Place:
    """The position of a block: how many levels it may still have, and whether nothing can run at the same time."""

    depth: int
    alone: bool = True
    looped: bool = False

    def inside(self, *, alone: bool | None = None, looped: bool | None = None) -> Place:
        return Place(
            self.depth - 1,
            self.alone if alone is None else alone,
            self.looped if looped is None else looped,
        )


@dataclass
class _Draw:
    """Draws one graph. A method that draws a block takes what comes after it and gives the node it begins with."""

    chance: random.Random
    agent: str
    others: bool = False
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    does: dict[str, dict[str, Any]] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    stumbles: int = 0
    number: int = 0
    calls_tools: bool = False
    asks_models: bool = False

    def __post_init__(self) -> None:
        self.kind = kind_of(self.agent)
        self.sleipnir, self.dag = self.kind != "loki", self.kind == "dag"
        self.tidy = self.chance.random() < 0.5
        """Whether every branch is waited for: what is alone is then alone indeed."""

    def whole(self) -> str:
        lists = {f"items_{size}": [f"i{number}" for number in range(size)] for size in (0, 1, 3, 8, 30)}
        self.nodes["end"] = {"type": "end", "output": "{{total}} {{log}}" if not self.dag or self.tidy else "over"}
        start = self.chain("end", Place(2))
        self.top["settings"] = {"max_loop_iterations": 25, "max_concurrency": self.chance.randint(1, 8)}
        self.top["initial_state"] = lists
        folds = {"log": "append", "total": "sum", "most": "max", "facts": "merge"}
        if not self.sleipnir:
            self.top["reducers"] = folds
            return start
        self.top |= {"version": SLEIPNIR, "engine": self.kind}
        for node in self.nodes.values():
            leads = ("next" in node or "branch" in node) and "fallback" not in node
            if node["type"] in ("script", "function", "agent", "llm") and leads:
                node["on_error"] = "continue"
        for name, node in self.nodes.items():
            self.may_cache(name, node)
            self.may_call_back(name, node)
        if self.odds(0.3):
            self.top["callbacks"] = {phase: f"node.py:{phase}_all" for phase in ("before", "after", "error")}
        more = {"messages": {"type": "messages"}} if self.calls_tools else {}
        types = {"log": "list", "total": "int", "most": "int", "facts": "object", "seen": "list", "chain": "any"}
        folds |= {"seen": "union", "chain": "node.py:chain"}
        self.top["state"] = {key: {"type": types[key], "reducer": folds[key]} for key in types} | more
        if self.odds(0.2):
            self.top["limits"] = {"max_concurrency": self.chance.randint(1, 6)}
        if not self.dag and self.odds(0.1):
            limits = {"max_steps": self.chance.randint(3, 20), "on_max_steps": self.chance.choice(["error", "stop"])}
            self.top["limits"] = self.top.get("limits", {}) | limits
        return start

    def odds(self, share: float) -> bool:
        return self.chance.random() < share

    # Blocks

    def chain(self, after: str, place: Place) -> str:
        for _ in range(self.chance.randint(1, 3 if place.depth > 1 else 2)):
            after = self.block(after, place)
        return after

    def block(self, after: str, place: Place) -> str:
        if place.depth <= 0 or len(self.nodes) > MOST_NODES:
            return self.step(after, place)
        blocks: dict[Callable[[str, Place], str], int] = {
            self.step: 3, self.fan: 5, self.map: 2, self.commands: 1, self.choice: 2, self.loop: 2,
        }  # fmt: skip
        if self.sleipnir or place.alone:
            blocks[self.question] = 1
        if self.sleipnir:
            blocks |= {self.choice: 3, self.several: 1, self.quorum: 1 if not self.tidy else 0, self.pause: 2}
        if self.sleipnir and self.tidy and place.alone and not self.asks_models:  # the messages are shared
            blocks[self.tools] = 4
        if self.others and not self.calls_tools:
            blocks[self.model] = 2
        if self.others and self.sleipnir:
            blocks[self.child] = 2
        return self.chance.choices(list(blocks), weights=list(blocks.values()))[0](after, place)

    def step(self, after: str, place: Place) -> str:
        """A node that may fail, be flaky, act once, or stumble and go on by `_next`, and that may ask first."""
        kind = self.chance.choices(["plain", "fails", "flaky", "once", "hop"], weights=[4, 2, 1, 1, 2])[0]
        node = self.node("once" if kind == "once" else "n", place, script=kind not in ("plain", "fails"))
        self.nodes[node]["next"] = after
        if self.odds(0.1):
            self.does[node]["asks"] = self.chance.randint(1, 3)
        if self.sleipnir and self.nodes[node]["type"] == "function" and self.odds(0.15):
            self.does[node]["awaits"] = f"{self.agent}.{node}"
        if kind == "fails":
            self.does[node]["fails"] = 0.5
            if self.odds(0.6):
                self.nodes[node]["fallback"] = self.chance.choice([after, self.step(after, place.inside())])
        elif kind == "flaky":
            self.does[node]["flaky"] = self.chance.randint(1, 2)
            self.nodes[node]["retry"] = {"max_attempts": 3, "initial_interval": "100ms"}
        elif kind == "once":
            self.nodes[node]["effect"] = "once"
        elif kind == "hop":
            del self.nodes[node]["next"]
            self.does[node] |= {"goto": after, "fails": self.chance.choice([*[0] * 9, 0.5])}
            self.may_stumble(node)
        return node

    def fan(self, after: str, place: Place) -> str:
        """Parallel edges. They meet at a join; where super-steps make them meet, they may do without."""
        width = self.chance.randint(2, 4)
        if self.dag or (self.sleipnir and self.odds(0.6)):
            return self.fork(
                [self.chain(tail, place.inside(alone=False)) for tail in self.met(after, width, place)], place
            )
        if not self.sleipnir and self.odds(0.3) and not place.looped:
            return self.fork([self.chain(after, place.inside(alone=False)) for _ in range(width)], place)
        length = self.chance.randint(1, 2)
        return self.fork([self.even(after, length, place.inside(alone=False)) for _ in range(width)], place)

    def quorum(self, after: str, place: Place) -> str:
        """A join that does not wait for all. The branches have the same length, so the position is known."""
        width = self.chance.randint(2, 4)
        return self.fork(self.met(after, width, place, least=self.chance.randint(1, width)), place)

    def map(self, after: str, place: Place) -> str:
        """A map in either spelling, which a graph of either version may have."""
        name = self.name("map")
        size = self.chance.choice([0, 1, 3, 3, 8, 8, 30])
        how = self.chance.choice(["fail", "skip", "collect"])
        bodies = [self.body(f"{name}_item", how) for _ in range(self.chance.randint(1, 2))]
        self.does[bodies[-1]]["writes"] = ["output"]
        most = self.chance.randint(1, 8)
        common = {"type": "map", "as": f"{name}_item", "next": after, "on_item_error": how}
        if len(bodies) == 1 and self.odds(0.5):
            more = {"over": f"{{{{items_{size}}}}}", "branch": bodies[0], "collect_into": f"got_{name}"}
            self.nodes[name] = {**common, **more, "max_concurrency": most}
        else:
            more = {"for_each": f"{{{{items_{size}}}}}", "node": bodies, "collect": f"got_{name}"}
            self.nodes[name] = {**common, **more, "max_parallel": most}
        return name

    def commands(self, after: str, place: Place) -> str:
        """A node that asks for several visits of another, each with a value of its own."""
        worker = self.node("w", place.inside(alone=False), counts=False)
        self.nodes[worker].pop("state_updates", None)
        self.does[worker]["sees"] = ["item"] if self.dag else None
        if self.sleipnir:
            self.nodes[self.name("join")] = {"type": "join", "wait_for": [worker], "next": after}
        else:
            self.nodes[worker]["next"] = after
        asker = self.node("n", place)
        self.does[asker] |= {"sends": worker, "count": self.chance.choice([1, 2, 3, 5])}
        return asker

    def choice(self, after: str, place: Place) -> str:
        """One of several ways: by `_next` in version 1.0, in sleipnir/1 by a conditional edge of each sort too."""
        chooser = self.node("n", place, reads=False)
        ways = {f"way{number}": self.chain(after, place.inside()) for number in range(self.chance.randint(2, 3))}
        how = self.chance.choice(["next", "ends", "by", "default", "when", "call"]) if self.sleipnir else "next"
        first, *others = ways.items()
        key = f"go_{chooser}"
        if how == "next":
            self.does[chooser]["ways"] = ways
            return chooser
        if how == "ends":
            self.nodes[chooser]["ends"] = ways
            self.does[chooser]["ways"] = {label: label for label in ways}
            return chooser
        self.does[chooser]["labels"] = list(ways)
        cases: Any = [{"when": f'state.{key} == "{label}"', "to": target} for label, target in others]
        self.nodes[chooser]["branch"] = {
            "by": {"by": f"{{{{{key}}}}}", "to": ways},
            "default": {"by": f"{{{{{key}}}}}", "to": dict(others), "default": first[1]},
            "when": [*cases, {"else": first[1]}],
            "call": {"call": f"node.py:choose_{chooser}", "to": ways},
        }[how]
        return chooser

    def several(self, after: str, place: Place) -> str:
        """One or more of several ways at once. In a `dag` they end by themselves."""
        chooser = self.node("n", place, reads=False)
        count, inner = self.chance.randint(2, 3), place.inside(alone=False)
        if self.dag and self.tidy:
            return self.choice(after, place)
        ends = [self.even("", 1, inner) if self.dag else self.even(after, 1, inner) for _ in range(count)]
        ways = {f"way{number}": target for number, target in enumerate(ends)}
        self.does[chooser] |= {"labels": list(ways), "many": True}
        call = {"call": f"node.py:choose_{chooser}"} if self.odds(0.5) else {"by": f"{{{{go_{chooser}}}}}"}
        self.nodes[chooser]["branch"] = {**call, "to": ways, "many": True}
        if self.dag:
            self.nodes[chooser]["next"] = after
        return chooser

    def loop(self, after: str, place: Place) -> str:
        """A part that is run a few times. It counts in the state, and resets the counter to 0."""
        again = self.node("again", place, reads=False, counts=False)
        body = self.chain(again, place.inside(looped=True))
        self.does[again]["loops"] = self.chance.randint(1, 3)
        if self.sleipnir and self.odds(0.7):
            if self.odds(0.5):
                branch: Any = {"by": f"{{{{go_{again}}}}}", "to": {"again": body, "done": after}}
            else:
                branch = [{"when": f'state.go_{again} == "again"', "to": body}, {"else": after}]
            self.nodes[again]["branch"] = branch
        else:
            self.nodes[again]["next"] = after
            self.does[again]["back"] = body
        return body

    def question(self, after: str, place: Place) -> str:
        """A question. One that expires takes the way, and leaves the state, that the answer would."""
        name = self.name("ask")
        answer_text = answer(self.agent, name)
        expires = self.odds(0.3)
        if self.odds(0.5):
            updates = {} if expires else {"state_updates": {f"said_{name}": "{{input}}"}}
            self.nodes[name] = {"type": "input", "question": "what?", "default": answer_text, "next": after, **updates}
            self.nodes[name] |= {"timeout": 2} if expires else {}
            return name
        ways = {word: self.chain(after, place.inside()) for word in ANSWERS}
        routes = {word: ways[word] for word in ("yes", "no")}
        node = {"type": "approval", "question": "go on?", "options": ["yes", "no"], "routes": routes}
        self.nodes[name] = {**node, "on_other": ways["free text"]}
        self.nodes[name] |= {"timeout": 2, "on_timeout": ways[answer_text]} if expires else {}
        if not expires:
            self.nodes[name]["state_updates"] = {f"said_{name}": "{{choice}}"}
        return name

    def tools(self, after: str, place: Place) -> str:
        """A node that writes a message with calls, as a model does, and the tools node that executes them."""
        self.calls_tools = True
        name = self.name("tools")
        asker = self.node("n", place, reads=False)
        known = ["square", "leave", "browse", "never"]
        self.does[asker]["calls"] = [self.chance.choice(known) for _ in range(self.chance.randint(1, 6))]
        tools = ["leave", {"name": "square", "call": "node.py:square"}, {"name": "browse", "external": True}]
        groups = [{"tools": ["leave", "square"], "limit": self.chance.randint(1, 2)}]
        self.nodes[name] = {
            "type": "tools",
            "tools": [*tools, {"name": "never", "external": True}],
            "permissions": {"never": "deny"},
            "parallel": self.chance.choice([False, True, {"max": 3}, {"max": 4, "groups": groups}]),
            "tool_timeout": "60s",
            "next": after,
        }
        self.nodes[asker]["next"] = name
        return asker

    def model(self, after: str, place: Place) -> str:
        """A node that asks a model, which may call a tool."""
        self.asks_models = True
        name = self.name("llm")
        prompt, updates = f"{name} of {{{{initial_prompt}}}}", {"log": "{{output}}"}
        self.nodes[name] = {"type": "llm", "model": models.MODEL, "prompt": prompt, "state_updates": updates}
        self.nodes[name] |= {"tools": ["leave"]} if self.odds(0.4) else {}
        self.nodes[name]["next"] = after
        return name

    def child(self, after: str, place: Place) -> str:
        """A node that starts the helper, which fails for some of what goes in; by templates or by functions."""
        name = self.name("child")
        given = self.chance.choice([{"from": "initial_prompt"}, {"template": "for {{initial_prompt}}"}])
        node: dict[str, Any] = {"type": "agent", "agent": models.HELPER, "input": given, "isolated": self.odds(0.5)}
        if self.odds(0.5):
            node |= {"map_in": f"node.py:into_{name}", "map_out": f"node.py:out_of_{name}"}
        else:
            node["map_in"] = {"depth": self.chance.randint(0, 4), "notes": ["{{initial_prompt}}", name]}
            read = {f"of_{name}": "{{child.state.seen}}", "total": "{{child.state.depth}}"}
            node["map_out"] = {"log": "{{child.status}}: {{child.output}}", **read}
        self.nodes[name] = {**node, "event_scope": f"below-{name}", "next": after}
        return name

    def pause(self, after: str, place: Place) -> str:
        """A wait for a time, or for an event, which the robot sends; its data is the robot's answer."""
        name, data = self.name("wait"), None
        how = self.chance.choice(["for", "until", "event", "event", "event"])
        self.nodes[name] = {"type": "wait", how: {"for": "50ms", "until": "1"}.get(how, f"{self.agent}.{name}")}
        if how == "event":
            data = answer(self.agent, name)
            self.nodes[name] |= {"consume": self.chance.choice(["all", "one"]), "look_back": "1s"}
            self.nodes[name] |= {"filter": f"event.data == {_text(data)}"} if self.odds(0.5) else {}
            self.nodes[name] |= {"timeout": "1h", "on_timeout": "end"} if self.odds(0.3) else {}
            self.nodes[name]["state_updates"] = {f"said_{name}": "{{event.data}}"}
        self.nodes[name]["next"] = after
        return name

    # Parts of blocks

    def even(self, after: str, length: int, place: Place) -> str:
        """A number of steps of any kind."""
        for _ in range(length):
            if after and self.odds(0.2):
                after = self.map(after, place)
            else:
                node = self.node("n", place)
                self.nodes[node] |= {"next": after} if after else {}
                after = node
        return after

    def met(self, after: str, width: int, place: Place, least: int | None = None) -> list[str]:
        """This many nodes without a `next`, and a join that waits for them."""
        tails = [self.node("tail", place.inside(alone=False)) for _ in range(width)]
        wait: Any = tails if least is None else {"from": tails, "min": least}
        for tail in tails:
            self.may_stumble(tail)
        if self.odds(0.5):
            self.nodes[self.name("join")] = {"type": "join", "wait_for": wait, "next": after}
        else:
            joined = self.node("joined", place if least is None else place.inside(alone=False))
            self.nodes[joined] |= {"wait_for": wait, "next": after}
        return tails

    def fork(self, targets: list[str], place: Place) -> str:
        fork = self.name("fork")
        if self.sleipnir and self.odds(0.4):
            self.nodes[fork] = {"type": "router", "next": targets}
            return fork
        fork = self.node("fork", place)
        self.nodes[fork]["next"] = targets
        return fork

    def body(self, item: str, how: str) -> str:
        """The node that runs per item of a map. If one failure fails the map, at most one item fails."""
        body = self.node("body", Place(0, alone=False), counts=False)
        self.nodes[body].pop("state_updates", None)
        self.does[body] |= {"sees": [item, "mid"], "writes": ["mid"], "waits": [0, 0, 0.01, 0.1]}
        if how == "fail":
            self.does[body]["fails"] = self.chance.choice([0, 0, 0, 0, 0.02])
            self.may_stumble(body)
        else:
            self.does[body]["fails"] = 0.2
        if self.odds(0.1):
            self.does[body]["asks"] = 1
        return body

    def node(
        self, stem: str, place: Place, *, script: bool | None = None, reads: bool = True, counts: bool = True
    ) -> str:
        """A script or function that writes some keys, and goes nowhere yet."""
        name = self.name(stem)
        is_script = self.odds(0.6) if script is None else script
        body = {"script": "node.py", "timeout": 60} if is_script else {"call": f"node.py:{name}"}
        self.nodes[name] = {"type": "script" if is_script else "function", **body}
        if is_script and not self.sleipnir:
            self.nodes[name]["state_updates"] = {f"u_{name}": "{{initial_prompt}}"}  # a branch has to have some
        keys = [*SHARED, *(MORE if self.sleipnir else ())]
        sees_all = reads and (not self.dag or (place.alone and self.tidy))
        self.does[name] = {
            "writes": self.chance.sample(keys, self.chance.randint(1, 3)),
            "sees": None if sees_all else [],
            "counts": counts and self.odds(0.7),
            "fails": 0,
            "waits": [0, 0, 0.01, 0.05, 0.2, 1] if stem in ("n", "once", "tail") else [0],
        }
        if counts and self.odds(0.1):
            self.does[name]["writes"] += ["big"] if self.sleipnir else []
        return name

    def may_cache(self, name: str, node: dict[str, Any]) -> None:
        """Keep the results of some nodes: of those that do the same for the same state, in every run."""
        does = self.does.get(name, {})
        if node["type"] not in ("script", "function") or "effect" in node or {"flaky", "stumbles"} & does.keys():
            return
        if self.odds(0.25):
            keys = [f"c_{name}"] if does["sees"] == [] else None
            ttl = self.chance.choice(["300ms", "5s", "1h"])
            node["cache"] = self.chance.choice([True, {"ttl": ttl}, {"key": keys, "ttl": ttl} if keys else True])

    def may_call_back(self, name: str, node: dict[str, Any]) -> None:
        """Let callbacks decide about some nodes: those that choose nothing, and fail alike in every run."""
        does = self.does.get(name, {"writes": ["mid"]})
        if UNDECIDED.isdisjoint(does.keys()) and {"mid", "output"}.isdisjoint(does["writes"]) and self.odds(0.2):
            around = {"before": f"node.py:before_{name}", "after": f"node.py:after_{name}"}
            node["callbacks"] = self.chance.choice([around, {phase: [around[phase]] for phase in around}])

    def may_stumble(self, node: str) -> None:
        if self.nodes[node]["type"] == "script" and self.stumbles < RETRIES - 1 and self.odds(0.15):
            self.stumbles += 1
            self.does[node]["stumbles"] = True

    def name(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"
