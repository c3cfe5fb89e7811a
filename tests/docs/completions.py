"""How the graphs of the pages become whole agents, and how these are run.

A block may leave out what its page is not about. It is completed by these rules, and never changed:

- A mapping of nodes is the `nodes` of a graph; keys outside the nodes are those of a graph.
- Without `name` the graph is called `example`; without `start` it starts at its first node.
- A node that others lead to and that is not there is added: as `Completion.nodes` says, else as an end.
- Files that it names are those of `Completion.files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sleipnir.testing import Rule

END = {"type": "end", "output": "done"}


@dataclass(frozen=True)
class Run:
    """A run from its beginning, at `start` if the block names none, to its `output`. `answers` are pairs of a node and
    what a person says there, who resumes the run at `breakpoints`; `signals` are events that were sent before. The
    model says what the `rules` say, else `improviser.SENTENCE`."""

    state: Mapping[str, Any] = field(default_factory=dict)
    output: str = "done"
    start: str | None = None
    rules: Sequence[Rule] = ()
    answers: Sequence[tuple[str, str]] = ()
    breakpoints: int = 0
    signals: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """What a block leaves out. `not_run` is the reason why its graph is only validated."""

    nodes: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[Run] = (Run(),)
    not_run: str | None = None


def script(file: str) -> dict[str, str]:
    return {"type": "script", "script": file}


def end(output: str) -> dict[str, str]:
    return {"type": "end", "output": output}


def prints(json: str) -> str:
    return f"print('{json}')\n"


GREET = """\
import json, os
name = json.loads(os.environ["GRAPH_STATE"])["name"]
print(json.dumps({"greeting": f"Hello, {name}!"}))
"""
CALLBACKS = """\
def short(state, info, request): return "pong"
def signed(state, info, request, response, error): return None
def bounded(state, info, call): return None
def empty(state, info, call, result, error): return None
"""
AROUND_RUNS = """\
def welcome(state, info): return None if state["question"].strip() else "Please ask something."
def farewell(state, info, output, error): return None
"""
LOOKUP = '''\
def lookup(name: str) -> str:
    """Looks up.

    Args:
        name: what
    """
    return name
'''
STEPS = """\
import operator
from typing import Annotated, TypedDict


class State(TypedDict):
    topic: str
    notes: Annotated[list, operator.add]


def plan(state, runtime):
    return {"notes": [f"{state['topic']} of {sorted(state)}"]}


def after_plan(state):
    return "long" if state["notes"] == ["bells of ['topic']"] else "short"


def write(state):
    if len(state["notes"]) != 1:
        raise ValueError(state["notes"])
    return {"notes": ["written"]}
"""
PLAN = "import pydantic\n\n\nclass Plan(pydantic.BaseModel):\n    steps: list[str] = []\n"
GITHUB = "it needs GitHub's MCP server"

COMPLETIONS: Mapping[tuple[str, str], Completion] = {
    ("README.md", "ask greet done"): Completion(
        files={"scripts/greet.py": GREET}, runs=[Run(answers=[("ask", "Ada")], output="Hello, Ada!")]
    ),
    ("docs/first-agent.md", "count ask done dropped refused"): Completion(
        files={"scripts/count_words.py": prints('{"words": 6, "longest": "not"}')},
        runs=[
            Run(answers=[("ask", "yes")], output="6 words; the longest is not."),
            Run(answers=[("ask", "no")], output="Not published."),
        ],
    ),
    ("docs/graph-language.md", "concurrency"): Completion(runs=[Run({"tenant": "acme"})]),
    ("docs/graph-language.md", "collect decorate"): Completion(files={"collect.py": prints('{"text": "bells"}')}),
    ("docs/threads.md", "retrieve answer"): Completion(
        files={"retrieve.py": prints('{"temp:context": "bells"}')}, runs=[Run(output="")]
    ),
    ("docs/threads.md", "greet"): Completion(runs=[Run(output="")]),
    ("docs/threads.md", "ask"): Completion(runs=[Run(output="")]),
    ("docs/graph-language.md", "setup ask lines done"): Completion(
        files={
            "lines.py": "from sleipnir import open_stream\n"
            'def lines(state): return {"lines": len(open_stream("poem").text().splitlines())}\n'
        },
        runs=[Run(rules=[Rule("one\ntwo\nthree")], output="3 lines")],
    ),
    ("docs/graph-language.md", "retry"): Completion(),
    ("docs/a2a.md", "assess done"): Completion(
        not_run="its agent is on the internet; tests/system/test_remote_agents.py has others"
    ),
    ("docs/graph-language.md", "pay"): Completion(not_run="two people answer it; tests/store/test_gate_rules.py does"),
    ("docs/graph-language.md", "send"): Completion(
        files={
            "send.sh": "exit 1\n",
            "hooks.py": "def allowed(state, info): return None\n"
            "def mended(state, info, result, error): return {'sent': None}\ndef noted(state, info, error): pass\n",
        },
    ),
    ("docs/graph-language.md", "price sort count"): Completion(
        files={"shop.py": "def price(state): return {'price': 1}\n", "count.sh": "echo '{\"n\": 1}'\n"},
        runs=[Run({"article": "bell", "currency": "EUR", "text": "a bell"})],
    ),
    ("docs/graph-language.md", "triage"): Completion(files={"tools.py": LOOKUP}, not_run=GITHUB),
    ("docs/graph-language.md", "review"): Completion(
        nodes={"report": end("{{verdict}}")},
        files={"../code-review/graph.yaml": "name: code-review\nstart: e\nnodes:\n  e: {type: end, output: fine}\n"},
        runs=[Run({"branch": "main"}, "fine")],
    ),
    ("docs/graph-language.md", "ask"): Completion(
        files={
            "../code-review/graph.yaml": "name: code-review\nversion: sleipnir/1\nstart: e\ninitial_state: {score: 7}\n"
            'nodes: {e: {type: end, output: "{{depth}}"}}\n'
        },
        runs=[Run({"branch": "main"}, "")],
    ),
    ("docs/graph-language.md", "fetch store"): Completion(
        files={
            "fetch.py": "class HalfDone(Exception): ...\n\n\ndef fetch(state):\n    raise HalfDone\n\n\n"
            "def store(state):\n    assert len(state['execution_errors']) == 1\n"
        },
        runs=[Run({}, "")],
    ),
    ("docs/graph-language.md", "summarise"): Completion(
        nodes={
            "shorten": script("shorten.py"),
            "translate": script("translate.py"),
            "report": end("{{summaries}}"),
        },
        files={"shorten.py": prints('{"short": 1}'), "translate.py": prints('{"output": "kort"}')},
        runs=[Run({"chunks": ["a", "b"]}, '["kort","kort"]')],
    ),
    ("docs/graph-language.md", "plan files read lint judge done"): Completion(
        files={
            "plan.py": prints('{"changed": ["a", "b"], "notes": "planned"}'),
            "read.py": prints('{"output": "read"}'),
            "lint.py": prints('{"notes": "linted"}'),
            "judge.py": "def judge(state):\n    return {'score': 0.9}\n",
        },
        runs=[Run(output='["planned","linted"]')],
    ),
    ("docs/graph-language.md", "collect summarise classify report"): Completion(
        files={"collect.py": prints('{"raw": "bells"}')}, runs=[Run(output="So it is.: So it is.")]
    ),
    ("docs/graph-language.md", "sort judge spread"): Completion(
        nodes={name: end(name) for name in ("plan", "reply", "draft", "call")},
        files={"routes.py": "def choose(state):\n    return ['draft', 'call']\n"},
        runs=[
            Run({"category": "fraud"}, "plan"),
            Run({"category": "thanks"}, "reply"),
            Run({"score": 0.4}, "draft", start="judge"),
            Run({"score": 0.6, "urgent": True}, "call", start="judge"),
            Run(output="draft", start="spread"),
        ],
    ),
    ("docs/graph-language.md", "search"): Completion(
        files={"tools.py": LOOKUP, "hooks.py": CALLBACKS}, runs=[Run(state={"question": "ping"})]
    ),
    ("docs/graph-language.md", "answer"): Completion(
        files={"hooks.py": AROUND_RUNS}, runs=[Run({"question": " "}, output="Please ask something.")]
    ),
    ("docs/graph-language.md", "ask calls sent"): Completion(
        files={"tools.py": LOOKUP, "prices.py": "def price(part):\n    return 3\n"},
        runs=[Run(output="So it is.")],
    ),
    ("docs/graph-language.md", "ask turn check"): Completion(runs=[Run(output="")]),
    ("docs/graph-language.md", "check pay log"): Completion(
        files={f"{name}.sh": f"echo '{{\"{name}\": 1}}'\n" for name in ("check", "pay", "log")},
        runs=[Run(output="", breakpoints=1)],
    ),
    ("docs/graph-language.md", "report"): Completion(runs=[Run({"notes": "bells"}, output="")]),
    ("docs/graph-language.md", "paid remind later done"): Completion(
        files={"remind.sh": "echo '{}'\n"},
        runs=[Run({"id": 17}, "12", signals={"order.17.paid": {"amount": 12}})],
    ),
    ("docs/graph-language.md", "plan write"): Completion(
        files={"steps.py": STEPS}, runs=[Run({"topic": "bells"}, output="")]
    ),
    ("docs/graph-language.md", "state"): Completion(
        files={"models.py": PLAN, "fold.py": "def newest(current, incoming):\n    return incoming\n"},
        runs=[Run({"order": {"id": 1}})],
    ),
    ("docs/knowledge.md", "look answer"): Completion(not_run="its documents are on the internet"),
    ("docs/mcp.md", "triage"): Completion(not_run=GITHUB),
    ("docs/testing.md", "read sorted by_hand"): Completion(
        runs=[Run(rules=[Rule('{"topic": "a bell", "urgent": true}')], output="a bell (urgent: true)")]
    ),
    ("docs/validation.md", "ask"): Completion(),
    ("scheduler/README.md", "split c"): Completion(
        nodes={"a": script("a.sh"), "b": script("b.sh")},
        files={name: "echo '{}'\n" for name in ("a.sh", "b.sh", "c.sh")},
        runs=[Run(output="")],
    ),
}
