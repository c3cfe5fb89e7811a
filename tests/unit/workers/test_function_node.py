"""The function node, with real files and modules."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir import interrupt
from sleipnir.graph.model import FunctionNode
from sleipnir.messages import InterruptQuestion, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.interrupts import UsedAnswer, answers_text
from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.nodes.function import run_function
from tests.unit.workers.visits import visit


def run(
    folder: Path, body: str, *, call: str = "steps.py:step", files: dict[str, str] | None = None, **fields: Any
) -> VisitResult:
    """Run `body`, the text of steps.py, as a function node."""
    for name, text in {"steps.py": body, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    node_fields = {key: fields.pop(key) for key in ("timeout", "state_updates") if key in fields}
    node = FunctionNode(id="step", call=call, **node_fields)
    return run_function(node, visit(node, folder, **fields))


def failure(message: str, kind: str, type_: str | None = None) -> VisitResult:
    return VisitResult(
        ok=False,
        delta={"_error": {"node": "step", "message": message}, "last_error": message},
        error=message,
        error_kind=kind,
        error_type=type_,
        notes=("running function 'steps.py:step'",),
    )


def test_the_returned_dict_is_merged(tmp_path: Path) -> None:
    result = run(tmp_path, "def step(state):\n    return {'n': state['n'] + 1, 'l': [None]}", state={"n": 1})
    assert result == VisitResult(
        ok=True, delta={"n": 2, "l": [None]}, notes=("running function 'steps.py:step'", "merged: n, l")
    )


def test_a_function_of_a_class_is_named_with_the_class(tmp_path: Path) -> None:
    steps = "class Steps:\n    @staticmethod\n    def count(state): return {'n': 1}\n"
    assert run(tmp_path, steps, call="steps.py:Steps.count").delta == {"n": 1}
    lost = run(tmp_path, steps, call="steps.py:Steps.other.gone")
    assert lost.error == "Function 'steps.py:Steps.other.gone' not found: 'steps.py' defines no 'Steps.other.gone'"


@pytest.mark.conformance("RT-20")
def test_none_is_an_empty_dict_and_takes_the_edges(tmp_path: Path) -> None:
    assert run(tmp_path, "def step(state): pass") == VisitResult(ok=True, notes=("running function 'steps.py:step'",))


def test_next_routes_as_in_a_script(tmp_path: Path) -> None:
    result = run(tmp_path, "def step(state): return {'_next': 'again', 'a': 1}")
    assert (result.next, result.delta) == ("again", {"a": 1})
    result = run(tmp_path / "other", "def step(state): return {'_next': 3}")
    assert (result.ok, result.next, result.delta) == (True, None, {})


def test_state_updates_see_the_new_keys(tmp_path: Path) -> None:
    result = run(
        tmp_path, "def step(state): return {'n': 2}", state_updates={"text": "{{n}} of {{all}}"}, state={"all": 3}
    )
    assert result.delta == {"n": 2, "text": "2 of 3"}


def test_the_state_is_a_deep_copy(tmp_path: Path) -> None:
    state = {"list": [{"a": 1}]}
    run(tmp_path, "def step(state):\n    state['list'][0]['a'] = 2\n    state.clear()", state=state)
    assert state == {"list": [{"a": 1}]}


def test_an_installed_module_is_called_by_its_name(tmp_path: Path) -> None:
    assert run(tmp_path, "", call="copy:deepcopy", state={"a": 1}).delta == {"a": 1}


# Loading


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    body = "calls = []\ndef step(state):\n    calls.append(1)\n    return {'calls': len(calls)}"
    assert [run(tmp_path, body).delta["calls"] for _ in range(3)] == [1, 2, 3]


def test_two_agents_may_use_the_same_file_names(tmp_path: Path) -> None:
    body = "import helper\ndef step(state): return {'who': helper.WHO}"
    for who in ("a", "b"):
        assert run(tmp_path / who, body, files={"helper.py": f"WHO = '{who}'"}).delta == {"who": who}


def test_neighbours_are_imported_in_every_form(tmp_path: Path) -> None:
    body = """
import helper
import pack.inner
from helper import WHO
from pack.inner import DEEP as deep
from . import helper as relative
import json, os.path

def step(state):
    import later
    same = helper is relative and helper.WHO == WHO and pack.inner.DEEP == deep
    return {"same": same, "later": later.VALUE, "json": json.dumps([os.path.sep])}
"""
    files = {
        "helper.py": "import later\nWHO = later.VALUE",
        "later.py": "VALUE = 'l'",
        "pack/__init__.py": "",
        "pack/inner.py": "import helper\nDEEP = helper.WHO + 'd'",
    }
    assert run(tmp_path, body, files=files).delta == {"same": True, "later": "l", "json": '["/"]'}


@pytest.fixture
def bytecode_is_written() -> Iterator[None]:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    yield
    sys.dont_write_bytecode = before


@pytest.mark.usefixtures("bytecode_is_written")
def test_loading_leaves_no_trace_on_the_import_path(tmp_path: Path) -> None:
    before = list(sys.path)
    run(tmp_path, "import neighbour_of_this_test\ndef step(state): pass", files={"neighbour_of_this_test.py": ""})
    assert sys.path == before
    assert "neighbour_of_this_test" not in sys.modules
    assert not (tmp_path / "__pycache__").exists()


def test_dataclasses_work_in_a_loaded_file(tmp_path: Path) -> None:
    body = """
from __future__ import annotations
from dataclasses import dataclass, asdict
@dataclass
class Point:
    x: int
def step(state): return asdict(Point(1))
"""
    assert run(tmp_path, body).delta == {"x": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("gone.py:step", "Function file not found: 'gone.py'"),
        ("../steps.py:step", "Function file '../steps.py' is outside the agent's folder"),
        ("steps.py:gone", "Function 'steps.py:gone' not found: 'steps.py' defines no 'gone'"),
        ("steps.py:NUMBER", "Function 'steps.py:NUMBER' is a int, which cannot be called"),
        ("steps.py:wait", "Function 'steps.py:wait' is async; write a plain def"),
        ("steps.py", "Function call 'steps.py' must be 'file.py:name' or 'package.module:name'"),
        ("no_such_module:step", "Function 'no_such_module:step' not found: no module 'no_such_module' is installed"),
    ],
)
def test_a_call_that_cannot_be_found_reports_why(tmp_path: Path, call: str, message: str) -> None:
    (tmp_path / "steps.py").write_text("")
    result = run(tmp_path / "agent", "NUMBER = 1\nasync def wait(state): pass", call=call)
    assert not result.ok
    assert str(result.error).startswith(message)


def test_a_missing_dependency_of_a_file_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "import no_such_module\ndef step(state): pass")
    assert result == failure(
        "Function 'steps.py:step' raised ModuleNotFoundError: No module named 'no_such_module' "
        "(steps.py:1: import no_such_module)",
        "exception",
        "builtins:ModuleNotFoundError",
    )


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    assert "raised SyntaxError:" in str(run(tmp_path, "x = 1\ndef step(state) return {}").error)
    assert "steps.py, line 2" in str(run(tmp_path, "x = 1\ndef step(state) return {}").error)


# Failing


def test_an_exception_is_a_failure_with_the_users_own_line(tmp_path: Path) -> None:
    body = "import json\ndef step(state):\n    return json.loads(state['text'])"
    result = run(tmp_path, body, state={"text": "{"})
    assert result == failure(
        "Function 'steps.py:step' raised JSONDecodeError: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1) (steps.py:3: return json.loads(state['text']))",
        "exception",
        "json.decoder:JSONDecodeError",
    )


@pytest.mark.parametrize(
    ("raised", "transient"), [("ConnectionResetError()", True), ("TimeoutError()", True), ("ValueError()", False)]
)
def test_some_exceptions_are_transient(tmp_path: Path, raised: str, transient: bool) -> None:
    assert run(tmp_path, f"def step(state): raise {raised}").transient is transient


def test_leaving_the_process_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys\ndef step(state): sys.exit(3)").error_kind == "exception"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("{'a': {1}}", "key 'a' is a set, which is not JSON"),
        ("{'a': [{'b': __import__('datetime').date(2024, 1, 1)}]}", "key 'a[0].b' is a date, which is not JSON"),
        ("{'a': float('nan')}", "key 'a' is NaN, which JSON cannot hold; use null or a number"),
        ("{'a': {2: 'x'}}", "key 'a.2' is named by a int; names must be strings"),
        ("{3: 'x'}", "key '3' is named by a int; names must be strings"),
        ("{'a': b'x'}", "key 'a' is a bytes, which is not JSON"),
        ("CYCLE", "key 'a[0]' contains itself"),
        ("DEEP", "it is nested too deeply"),
    ],
)
def test_what_is_not_json_is_named(tmp_path: Path, expression: str, problem: str) -> None:
    body = f"""
loop = []
loop.append(loop)
CYCLE = {{"a": loop}}
DEEP = {{}}
for _ in range(5_000): DEEP = {{"d": DEEP}}
def step(state): return {expression}
"""
    message = f"Function 'steps.py:step' returned something that is not JSON: {problem}"
    assert run(tmp_path, body) == failure(message, "output")


def test_a_value_used_twice_is_no_cycle(tmp_path: Path) -> None:
    assert run(tmp_path, "def step(state):\n    x = [1]\n    return {'a': [x, x]}").delta == {"a": [[1], [1]]}


@pytest.mark.conformance("RT-21")
def test_something_else_than_a_dict_or_commands_is_refused(tmp_path: Path) -> None:
    message = "Function 'steps.py:step' returned a int; return a dict, a Command, a list of Commands, or None"
    assert run(tmp_path, "def step(state): return 5") == failure(message, "output")


def test_a_timeout_interrupts_the_function(tmp_path: Path) -> None:
    started = time.monotonic()
    result = run(tmp_path, "def step(state):\n    while True: pass", timeout=1)
    assert result == failure("Function 'steps.py:step' timed out after 1s", "timeout")
    assert time.monotonic() - started < 30


def test_a_function_that_catches_every_exception_cannot_escape_its_timeout(tmp_path: Path) -> None:
    body = (
        "def step(state):\n    while True:\n        try:\n            while True: pass\n        except Exception: pass"
    )
    assert run(tmp_path, body, timeout=1).error_kind == "timeout"


def test_a_lost_visit_stops_the_function_and_returns_nothing(tmp_path: Path) -> None:
    lost = threading.Event()
    started = threading.Event()
    body = "def step(state):\n    state_of_test['started'].set()\n    while True: pass"
    run(tmp_path, body, call="steps.py:gone")  # loads the file
    module = next(
        module for module in list(sys.modules.values()) if getattr(module, "__file__", "") == str(tmp_path / "steps.py")
    )
    vars(module)["state_of_test"] = {"started": started}
    loser = threading.Thread(target=lambda: started.wait(60) and lost.set())
    loser.start()
    with pytest.raises(VisitLost):
        run(tmp_path, body, lost=lost)
    loser.join()


def answers(*values: UsedAnswer) -> StoredConversation:
    return StoredConversation(answers_text(values))


ASKS = """
from sleipnir import interrupt

def step(state):
    first = interrupt("who?")
    sure = interrupt({"sure": first}, key="sure")
    return {"who": first, "sure": sure, "where": interrupt("where?")}
"""


@pytest.mark.conformance("IN-04", "IN-05")
def test_a_function_asks_one_question_after_the_other_and_then_returns(tmp_path: Path) -> None:
    first = run(tmp_path, ASKS).interrupt
    assert first == InterruptQuestion("step#0", "who?")
    ann = UsedAnswer(None, 0, "Ann")
    assert run(tmp_path, ASKS, talk=answers(ann)).interrupt == InterruptQuestion("sure", {"sure": "Ann"}, "sure", 1)
    third = run(tmp_path, ASKS, talk=answers(ann, UsedAnswer("sure", 1, None))).interrupt
    assert third == InterruptQuestion("step#1", "where?", None, 2)
    last = run(tmp_path, ASKS, talk=answers(ann, UsedAnswer("sure", 1, None), UsedAnswer(None, 2, [])))
    assert (last.ok, last.delta) == (True, {"who": "Ann", "sure": None, "where": []})


@pytest.mark.parametrize(
    "swallows",
    [
        "    try:\n        interrupt('?')\n    except Exception:\n        return {'x': 1}",
        "    try:\n        interrupt('?')\n    except BaseException:\n        return {'x': 1}",
        "    try:\n        interrupt('?')\n    finally:\n        raise ValueError('again')",
        "    try:\n        interrupt('?')\n    except BaseException:\n        interrupt('another')",
        "    with contextlib.suppress(BaseException):\n        interrupt('?')",
    ],
)
def test_a_function_cannot_swallow_its_question(swallows: str, tmp_path: Path) -> None:
    result = run(tmp_path, f"import contextlib\nfrom sleipnir import interrupt\n\ndef step(state):\n{swallows}")
    assert (result.ok, result.interrupt) == (False, InterruptQuestion("step#0", "?"))


@pytest.mark.parametrize(
    ("body", "used"),
    [
        ("    interrupt('b', key='b')\n    interrupt('a')", [UsedAnswer(None, 0, 1)]),
        ("    interrupt('b', key='b')", [UsedAnswer(None, 0, 1)]),
        ("    interrupt('a')\n    interrupt('b', key='b')", [UsedAnswer("b", 0, 1), UsedAnswer(None, 1, 2)]),
    ],
    ids=["another key comes first", "the position is not asked for any more", "the position has moved"],
)
def test_questions_in_another_order_than_before_are_an_error_of_the_node(
    body: str, used: list[UsedAnswer], tmp_path: Path
) -> None:
    steps = f"from sleipnir import interrupt\n\ndef step(state):\n{body}"
    result = run(tmp_path, steps, talk=answers(*used))
    assert (result.ok, result.error_kind, result.interrupt) == (False, "exception", None)
    assert "node 'step' asks its questions in another order" in (result.error or "")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("interrupt({1})", "what an interrupt asks must be JSON: key 'value' is a set"),
        ("interrupt('x' * 300_000)", "what an interrupt asks has 300,002 bytes, at most 262,144 fit"),
        ("interrupt('?', key='')", "the key of an interrupt must be a text, not ''"),
        ("interrupt('?', timeout=-1)", "must be a positive number of seconds, not -1"),
        ("interrupt('?', response_schema={'type': 'colour'})", "the schema of an interrupt cannot be used"),
    ],
)
def test_a_question_that_cannot_be_asked_fails_the_visit(call: str, reason: str, tmp_path: Path) -> None:
    result = run(tmp_path, f"from sleipnir import interrupt\n\ndef step(state):\n    {call}")
    assert (result.ok, result.interrupt) == (False, None)
    assert reason in (result.error or "")


def test_an_answer_becomes_an_instance_of_its_class(tmp_path: Path) -> None:
    steps = """
from dataclasses import dataclass
from sleipnir import interrupt

@dataclass
class Person:
    name: str
    age: int = 1

def step(state):
    person = interrupt("who?", response_schema=Person, timeout=1.5)
    return {"kind": type(person).__name__, "age": person.age}
"""
    asked = run(tmp_path, steps).interrupt
    assert asked is not None
    assert (asked.schema["required"], asked.timeout_ms) == (["name"], 1500)
    assert run(tmp_path, steps, talk=answers(UsedAnswer(None, 0, {"name": "Ann"}))).delta == {
        "kind": "Person",
        "age": 1,
    }


def test_only_a_node_may_ask() -> None:
    with pytest.raises(RuntimeError, match=r"interrupt\(\) was called outside of a node"):
        interrupt("?")


HELPERS = """
from sleipnir import clear_resume_value, has_resume_value, interrupt, resume_value

def step(state):
    before = [has_resume_value("n"), resume_value("n", default=None)]
    number = interrupt("how many?", key="n")
    if number == 0:
        clear_resume_value("n")
        number = interrupt("how many, not 0?", key="n")
    problem = None
    try:
        resume_value("n", response_schema={"type": "string"})
    except ValueError as error:
        problem = str(error)
    try:
        resume_value("other")
    except KeyError as error:
        problem += error.args[0]
    first = resume_value("step#0", default="unanswered")
    return {"before": before, "number": number, "problem": problem, "first": first, "last": interrupt("last?")}
"""


@pytest.mark.conformance("IN-06")
def test_answers_are_looked_up_cleared_and_checked_without_asking(tmp_path: Path) -> None:
    assert run(tmp_path, HELPERS).interrupt == InterruptQuestion("n", "how many?", "n")
    nought = UsedAnswer("n", 0, 0)
    again = run(tmp_path, HELPERS, talk=answers(nought)).interrupt
    assert again == InterruptQuestion("n", "how many, not 0?", "n", 1)
    two = UsedAnswer("n", 1, 2)
    assert run(tmp_path, HELPERS, talk=answers(nought, two)).interrupt == InterruptQuestion("step#0", "last?", None, 2)
    last = run(tmp_path, HELPERS, talk=answers(nought, two, UsedAnswer(None, 2, "x")))
    assert last.delta == {
        "before": [True, 0], "number": 2, "first": "x", "last": "x",
        "problem": "the answer to 'n' does not match the schema: $: 2 is not of type 'string'"
        "no question 'other' of this visit has an answer",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["resume_value", "has_resume_value", "clear_resume_value"])
def test_answers_are_known_only_inside_a_node(name: str) -> None:
    import sleipnir

    with pytest.raises(RuntimeError, match=rf"{name}\(\) was called outside of a node"):
        getattr(sleipnir, name)("k")
