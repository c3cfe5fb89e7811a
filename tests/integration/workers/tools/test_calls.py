"""Calls of real tools in real processes: results, failures, limits (spec 4.5), and the three languages."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.processes import warm_python
from sleipnir_workers.tools import languages
from sleipnir_workers.tools.call import CATALOG, answer
from sleipnir_workers.tools.repeated_calls import PastCall
from tests.integration.workers.shim_files import write_shim
from tests.integration.workers.tools.places import Agent
from tests.unit.workers import visits
from tests.unit.workers.visits import PATH, When, is_gone, text_of
from tests.waiting import wait_until


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def bash(body: str, *tags: str) -> str:
    """A tools.sh whose one tool `t` has this body."""
    listed = "".join(f"# {tag}\n" for tag in tags)
    return f'# @cmd A tool\n{listed}t() {{\n{body}\n}}\neval "$(argc --argc-eval "$0" "$@")"\n'


def python(body: str, signature: str = "") -> str:
    """A tools.py whose one tool `t` has this body."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return f'def t({signature}):\n    """A tool"""\n{indented}'


# Results


@pytest.mark.conformance("X08", "X10", "CY14")
@pytest.mark.parametrize(
    ("body", "value"),
    [
        ('echo hello >> "$LLM_OUTPUT"', {"output": "hello"}),
        ('echo 42 >> "$LLM_OUTPUT"', 42),
        ('printf \'{"a": [1, null]}\' > "$LLM_OUTPUT"', {"a": [1, None]}),
        ('echo "[true]" >> "$LLM_OUTPUT"', [True]),
        ('echo \'"text"\' >> "$LLM_OUTPUT"', "text"),
        ("printf '  1\\n  2 \\n\\n' >> \"$LLM_OUTPUT\"", {"output": "  1\n  2"}),
        ('echo NaN >> "$LLM_OUTPUT"', {"output": "NaN"}),
        ('echo 1e999 >> "$LLM_OUTPUT"', {"output": "1e999"}),
        ("printf 'caf\\xe9' >> \"$LLM_OUTPUT\"", {"output": "caf�"}),
        (
            "printf 'a\\0b' >> \"$LLM_OUTPUT\"",
            {"output": "(3 bytes that are not text; have the tool write a file and name it)"},
        ),
        ("echo ignored", "DONE"),
        ('echo null >> "$LLM_OUTPUT"', "DONE"),
        ('echo >> "$LLM_OUTPUT"', "DONE"),
        ('rm "$LLM_OUTPUT"', "DONE"),
        ('ln -sf /etc/hostname "$LLM_OUTPUT"', "DONE"),
        ('rm "$LLM_OUTPUT"; mkfifo "$LLM_OUTPUT"', "DONE"),
    ],
)
def test_the_result_is_what_the_tool_leaves_in_llm_output(agent: Agent, body: str, value: Any) -> None:
    result = agent.has("tools.sh", bash(body)).call("t")
    assert (result.value, result.failure) == (value, None)
    assert json.loads(result.text) == value


@pytest.mark.conformance("X09")
def test_a_tool_that_exits_with_another_code_failed(agent: Agent) -> None:
    result = agent.has("tools.sh", bash('echo " why " >&2; exit 3')).call("t")
    assert result.value == {"tool_call_error": "Tool call 't' exited with code 3", "stderr": "why"}
    assert result.failure == "exit"


@pytest.mark.conformance("CY10", "CY12")
def test_the_model_reads_the_complete_output_of_a_failed_tool(agent: Agent) -> None:
    """Finding U7 of the second review."""
    text = "# @describe x\nmain() {\necho left >> \"$LLM_OUTPUT\"; echo ' why ' >&2; echo 2 tests failed; exit 3\n}\n"
    result = agent.has("loki/functions/tools/find.sh", text).call("find", {})
    assert result.value == {
        "tool_call_error": "Tool call 'find' exited with code 3",
        "stderr": "why",
        "stdout": "2 tests failed",
        "output": "left",
    }


def test_the_model_reads_the_beginning_of_the_long_output_of_a_failed_tool(tmp_path: Path) -> None:
    agent = Agent(tmp_path, max_tool_result_bytes=40)
    value = agent.has("tools.sh", bash('printf "é%.0s" {1..99}; exit 1')).call("t").value
    assert isinstance(value, dict) and value["stdout"] == "é" * 5


@pytest.mark.conformance("X09", "CY11")
def test_a_failure_without_output_has_no_stderr(agent: Agent) -> None:
    assert agent.has("tools.sh", bash("exit 1")).call("t").value == {
        "tool_call_error": "Tool call 't' exited with code 1"
    }


@pytest.mark.conformance("X09", "CY13")
def test_a_tool_that_dies_of_a_signal_failed(agent: Agent) -> None:
    result = agent.has("tools.sh", bash("kill -SEGV $BASHPID")).call("t")
    assert result.value == {"tool_call_error": "Tool call 't' was killed by signal 11 (SIGSEGV)"}


def test_what_a_tool_prints_is_kept_apart_and_never_stops_it(agent: Agent) -> None:
    body = 'head -c 3000000 /dev/zero | tr "\\0" x; echo end; echo err >&2; echo 1 >> "$LLM_OUTPUT"'
    result = agent.has("tools.sh", bash(body)).call("t")
    assert result.value == 1
    assert result.printed.startswith("xxx") and result.printed.endswith("x" + "end\nerr\n")
    assert len(result.printed) < 100_000 and "bytes left out" in result.printed


def test_the_beginning_of_a_large_result_is_kept_and_the_rest_counted(tmp_path: Path) -> None:
    agent = Agent(tmp_path, max_tool_result_bytes=1000).has("tools.py", python('return "é" * 700'))
    result = agent.call("t")
    assert result.value == {
        "output": "é" * 500,
        "truncated": "The result had 1,400 bytes: these are the first 1,000, the other 400 were cut. "
        "Ask for less of it, or for the rest.",
    }
    assert result.cut_bytes == 400
    assert agent.has("tools.py", python('return "é" * 500')).call("t").value == {"output": "é" * 500}


def test_a_character_that_is_cut_in_two_is_left_out(tmp_path: Path) -> None:
    agent = Agent(tmp_path, max_tool_result_bytes=3).has("tools.py", python('return "éé"'))
    value = agent.call("t").value
    assert isinstance(value, dict) and value["output"] == "é"


# Limits


@pytest.mark.conformance("CY16")
def test_a_tool_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    body = f"sleep 60 & echo $! > {tmp_path}/child; echo waiting >&2; read -r -t 60 < <(sleep 60)"
    agent.has("tools.sh", bash(body))
    result = answer(PastCall("t", "{}"), agent.tools, agent.place, timeout_s=0.5)
    assert result.value == {
        "tool_call_error": "Tool call 't' timed out after 0.5s and was stopped",
        "stderr": "waiting",
    }
    assert result.failure == "timeout"
    wait_until(lambda: is_gone(text_of(tmp_path / "child")), "the child is gone")


def test_a_lost_visit_kills_its_call(agent: Agent, tmp_path: Path) -> None:
    agent.has("tools.sh", bash(f"sleep 60 & echo $! > {tmp_path}/child; wait"))
    with When(lambda: text_of(tmp_path / "child"), agent.lost.set), pytest.raises(VisitLost):
        agent.call("t")
    wait_until(lambda: is_gone(text_of(tmp_path / "child")), "the child is gone")


def test_nothing_of_a_call_is_left_in_the_temporary_directory(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    agent.has("tools.sh", bash('echo "${LLM_OUTPUT%/*}" >> "$LLM_OUTPUT"; touch "${LLM_OUTPUT%/*}/more"'))
    value = agent.call("t").value
    assert isinstance(value, dict) and value["output"].startswith(f"{scratch}/tool-call-")
    assert list(scratch.iterdir()) == []


# Calls that run nothing


def test_a_tool_that_does_not_exist_is_answered_with_those_that_do(agent: Agent) -> None:
    result = agent.has("tools.py", python("return 1") + 'def u():\n    """x"""\n').call("x")
    assert result.value == {"tool_call_error": f"Unexpected call: 'x' is no tool. Available tools: t, u. {CATALOG}"}
    assert result.failure == "unknown"


def test_the_whitelist_of_the_node_is_enforced(agent: Agent, tmp_path: Path) -> None:
    agent.has("tools.py", python(f"open('{tmp_path}/ran', 'w')") + 'def u():\n    """x"""\n    return 1\n')
    result = agent.call("t", allowed=["u"])
    assert result.value == {"tool_call_error": "The tool 't' is not among the tools of this node. Available tools: u."}
    assert result.failure == "not_allowed"
    assert not (tmp_path / "ran").exists()
    assert agent.call("u", allowed=["u.py"]).value == 1
    assert agent.call("u", allowed=[]).failure == "not_allowed"


@pytest.mark.conformance("CY18")
def test_the_answer_to_an_unexpected_call_lists_built_in_tools_too(agent: Agent) -> None:
    """Finding U8 of the second review."""
    agent.has("tools.py", python("return 1"))
    allowed = ["agent:*", "user__select", "agent__spawn", "todo__add", "mcp:docs", "mcp_search_other"]
    result = agent.call("x", allowed=allowed)
    mcp = "mcp_search_docs, mcp_describe_docs, mcp_invoke_docs, mcp_search_other"
    listed = f"t, user__select, agent__spawn, todo__add, {mcp}"
    assert result.value == {"tool_call_error": f"Unexpected call: 'x' is no tool. Available tools: {listed}. {CATALOG}"}


@pytest.mark.conformance("CY19")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"a": 1', "not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ("[1]", "a JSON object is needed, not list"),
        ("1" * 5000, "not JSON that can be read: "),
        ("[" * 100_000, "not JSON that can be read: "),
        ("{}", "missing: a"),
        ('{"a": 1, "c": 2, "d": 3}', "unknown: c, d"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_is_needed(agent: Agent, arguments: str, problem: str) -> None:
    result = agent.has("tools.py", python("return a", "a: int, b: str | None")).call("t", arguments)
    assert isinstance(result.value, dict)
    message = result.value["tool_call_error"]
    assert message.startswith(f"The call 't' has invalid arguments: {arguments[:400]}")
    assert f"({problem}" in message and len(message) < 1000
    assert message.endswith(" It takes a JSON object with: a (integer, required), b (string).")
    assert result.failure == "arguments"


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", {}])
def test_no_arguments_are_an_empty_object(agent: Agent, arguments: Any) -> None:
    assert agent.has("tools.py", python("return 1")).call("t", arguments).value == 1


@pytest.mark.conformance("X14")
def test_a_call_that_repeats_the_last_two_is_not_run(agent: Agent, tmp_path: Path) -> None:
    agent.has("tools.py", python(f"open('{tmp_path}/ran', 'w')"))
    result = agent.call("t", earlier=[PastCall("t", "{}")] * 2)
    assert isinstance(result.value, dict) and list(result.value) == ["tool_call_loop_alert"]
    assert result.failure == "loop"
    assert not (tmp_path / "ran").exists()


# Bash


@pytest.mark.conformance("X06")
def test_a_bash_tool_gets_its_arguments_as_options(agent: Agent) -> None:
    body = 'printf "%s|" "$argc_city" "${argc_tag[@]}" "${argc_long-}" >> "$LLM_OUTPUT"'
    agent.has("tools.sh", bash(body, "@option --city!", "@option --tag*", "@flag --long"))
    result = agent.call("t", {"city": "O'Slo; rm -rf", "tag": ["a b", "-c"], "long": True})
    assert result.value == {"output": "O'Slo; rm -rf|a b|-c|1|"}


def test_a_bash_tool_reports_its_missing_parameters_itself(agent: Agent) -> None:
    result = agent.has("tools.sh", bash("true", "@option --city!")).call("t")
    assert isinstance(result.value, dict)
    assert "the following required arguments were not provided" in result.value["stderr"]


def test_an_argument_that_no_command_line_can_hold_is_answered(agent: Agent) -> None:
    agent.has("tools.sh", bash("true", "@option --city!"))
    result = agent.call("t", {"city": "a\0b"})
    assert isinstance(result.value, dict)
    assert result.value["output"].startswith("Unable to run t, ")
    assert result.failure == "spawn"


# The arguments as JSON


RAW = 'printf "%s|%s" "${LLM_TOOL_RAW_JSON-unset}" "${LLM_AGENT_RAW_JSON-unset}" >> "$LLM_OUTPUT"'
RAW_PY = """import os
return os.environ.get("LLM_TOOL_RAW_JSON", "unset") + "|" + os.environ.get("LLM_AGENT_RAW_JSON", "unset")"""


@pytest.mark.conformance("CY05", "CY06", "CY07")
@pytest.mark.parametrize(("name", "text"), [("tools.sh", bash(RAW)), ("tools.py", python(RAW_PY))])
def test_a_tool_of_an_agent_finds_its_arguments_as_json(agent: Agent, name: str, text: str) -> None:
    """Finding U4 of the second review."""
    assert agent.has(name, text).call("t", {}).value == {"output": "unset|{}"}


@pytest.mark.conformance("CY04", "CY05")
def test_a_global_tool_finds_its_arguments_as_json(agent: Agent) -> None:
    """Finding U4 of the second review: `execute_command` reads its command there, and did nothing."""
    text = f"# @describe x\n# @option --command!\nmain() {{\n{RAW}\n}}\n"
    result = agent.has("loki/functions/tools/execute_command.sh", text).call("execute_command", {"command": "a\n'b'\n"})
    assert result.value == {"output": '{"command":"a\\n\'b\'\\n"}|unset'}
    echo = 'main() {\njq -r .command <<< "$LLM_TOOL_RAW_JSON" >> "$LLM_OUTPUT"\n}\n'
    agent.has("loki/functions/tools/other.sh", f"# @describe x\n# @option --command!\n{echo}")
    assert agent.call("other", {"command": "echo 1\necho 2"}).value == {"output": "echo 1\necho 2"}


@pytest.mark.conformance("CY08")
@pytest.mark.parametrize("scope", ["TOOL", "AGENT"])
def test_arguments_that_are_too_long_for_a_command_line_are_read_from_files(
    agent: Agent, tmp_path: Path, scope: str
) -> None:
    """Finding U4 of the second review. The kernel takes no variable of more than 128 KiB either, also not of what the
    tool starts."""
    body = f'jq -r .content <<< "$LLM_{scope}_RAW_JSON" > {tmp_path}/file; echo ${{#argc_content}} >> "$LLM_OUTPUT"'
    if scope == "TOOL":
        text = f'# @describe x\n# @option --content!\nmain() {{\n{body}\n}}\neval "$(argc --argc-eval "$0" "$@")"\n'
        agent.has("loki/functions/tools/t.sh", text)
    else:
        agent.has("tools.sh", bash(body, "@option --content!"))
    content = "é'\n" * 100_000
    assert agent.call("t", {"content": content}).value == 300_000
    assert (tmp_path / "file").read_text() == content + "\n"


@pytest.mark.conformance("CY09")
def test_a_required_option_may_be_empty(agent: Agent) -> None:
    agent.has("tools.sh", bash('echo "[${argc_content}]" >> "$LLM_OUTPUT"', "@option --content!"))
    assert agent.call("t", {"content": ""}).value == []


def test_a_python_tool_takes_arguments_of_any_length(agent: Agent) -> None:
    text = f"{RAW_PY} + '|' + str(len(x))"
    agent.has("tools.py", python(text, "x: str").replace('"A tool"', '"A tool\n\n    Args:\n        x: X\n    "'))
    assert agent.call("t", {"x": "x" * 300_000}).value == {"output": "unset|unset|300000"}


# Python


@pytest.fixture(params=["warm", "cold"])
def start_of_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(visits, "WARM_PYTHON", request.param == "warm")
    return str(request.param)


@pytest.mark.conformance("X08")
def test_the_return_value_of_a_python_function_is_the_result(agent: Agent, start_of_python: str) -> None:
    agent.has("tools.py", "import json\n" + python("return json.loads(value)", "value: str"))
    for value in ({"a": ["é", None]}, [1], 3, 2.5, "text"):
        assert agent.call("t", {"value": json.dumps(value)}).value == (
            value if not isinstance(value, str) else {"output": value}
        )


def test_a_python_tool_behind_a_shim_starts_as_others_do(agent: Agent, tmp_path: Path, start_of_python: str) -> None:
    shim, asked = write_shim(tmp_path / "shims")
    agent.env["PATH"] = f"{shim.parent}{os.pathsep}{PATH}"
    agent.has("tools.py", python("import os, sys\nreturn [os.getppid(), sys.executable]"))
    places = [agent.call("t").value for _ in range(2)]
    assert [executable for _, executable in places] == [sys.executable] * 2
    assert asked.read_text() == "asked\n"
    launchers = [launcher.pid for launcher in warm_python.warm_python.launchers()]
    assert all((parent in launchers) == (start_of_python == "warm") for parent, _ in places)


@pytest.mark.conformance("X08", "X10")
@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return True", {"output": "True"}),
        ("return None", "DONE"),
        ("return object()", "DONE"),
        ("return '{\"a\": 1}'", {"a": 1}),
        ("import os\nopen(os.environ['LLM_OUTPUT'], 'w').write('own')", {"output": "own"}),
        ("import os\nopen(os.environ['LLM_OUTPUT'], 'w').write('own')\nreturn 'returned'", {"output": "returned"}),
        ("raise SystemExit(0)", "DONE"),
        (
            "import sys\nreturn [sys.argv[0][-8:], __name__, sys.modules[__name__].t is t]",
            ["tools.py", "sleipnir_tool", True],
        ),
    ],
)
def test_other_results_of_python_functions(agent: Agent, body: str, value: Any) -> None:
    assert agent.has("tools.py", python(body)).call("t").value == value


def test_an_exception_ends_the_tool_with_a_traceback_of_its_own_lines(agent: Agent, start_of_python: str) -> None:
    value = agent.has("tools.py", python("raise ValueError('no')")).call("t").value
    assert isinstance(value, dict)
    assert value["tool_call_error"] == "Tool call 't' exited with code 1"
    first, place, *_, last = value["stderr"].splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: no")
    assert place == f'  File "{agent.folder}/tools.py", line 3, in t'


def test_a_python_tool_imports_modules_next_to_it_and_awaits_async_functions(
    agent: Agent, start_of_python: str
) -> None:
    agent.has("helper.py", "NAME = 'beside'\n")
    agent.has(
        "tools.py", 'import helper\n\nasync def t(a, b: int | None):\n    """x"""\n    return [helper.NAME, a, b]\n'
    )
    assert agent.call("t", {"a": "é"}).value == ["beside", "é", None]
    assert not list(agent.folder.glob("**/*.pyc"))


def test_what_is_left_out_has_its_default_and_else_is_none(agent: Agent) -> None:
    text = "import functools\n\ndef loud(f):\n    @functools.wraps(f)\n    def g(*a, **k):\n        return f(*a, **k)\n"
    text += "    return g\n\n@loud\ndef t(a: int | None, b: int | None = 2, *, c: int | None, d=4):\n"
    text += '    """x"""\n    return [a, b, c, d]\n'
    agent.has("tools.py", text.replace("def loud", "def _loud").replace("@loud", "@_loud"))
    assert agent.call("t").value == [None, 2, None, 4]
    assert agent.call("t", {"c": 1, "b": None}).value == [None, None, 1, 4]


def test_a_function_in_camel_case_is_called_by_its_declared_name(agent: Agent) -> None:
    assert agent.has("tools.py", 'def getIP():\n    """x"""\n    return 1\n').call("getip").value == 1


@pytest.mark.conformance("X15")
def test_a_global_python_tool_is_called_by_the_name_of_its_file(agent: Agent) -> None:
    agent.has("loki/functions/tools/double.py", 'def run(n: int):\n    """x"""\n    return 2 * n\n')
    assert agent.call("double", {"n": 4}, allowed=["double.py"]).value == 8


def test_the_interpreter_of_a_shebang_or_of_a_venv_is_used(agent: Agent, tmp_path: Path) -> None:
    wrapper = '#!/bin/sh\nexport CHOSEN=%s\nexec python3 "$@"\n'
    for path in (tmp_path / "bin" / "python9", agent.cwd / ".venv" / "bin" / "python3"):
        path.parent.mkdir(parents=True)
        path.write_text(wrapper % path.name)
        path.chmod(0o755)
    agent.env["PATH"] = f"{tmp_path}/bin{os.pathsep}{PATH}"
    agent.has("tools.py", "#!/usr/bin/env -S python9\n" + python("import os\nreturn os.environ.get('CHOSEN')"))
    assert agent.call("t").value == {"output": "python3"}
    (agent.cwd / ".venv" / "bin" / "python3").unlink()
    assert agent.call("t").value == {"output": "python9"}


def test_a_missing_interpreter_is_named(agent: Agent) -> None:
    agent.has("tools.py", "#!/usr/bin/env python9\n" + python("return 1"))
    assert agent.call("t").value == {
        "output": "Unable to run t, python9 is not installed on this worker (not found on PATH)"
    }


# TypeScript


TS = """\
/** A tool */
export async function add(a: number, b?: number, c: string = "c"): Promise<object> {
    console.log("printed");
    return { a, b: b === undefined ? "none" : b, c };
}
/** Says nothing */
export function quiet(): void {}
/** Says something */
export function say(text: string) { return text; }
/** Fails */
export default function fail() { throw new Error("no"); }
"""
LOADER = """\
import { readFileSync } from "node:fs";
import { register } from "node:module";
const hooks = `
import { readFile } from "node:fs/promises";
export async function load(url, context, next) {
    if (!url.endsWith(".ts")) return next(url, context);
    const text = await readFile(new URL(url), "utf8");
    const source = text.replace(/\\\\?: ?\\\\w+/g, "").replace(/: (number|string|void|Promise<object>)/g, "");
    return { format: "module", source, shortCircuit: true };
}`;
register("data:text/javascript," + encodeURIComponent(hooks));
"""


@pytest.fixture
def typescript(agent: Agent, tmp_path: Path) -> Agent:
    """An agent on a machine with a `tsx` that takes the types of TS away, and then is node."""
    loader = tmp_path / "loader.mjs"
    loader.write_text(LOADER)
    program = tmp_path / "programs" / "tsx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec node --import {loader} "$@"\n')
    program.chmod(0o755)
    agent.env["PATH"] = f"{program.parent}{os.pathsep}{PATH}"
    return agent.has("tools.ts", TS)


@pytest.mark.conformance("X16")
def test_a_typescript_function_is_called_with_its_parameters_in_their_order(typescript: Agent) -> None:
    result = typescript.call("add", {"b": 2, "a": 1})
    assert (result.value, result.printed) == ({"a": 1, "b": 2, "c": "c"}, "printed\n")
    assert typescript.call("add", {"c": "x", "a": 1}).value == {"a": 1, "b": "none", "c": "x"}


@pytest.mark.conformance("X08", "X09", "X10", "X16")
def test_results_of_typescript_functions(typescript: Agent) -> None:
    assert typescript.call("quiet").value == "DONE"
    assert typescript.call("say", {"text": "é"}).value == {"output": "é"}
    value = typescript.call("fail").value
    assert isinstance(value, dict)
    assert value["tool_call_error"] == "Tool call 'fail' exited with code 1"
    assert value["stderr"].startswith("Error: no\n    at fail (file://")


@pytest.mark.parametrize(
    ("programs", "argv"),
    [
        ({"tsx": "", "node": "echo v22.7.0", "npx": ""}, ["{bin}/tsx"]),
        (
            {"node": "echo v22.7.0", "npx": ""},
            ["{bin}/node", "--experimental-strip-types", "--disable-warning=ExperimentalWarning"],
        ),
        ({"node": "echo v20.20.2", "npx": ""}, ["npx", "tsx"]),
        ({"node": "exit 1", "npx": ""}, ["npx", "tsx"]),
        ({"npx": ""}, ["npx", "tsx"]),
    ],
)
def test_what_runs_typescript_is_what_the_worker_has(
    agent: Agent, tmp_path: Path, programs: dict[str, str], argv: list[str]
) -> None:
    for name, body in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (declaration, *_) = agent.has("tools.ts", TS).tools.declarations
    start = languages.typescript(declaration, {"PATH": str(tmp_path / "bin")}, agent.cwd)
    assert start.argv == [*(word.format(bin=tmp_path / "bin") for word in argv), str(languages.TYPESCRIPT_RUNNER)]


def test_a_tsx_next_to_the_tools_takes_precedence_and_a_shebang_over_it(agent: Agent, tmp_path: Path) -> None:
    local = agent.folder / "node_modules" / ".bin" / "tsx"
    for path in (local, tmp_path / "bin" / "tsx", tmp_path / "bin" / "bun"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    env = {"PATH": str(tmp_path / "bin")}
    for first_line, program in (
        ("", str(local)),
        ("#!/usr/bin/env -S npx tsx\n", None),
        ("#!/usr/bin/env bun\n", "bun"),
    ):
        (declaration, *_) = agent.has("tools.ts", first_line + TS).tools.declarations
        if program is None:
            with pytest.raises(languages.NoInterpreter, match="npx is not installed on this worker"):
                languages.typescript(declaration, env, agent.cwd)
        else:
            assert languages.typescript(declaration, env, agent.cwd).argv[0] == program


def test_without_a_typescript_runtime_the_error_names_what_to_install(agent: Agent, tmp_path: Path) -> None:
    agent.env["PATH"] = str(tmp_path)
    value = agent.has("tools.ts", TS).call("quiet").value
    assert value == {
        "output": "Unable to run quiet, no TypeScript on this worker: install Node.js 22.7 or later, or tsx "
        "(`npm install -g tsx`)"
    }
