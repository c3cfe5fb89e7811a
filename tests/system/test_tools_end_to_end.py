"""Llm nodes with tools on real processes: whatever a model, a tool, a server of tools or a person does wrong, the model
is told precisely, or the node fails precisely, and the run goes the right way.

Each case is an agent and one run of it. All share one scheduler, one llm worker and one worker for scripts, and all are
under way together: that is why they are one test, of which each case is a part.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.runs.reasons import places
from sleipnir.runs.views import RunInfo, StepInfo
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "agents"
PLAIN_SERVER = ROOT / "tests" / "integration" / "workers" / "mcp" / "plain_server.py"
KEY = "sk-planted-key-9876543210"

GRAPH = """
name: case
{top}
start: ask
nodes:
  ask: {{type: llm, model: "openai:gpt-test", prompt: "{{{{initial_prompt}}}}",
        state_updates: {{said: "{{{{output}}}}"}}, next: after, fallback: rescue, {node}}}
  after: {{type: end, output: "next: {{{{said}}}}"}}
  rescue: {{type: end, output: "fallback: {{{{said}}}}"}}
"""
TOOLS = '''
import os
from pathlib import Path

HERE = Path(os.environ["GRAPH_CALLER_DIR"])


def echo(text: str):
    """Say it again."""
    with (HERE / "echoed").open("a") as file:
        file.write(text)
    return {"said": text}


def secret():
    """Not for every node."""
    (HERE / "secret").touch()


def crash():
    """Fail."""
    print("on stdout")
    raise RuntimeError("the disk is full")


def quiet():
    """Give nothing."""


def huge():
    """Give too much."""
    return "x" * 600_000


def binary():
    """Give what is not text."""
    Path(os.environ["LLM_OUTPUT"]).write_bytes(b"\\x00\\x01\\xff")


'''
HANG = """
# @cmd Never end, and start a child that never ends.
hang() {
    sleep 600 &
    touch "$GRAPH_CALLER_DIR/hangs"
    wait
}
"""
SHOUT = """
# @describe Say it loud
# @option --text!
main() { echo "${argc_text^^}" >> "$LLM_OUTPUT"; }
"""
COUNT = '''
def run():
    """Count to three."""
    return 3
'''

Says: TypeAlias = Sequence[Reply | str]


@dataclass(frozen=True)
class Ended:
    """What there is to see of a case once its run is over."""

    info: RunInfo
    output: str | None
    state: Mapping[str, Any]
    steps: Sequence[StepInfo]
    requests: Sequence[Request]
    scratch: Path

    @property
    def result(self) -> Any:
        """What the model was told of the only call of the first turn."""
        [result] = self.results()
        return result

    def results(self, turn: int = 1) -> list[Any]:
        """What it was told of the calls of a turn: in the request for the next one."""
        found = [request for request in self.requests if request.turn == turn + 1]
        assert found, f"the model was not asked for turn {turn + 1}: {self.output!r}, {self.steps}"
        return [json.loads(each.text) for each in found[0].tool_results]

    @property
    def error_of_result(self) -> str:
        assert set(self.result) <= {"tool_call_error", "stderr", "stdout"}
        return str(self.result["tool_call_error"])

    @property
    def errors(self) -> list[str | None]:
        """What history says of the calls, in their order."""
        return [step.error for step in self.steps if step.part is not None and step.part.call is not None]

    def no_process_is_left(self) -> bool:
        """Neither the tool's nor its children's: they have the run's name in their environment."""
        return not any(self.info.id.encode() in variables for variables in environments())


def environments() -> Iterator[bytes]:
    """Those of all processes that we may look at."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            yield file.read_bytes()


Person: TypeAlias = Callable[["Case", Run, "Lab"], None]


@dataclass(frozen=True)
class Case:
    """An agent, what its model says (turn by turn, and the last for ever), and what must have come of it. `person` is
    what somebody does meanwhile; `folder` an agent that is there already."""

    name: str
    says: Says
    check: Callable[[Ended], None]
    graph: str
    tools: Mapping[str, str]
    person: Person | None
    folder: Path | None

    def reply(self, request: Request) -> Reply | str:
        """Who is offered no tools is the extractor of structured output, which gets the last reply."""
        place = request.turn if request.tools else len(self.says)
        return self.says[min(place, len(self.says)) - 1]


@dataclass
class Lab:
    """The stack, and all runs by the names of their cases."""

    stack: Stack
    model: ModelServer
    client: Client
    home: Path
    runs: dict[str, Run] = field(default_factory=dict)

    def scratch(self, case: str) -> Path:
        return self.home / "scratch" / case


CASES: dict[str, Case] = {}


def case(
    *says: Reply | str,
    node: str = "tools: [echo]",
    top: str = "",
    graph: str = GRAPH,
    tools: Mapping[str, str] | None = None,
    person: Person | None = None,
    folder: Path | None = None,
) -> Callable[[Callable[[Ended], None]], Callable[[Ended], None]]:
    """Make a case of a function, which checks how it ended."""

    def add(check: Callable[[Ended], None]) -> Callable[[Ended], None]:
        text = graph.format(node=node, top=top)
        files = {"tools_py": TOOLS} if tools is None else tools
        CASES[check.__name__] = Case(check.__name__, says, check, text, files, person, folder)
        return check

    return add


def calls(name: str, arguments: Mapping[str, Any] | str | None = None) -> Reply:
    return Reply(calls=[Call(name, {} if arguments is None else arguments)])


# The model asks for what cannot be done


@case(calls("echo", '{"text": "half'), "done")
def malformed_arguments_are_answered_with_what_the_tool_takes(ended: Ended) -> None:
    assert ended.error_of_result.startswith("""The call 'echo' has invalid arguments: {"text": "half (not JSON: """)
    assert ended.error_of_result.endswith("It takes a JSON object with: text (string, required).")
    assert ended.errors == ["tool 'echo' failed: arguments"]
    assert ended.output == "next: done"


@case(calls("echo", '["a"]'), "done")
def arguments_that_are_no_object_are_answered_so(ended: Ended) -> None:
    assert "(a JSON object is needed, not list)" in ended.error_of_result
    assert ended.output == "next: done"


@case(calls("echo", {"words": "x"}), calls("echo", {"text": "right"}), "done")
def a_model_that_is_told_what_was_wrong_can_do_it_right(ended: Ended) -> None:
    assert "(missing: text)" in ended.error_of_result
    assert ended.results(2) == [{"said": "right"}]
    assert ended.errors == ["tool 'echo' failed: arguments", None]
    assert ended.output == "next: done"


@case(calls("ecco", {"text": "x"}), "done")
def an_unknown_tool_is_answered_with_those_there_are(ended: Ended) -> None:
    assert str(ended.error_of_result).startswith("Unexpected call: 'ecco' is no tool. Available tools: echo. ")
    assert ended.errors == ["tool 'ecco' failed: unknown"]
    assert ended.output == "next: done"


@case(calls("secret"), "done")
def a_tool_that_the_node_does_not_list_is_never_run(ended: Ended) -> None:
    assert ended.requests[0].tools == ["echo"]
    expected = "The tool 'secret' is not among the tools of this node. Available tools: echo."
    assert ended.error_of_result == expected
    assert not (ended.scratch / "secret").exists()
    assert ended.output == "next: done"


@case(calls("user__confirm", {"question": "May I?"}), "done")
def a_question_that_the_node_does_not_list_is_never_asked(ended: Ended) -> None:
    assert ended.error_of_result == "The tool 'user__confirm' is not among the tools of this node."
    assert ended.output == "next: done"


@case(calls("mcp_invoke_plain", {"tool": "echo"}), "done", top="mcp_servers: [plain]")
def a_server_that_the_node_does_not_list_is_never_asked(ended: Ended) -> None:
    assert ended.error_of_result == "The tool 'mcp_invoke_plain' is not among the tools of this node."
    assert ended.output == "next: done"


@case(*[calls("echo", {"text": "e"})] * 3, "done")
def the_third_same_call_is_answered_with_an_alert(ended: Ended) -> None:
    assert ended.results(1) == ended.results(2) == [{"said": "e"}]
    [alert] = ended.results(3)
    assert alert["tool_call_loop_alert"]["error"]["message"] == "⚠️ Tool-call loop detected! ⚠️"
    assert alert["tool_call_loop_alert"]["call_history"] == [{"name": "echo", "arguments": {"text": "e"}}] * 2
    assert (ended.scratch / "echoed").read_text() == "ee"
    assert ended.output == "next: done"


# Tools that do badly


@case(calls("crash"), "done", node="tools: [crash]")
def a_tool_that_fails_is_answered_with_its_code_and_what_it_has_printed(ended: Ended) -> None:
    """Finding U8 of the second review: tools report what is wrong on stdout, too."""
    assert ended.error_of_result == "Tool call 'crash' exited with code 1"
    assert ended.result["stderr"].endswith("RuntimeError: the disk is full")
    assert "on stdout" not in ended.result["stderr"]
    assert ended.result["stdout"] == "on stdout"
    assert ended.output == "next: done"


@case(calls("quiet"), "done", node="tools: [quiet]")
def a_tool_that_leaves_nothing_is_done(ended: Ended) -> None:
    assert ended.result == "DONE"
    assert ended.output == "next: done"


@case(calls("huge"), "done", node="tools: [huge]")
def of_a_huge_result_the_model_reads_the_beginning_and_how_much_was_cut(ended: Ended) -> None:
    assert ended.result == {
        "output": "x" * 262_144,
        "truncated": "The result had 600,000 bytes: these are the first 262,144, the other 337,856 were cut. "
        "Ask for less of it, or for the rest.",
    }
    assert ended.output == "next: done"


@case(calls("binary"), "done", node="tools: [binary]")
def a_result_that_is_no_text_is_described(ended: Ended) -> None:
    expected = "(3 bytes that are not text; have the tool write a file and name it)"
    assert ended.result == {"output": expected}
    assert ended.output == "next: done"


@case(calls("hang"), "done", node="tools: [hang], tool_timeout: 500ms", tools={"tools_sh": HANG})
def a_tool_that_hangs_is_stopped_with_all_that_it_started(ended: Ended) -> None:
    assert ended.error_of_result == "Tool call 'hang' timed out after 0.5s and was stopped"
    assert ended.errors == ["tool 'hang' failed: timeout"]
    wait_until(ended.no_process_is_left, "the tool and its child are dead")
    assert ended.output == "next: done"


@case(
    Reply(calls=[Call("greet", {"name": "you", "times": 2}), Call("shout", {"text": "hey"}), Call("count")]),
    "done",
    node="tools: [greet, shout.sh, count]",
    top="global_tools: [shout.sh, count]",
    tools={
        "tools_sh": """
# @cmd Greet somebody
# @option --name! Who
# @option --times <INT> How often
greet() {
    for _ in $(seq "$argc_times"); do echo "hello $argc_name" >> "$LLM_OUTPUT"; done
}
""",
        "tools_py": "def hidden():\n    'Not declared, as there is a tools.sh.'\n",
    },
)
def tools_of_the_agent_and_of_the_configuration_work_side_by_side(ended: Ended) -> None:
    assert ended.requests[0].tools == ["greet", "shout", "count"]
    assert ended.results() == [{"output": "hello you\nhello you"}, {"output": "HEY"}, 3]
    assert ended.errors == [None, None, None]
    assert ended.output == "next: done"


@case("never said", node="tools: [echo, nope]", top="settings: {validate_before_run: false}")
def a_tool_that_is_not_there_fails_the_node_before_the_model_is_asked(ended: Ended) -> None:
    expected = "fallback: LLM node failed: llm node references unknown tool 'nope'. Agent"
    assert str(ended.output).startswith(expected)
    assert "provides: echo, secret, crash, quiet, huge, binary, user__select, user__confirm" in str(ended.output)
    assert ended.requests == []


# Servers of tools


@case(
    calls("mcp_invoke_plain", {"tool": "die", "arguments": {"value": "x"}}),
    calls("mcp_invoke_plain", {"tool": "echo", "arguments": {"value": "again"}}),
    "done",
    node='tools: ["mcp:plain"]',
    top="mcp_servers: [plain]",
)
def a_server_that_dies_in_a_call_is_started_anew_for_the_next(ended: Ended) -> None:
    assert ended.requests[0].tools == ["mcp_search_plain", "mcp_describe_plain", "mcp_invoke_plain"]
    assert ended.error_of_result == (
        "MCP tool invocation failed: MCP server 'plain' died during the call, and whether it did what it was asked is "
        "not known: it exited with code 3; its last lines:\nabout to die of x"
    )
    assert [result["content"] for result in ended.results(2)] == [[{"type": "text", "text": '{"value": "again"}'}]]
    assert ended.errors == ["tool 'mcp_invoke_plain' failed: server", None]
    assert ended.output == "next: done"


@case(calls("mcp_search_ghost", {"query": "anything"}), "done", node='tools: ["mcp:ghost"]', top="mcp_servers: [ghost]")
def a_server_that_no_worker_knows_is_answered_with_those_there_are(ended: Ended) -> None:
    expected = "MCP search failed: MCP server 'ghost' is not in mcp.json; there are plain, many"
    assert ended.error_of_result == expected
    assert ended.output == "next: done"


@case(
    calls("mcp_search_many", {"query": "item_437", "top_k": 3}),
    calls("mcp_describe_many", {"tool": "item_437"}),
    calls("mcp_invoke_many", {"tool": "item_437", "arguments": {"value": "v"}}),
    calls("mcp_invoke_many", {"tool": "item_500"}),
    "done",
    node='tools: ["mcp:many"]',
    top="mcp_servers: [many]",
)
def a_server_of_five_hundred_tools_offers_three_functions(ended: Ended) -> None:
    assert len(ended.requests[0].tools) == 3
    assert ended.result[0]["name"] == "item_437"
    assert ended.results(2)[0]["properties"]["arguments"]["properties"] == {"value": {"type": "string"}}
    assert ended.results(3)[0]["content"][0]["text"] == '{"value": "v"}'
    assert ended.results(4) == [
        {"tool_call_error": "MCP tool invocation failed: item_500 not found in many MCP server catalog"}
    ]
    assert ended.output == "next: done"


# Models that do badly


@case(Reply("not the whole of it", garbage='data: {"half'))
def a_stream_of_garbage_fails_the_node(ended: Ended) -> None:
    assert str(ended.output).startswith("fallback: LLM node failed: the provider's answer is not JSON: Unterminated")
    assert len(ended.requests) == 1


@case(Reply("a long text that is cut in the middle", close="within"))
def a_stream_that_is_closed_in_the_middle_fails_the_node(ended: Ended) -> None:
    assert str(ended.output).startswith("fallback: LLM node failed: ")
    assert "the server closed the connection in the middle of its answer" in str(ended.output)
    assert len(ended.requests) == 1


@case(calls("echo", {"text": "x"}), Reply(close="reset"), node="tools: [echo], max_attempts: 3")
def a_turn_that_fails_is_tried_again_and_what_was_done_before_is_not(ended: Ended) -> None:
    assert [request.turn for request in ended.requests] == [1, 2, 2, 2]
    assert (ended.scratch / "echoed").read_text() == "x"
    assert str(ended.output).startswith("fallback: LLM node failed: ")
    assert "Connection reset by peer" in str(ended.output)


@case("")
def an_empty_answer_is_an_answer(ended: Ended) -> None:
    assert ended.output == "next: "


@case(
    Reply(status=401, error=f"Incorrect API key provided: {KEY}"),
    node="tools: [echo], max_attempts: 3",
    graph=GRAPH.replace(", fallback: rescue", ""),
)
def a_key_that_is_refused_fails_the_node_at_once_and_is_not_shown(ended: Ended) -> None:
    assert str(ended.output).startswith("next: LLM node failed: ")
    assert "Incorrect API key provided" in str(ended.output)
    assert len(ended.requests) == 1


@case(calls("echo", {"text": "a"}), calls("echo", {"text": "b"}), node="tools: [echo], max_iterations: 2")
def a_model_that_never_concludes_is_stopped(ended: Ended) -> None:
    assert ended.output == "fallback: LLM node failed: llm node hit max_iterations (2) before LLM concluded"
    assert (ended.scratch / "echoed").read_text() == "ab"
    assert len(ended.requests) == 2


@case("hello", graph=GRAPH.replace("next: after, fallback: rescue, ", ""))
def a_node_that_leads_nowhere_fails_the_run(ended: Ended) -> None:
    assert (ended.info.status, ended.output) == ("failed", None)
    assert str(ended.info.error).endswith("at node 'ask': llm node 'ask' has no `next` and is not an end node")


@case(calls("hang"), node="tools: [hang], timeout: 4", tools={"tools_sh": HANG})
def the_nodes_time_is_over_while_a_tool_runs_which_dies(ended: Ended) -> None:
    assert ended.output == "fallback: LLM node failed: llm node timed out after 4s"
    wait_until(ended.no_process_is_left, "the tool and its child are dead")


# People


def answers_all(case: Case, run: Run, lab: Lab) -> None:
    wait_until(lambda: len(run.gates()) == 5, "the questions are open")
    ask, own_words, confirm, text, checkbox = gates = run.gates()
    assert [gate.kind for gate in gates] == ["approval", "approval", "confirm", "input", "checkbox"]
    assert (ask.question, ask.options) == ("Which colour?", ("red", "blue"))
    run.answer("blue", ask)
    run.answer("neither, green", own_words)
    run.answer("maybe", confirm)
    run.answer("", text)
    run.answer("a, c", checkbox)
    again = "The answer must be yes or no, not 'maybe'.\nSure?"
    wait_until(lambda: [gate.question for gate in run.gates()] == [again], "it is asked again")
    run.answer("no")


COLMINE = ["red", "blue"]


@case(
    Reply(
        calls=[
            Call("user__ask", {"question": "Which colour?", "options": COLMINE}),
            Call("user__ask", {"question": "Which one?", "options": json.dumps(COLMINE)}),
            Call("user__confirm", {"question": "Sure?"}),
            Call("user__input", {"question": "Why?"}),
            Call("user__checkbox", {"question": "Which?", "options": ["a", "b", "c"]}),
            Call("user__checkbox", {"question": "Which?"}),
            Call("echo", {"text": "at once"}),
        ]
    ),
    "thanks",
    node="tools: [echo, user__ask, user__confirm, user__input, user__checkbox]",
    person=answers_all,
)
def questions_of_every_kind_are_answered_by_a_person(ended: Ended) -> None:
    assert ended.results() == [
        {"answer": "blue"},
        {"answer": "neither, green"},
        {"answer": "no"},
        {"answer": ""},
        {"answers": ["a", "c"]},
        {"tool_call_error": "User interaction failed: 'options' is required and must be an array of strings"},
        {"said": "at once"},
    ]
    assert ended.output == "next: thanks"


def cancels_the_turn(case: Case, run: Run, lab: Lab) -> None:
    wait_until(lambda: lab.model.calls_of(case.name), "the model is asked")
    run.cancel()


@case(Reply("too late", hang=True), person=cancels_the_turn)
def a_run_that_is_cancelled_while_the_model_is_asked_ends(ended: Ended) -> None:
    assert (ended.info.status, ended.output) == ("cancelled", None)
    assert len(ended.requests) == 1


def cancels_the_tool(case: Case, run: Run, lab: Lab) -> None:
    wait_until((lab.scratch(case.name) / "hangs").exists, "the tool runs")
    assert any(run.id.encode() in variables for variables in environments())
    run.cancel()


@case(calls("hang"), "too late", node="tools: [hang]", tools={"tools_sh": HANG}, person=cancels_the_tool)
def a_run_that_is_cancelled_while_a_tool_runs_ends_and_so_does_the_tool(ended: Ended) -> None:
    assert (ended.info.status, ended.output) == ("cancelled", None)
    wait_until(ended.no_process_is_left, "the tool and its child are dead")
    assert len(ended.requests) == 1


# Limits


def sees_that_one_waits(case: Case, run: Run, lab: Lab) -> None:
    """One of two runs holds the model, which hangs until the other was told to wait, and for what."""
    both = [lab.runs["one_of_two_runs_has_the_model"], lab.runs["the_other_is_put_off_and_has_it_later"]]

    def waits() -> list[str]:
        infos = [each.info() for each in both]
        return [line for info in infos for line in places(info, lab.client.now_ms(), 5) if "limit 'openai:one'" in line]

    [line] = wait_until(waits, "one of them waits for the limit")
    assert line.startswith("ask (turn 1: limit 'openai:one' until ")
    lab.model.release()


ONE = 'tools: [echo], model: "openai:one"'
LIMITED = GRAPH.replace('model: "openai:gpt-test", ', "")


@case(Reply(hang=True, calls=[Call("echo", {"text": "x"})]), "done", node=ONE, graph=LIMITED)
def one_of_two_runs_has_the_model(ended: Ended) -> None:
    assert ended.output == "next: done"
    assert len(ended.requests) == 2


@case(
    Reply(hang=True, calls=[Call("echo", {"text": "x"})]),
    "done",
    node=ONE,
    graph=LIMITED,
    person=sees_that_one_waits,
)
def the_other_is_put_off_and_has_it_later(ended: Ended) -> None:
    assert ended.output == "next: done"
    assert len(ended.requests) == 2


# Loops in graphs


MAP = """
name: case
start: each
initial_state: {{words: [one, two, three]}}
nodes:
  each: {{type: map, over: "{{{{words}}}}", as: word, branch: ask, collect_into: heard, next: after}}
  ask: {{type: llm, model: "openai:gpt-test", prompt: "{{{{initial_prompt}}}} [word {{{{word}}}}]", tools: [echo]}}
  after: {{type: end, output: "{{{{heard}}}}"}}
"""


@case(calls("echo", {"text": "."}), "heard", graph=MAP)
def each_item_of_a_map_has_a_conversation_of_its_own(ended: Ended) -> None:
    assert ended.state["heard"] == ["heard"] * 3
    first = [request.prompt.partition("[word ")[2] for request in ended.requests if request.turn == 1]
    assert sorted(first) == ["one]", "three]", "two]"]
    assert (ended.scratch / "echoed").read_text() == "..."
    assert [[result.text for result in request.tool_results] for request in ended.requests if request.turn == 2] == [
        ['{"said":"."}']
    ] * 3


SCHEMA = "output_schema: {type: object, properties: {city: {type: string}, n: {type: integer}}}"


@case(
    calls("echo", {"text": "x"}),
    '```json\n{"city": "Oslo", "n": 3}\n```',
    node=f"tools: [echo], {SCHEMA}",
)
def what_is_said_after_tools_can_be_structured(ended: Ended) -> None:
    assert (ended.state["city"], ended.state["n"]) == ("Oslo", 3)
    assert "Respond with a JSON object that matches this schema." in ended.requests[1].messages[0]["content"]
    assert len(ended.requests) == 2
    assert ended.output == 'next: {"city":"Oslo","n":3}'


@case(
    Reply("[conversation what_was_said_before_the_tools_is_structured_too] Let me see.", [Call("echo", {"text": "x"})]),
    "It is Oslo, and there are 3.",
    '{"city": "Oslo", "n": 3}',
    node=f"tools: [echo], {SCHEMA}",
)
def what_was_said_before_the_tools_is_structured_too(ended: Ended) -> None:
    *_, extracting = ended.requests
    assert len(ended.requests) == 3
    assert extracting.tools == []
    assert extracting.prompt.endswith("] Let me see.\nIt is Oslo, and there are 3.")
    assert (ended.state["city"], ended.state["n"]) == ("Oslo", 3)


# The agents of the fixtures

LOOK_UP = Reply(
    calls=[
        Call("whose_address", {"ip": "192.0.2.7"}),
        Call("whose_address", {"ip": "203.0.113.9", "briefly": True}),
        Call("is_private", {"ips": ["10.0.0.1", "192.0.2.7"]}),
        Call("is_private", {"ips": ["home"]}),
    ]
)


@case(LOOK_UP, "It is kept for documents.", folder=FIXTURES / "ip-info-sh")
def the_agent_with_tools_in_bash_looks_addresses_up(ended: Ended) -> None:
    *found, bad = ended.results()
    assert found == FACTS
    assert bad == {"tool_call_error": "Tool call 'is_private' exited with code 3", "stderr": "'home' is no address"}
    assert parameters_told(ended) == PARAMETERS
    assert ended.output == "It is kept for documents."


@case(LOOK_UP, "It is kept for documents.", folder=FIXTURES / "ip-info-py")
def the_agent_with_tools_in_python_looks_addresses_up(ended: Ended) -> None:
    *found, bad = ended.results()
    assert found == FACTS
    assert bad["tool_call_error"] == "Tool call 'is_private' exited with code 1"
    assert bad["stderr"].endswith("ValueError: 'home' is no address")
    assert parameters_told(ended) == PARAMETERS
    assert ended.output == "It is kept for documents."


FACTS = [
    {"ip": "192.0.2.7", "owner": "documentation", "use": "examples"},
    {"output": "nobody"},
    {"output": "10.0.0.1 is private\n192.0.2.7 is public"},
]
PARAMETERS = {
    "whose_address": {
        "type": "object",
        "properties": {
            "ip": {"type": "string", "description": "The address, as four numbers"},
            "briefly": {"type": "boolean", "description": "Only the owner"},
        },
        "required": ["ip"],
    },
    "is_private": {
        "type": "object",
        "properties": {"ips": {"type": "array", "items": {"type": "string"}, "description": "The addresses"}},
        "required": ["ips"],
    },
}


def parameters_told(ended: Ended) -> dict[str, Any]:
    functions = [tool["function"] for tool in ended.requests[0].body["tools"]]
    return {function["name"]: function["parameters"] for function in functions}


# The stack and the test


@pytest.fixture
def lab(redis_server: RedisServer, tmp_path: Path) -> Iterator[Lab]:
    config = tmp_path / "loki"
    servers = {
        name: {"type": "stdio", "command": sys.executable, "args": ["-I", "-S", str(PLAIN_SERVER), fault]}
        for name, fault in (("plain", "none"), ("many", "many"))
    }
    functions = config / "functions"
    (functions / "tools").mkdir(parents=True)
    (functions / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (functions / "tools" / "shout.sh").write_text(SHOUT)
    (functions / "tools" / "count.py").write_text(COUNT)
    (tmp_path / "limits.yaml").write_text('models: {"openai:one": {max_parallel: 1}}\n')

    def replies(request: Request) -> Reply | str:
        return CASES[str(request.conversation)].reply(request)

    settings = {"key_prefix": "wrongs", "limits": tmp_path / "limits.yaml", "lease_s": 5.0}
    with ModelServer(replies) as model, Stack(redis_server, tmp_path / "home", **settings) as stack:
        own = {"LOKI_CONFIG_DIR": str(config)}
        stack.start_scheduler()
        stack.start_worker("models", "llm", concurrency=8, env={**model.env(key=KEY), **own}, ready=False)
        stack.start_worker("tools", "scripts", concurrency=8, env=own, ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name, 90)  # on a busy machine the import of litellm takes its time
        with stack.client() as client:
            yield Lab(stack, model, client, tmp_path)


@pytest.mark.conformance("M03", "M04", "M05", "M06", "M07", "M08", "M09", "M10", "M11", "M12", "M16", "M17")
@pytest.mark.conformance("O01", "O03", "O04", "O06", "Q01", "L06")
@pytest.mark.conformance("X01", "X03", "X04", "X06", "X07", "X08", "X09", "X10", "X12", "X14", "X15", "X17")
def test_every_failure_of_tools_is_reported_precisely_and_the_run_continues_correctly(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    for name, each in CASES.items():
        lab.scratch(name).mkdir(parents=True)
        folder = each.folder or write_agent(lab.home / "agents" / name, each.graph, **each.tools)
        lab.runs[name] = lab.client.submit(folder, f"[conversation {name}]", caller_dir=lab.scratch(name))
    for name, each in CASES.items():
        if each.person is not None:
            with subtests.test(f"person of {name}"):
                each.person(each, lab.runs[name], lab)
    lab.model.release()
    for name, each in CASES.items():
        with subtests.test(name):
            ended = ended_run(lab, each)
            each.check(ended)
            every_part_is_there_once(ended)
            every_call_is_answered_in_its_place(ended)
            assert KEY not in f"{ended.output} {ended.info.error} {ended.steps} {ended.state}"


def ended_run(lab: Lab, of: Case) -> Ended:
    run = lab.runs[of.name]
    info = run.wait(90)
    return Ended(info, run.output, run.state(), run.history(), lab.model.calls_of(of.name), lab.scratch(of.name))


def every_part_is_there_once(ended: Ended) -> None:
    parts = Counter((step.part.loop, step.part.turn, step.part.call) for step in ended.steps if step.part is not None)
    assert set(parts.values()) <= {1}


def every_call_is_answered_in_its_place(ended: Ended) -> None:
    """As providers demand: after a message with calls come their results, and nothing between."""
    for request in ended.requests:
        messages = request.messages
        for place, message in enumerate(messages):
            asked = [call["id"] for call in message.get("tool_calls") or ()]
            answers = messages[place + 1 : place + 1 + len(asked)]
            assert [answer.get("tool_call_id") for answer in answers] == asked
