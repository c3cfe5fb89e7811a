"""The script node, with real scripts (spec 2.7.2)."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import ScriptNode, Variable
from sleipnir.messages import InterruptQuestion, VisitResult
from sleipnir.redaction import REDACTED
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.interrupts import UsedAnswer, answers_text
from sleipnir_workers.execution.execution import DirectoryMissing, VisitLost
from sleipnir_workers.nodes import script
from tests.unit.workers import visits
from tests.unit.workers.visits import PATH, When, host, is_gone, text_of, visit
from tests.unit.workers.visits import script as write
from tests.waiting import wait_until


@pytest.fixture(autouse=True, params=["warm", "cold"])
def start_of_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything here is true whichever way a python3 is started."""
    monkeypatch.setattr(visits, "WARM_PYTHON", request.param == "warm")
    return str(request.param)


def run(
    folder: Path, text: str, *, name: str = "step.sh", env: dict[str, str] | None = None, **visit_fields: Any
) -> VisitResult:
    """Run `text` as a script node."""
    node_fields = {key: visit_fields.pop(key) for key in ("timeout", "state_updates", "next") if key in visit_fields}
    settings = visit_fields.pop("settings", {})
    node = write(folder, name, text, **node_fields)
    return script.run_script(node, visit(node, folder, **visit_fields), host(env, **settings))


def printing(value: Any) -> str:
    """A shell script that prints `value` as JSON."""
    return f"cat <<'JSON'\n{value if isinstance(value, str) else json.dumps(value)}\nJSON\n"


def environment(folder: Path, **fields: Any) -> dict[str, str]:
    """The variables that a script sees."""
    result = run(folder, "import json, os\nprint(json.dumps(dict(os.environ)))", name="env.py", **fields)
    assert result.ok, result.error
    return dict(result.delta)


# What is run


@pytest.mark.conformance("R01")
def test_a_shell_script_runs_in_bash_regardless_of_its_shebang(tmp_path: Path) -> None:
    result = run(tmp_path, '#!/bin/false\nprintf \'{"shell": "%s"}\' "${BASH_VERSION:+bash}"\n')
    assert result.delta == {"shell": "bash"}


@pytest.mark.conformance("R01")
def test_a_python_script_needs_no_execute_bit(tmp_path: Path) -> None:
    assert run(tmp_path, "print('{\"ran\": true}')", name="lib/step.py").delta == {"ran": True}


@pytest.mark.conformance("R01")
def test_a_typescript_file_is_given_to_tsx(tmp_path: Path) -> None:
    assert script.command_for(tmp_path / "a.ts", "a.ts") == ["npx", "tsx", str(tmp_path / "a.ts")]


@pytest.mark.conformance("R01")
def test_npx_is_what_starts_a_typescript_file(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npx").write_text('#!/bin/sh\nprintf \'{"npx": "%s %s"}\' "$1" "${2##*/}"\n')
    (programs / "npx").chmod(0o755)
    result = run(tmp_path, "console.log('{}')", name="a.ts", env={"PATH": f"{programs}{os.pathsep}{PATH}"})
    assert result.delta == {"npx": "tsx a.ts"}


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "", name="a.ts", env={"PATH": str(tmp_path)})
    assert result.error == (
        "Failed to spawn script process for 'a.ts': npx is not installed on this worker (not found on PATH)"
    )


@pytest.mark.conformance("R02")
def test_another_extension_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "", name="a.rb")
    assert (result.ok, result.error_kind) == (False, "extension")
    assert str(result.error).startswith("Unsupported script extension '.rb' for 'a.rb'")


@pytest.mark.conformance("R02")
def test_no_extension_is_refused(tmp_path: Path) -> None:
    assert str(run(tmp_path, "", name="step").error).startswith("Script has no file extension: 'step'")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    node = ScriptNode(id="step", script="scripts/nope.sh")
    result = script.run_script(node, visit(node, tmp_path), host())
    assert (result.error, result.error_kind) == ("Script file not found: 'scripts/nope.sh'", "not_found")


@pytest.mark.parametrize("name", ["../outside.sh", "link.sh", "{tmp}/outside.sh"])
def test_a_script_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (tmp_path / "outside.sh").write_text("echo '{}'")
    (folder / "link.sh").symlink_to(tmp_path / "outside.sh")
    node = ScriptNode(id="step", script=name.format(tmp=tmp_path))
    result = script.run_script(node, visit(node, folder), host())
    assert result.error_kind == "outside"
    assert "is outside the agent's folder" in str(result.error)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    write(tmp_path, "lib/real.sh", printing({"real": 1}))
    (tmp_path / "step.sh").symlink_to("lib/real.sh")
    node = ScriptNode(id="step", script="step.sh")
    assert script.run_script(node, visit(node, tmp_path), host()).delta == {"real": 1}


# What it is given


@pytest.mark.conformance("R03")
def test_a_state_of_exactly_32_kib_is_inline(tmp_path: Path) -> None:
    state = {"text": "x" * (32 * 1024 - len('{"text":""}'))}
    env = environment(tmp_path, state=state)
    assert len(env["GRAPH_STATE"]) == 32 * 1024
    assert json.loads(env["GRAPH_STATE"]) == state
    assert "GRAPH_STATE_FILE" not in env


@pytest.mark.conformance("R03")
def test_the_state_is_compact_json_with_its_types(tmp_path: Path) -> None:
    env = environment(tmp_path, state={"n": 1, "f": 1.0, "l": [None, True], "s": "ä"})
    assert env["GRAPH_STATE"] == '{"n":1,"f":1.0,"l":[null,true],"s":"ä"}'


@pytest.mark.conformance("R04")
def test_one_byte_more_goes_to_a_private_file_that_is_removed_afterwards(tmp_path: Path) -> None:
    state = {"text": "ä" * 16 * 1024}  # bytes count, not characters
    text = """\
import json, os, stat
path = os.environ["GRAPH_STATE_FILE"]
length = len(json.load(open(path))["text"])
inline = "GRAPH_STATE" in os.environ
print(json.dumps({"path": path, "mode": os.stat(path).st_mode, "length": length, "inline": inline}))
"""
    result = run(tmp_path, text, name="step.py", state=state)
    assert result.ok, result.error
    assert (result.delta["length"], result.delta["inline"]) == (16 * 1024, False)
    assert stat.S_IMODE(result.delta["mode"]) == 0o600
    assert not Path(result.delta["path"]).exists()


@pytest.mark.conformance("R04")
def test_the_state_file_of_a_script_that_timed_out_is_removed(tmp_path: Path) -> None:
    text = 'echo "$GRAPH_STATE_FILE" > where; sleep 60'
    assert run(tmp_path, text, state={"text": "x" * 40_000}, timeout=1).error_kind == "timeout"
    assert not Path(text_of(tmp_path / "where")).exists()


def test_a_state_with_half_a_surrogate_pair_reaches_the_script(tmp_path: Path) -> None:
    text = "import json, os\nprint(json.dumps({'code': ord(json.loads(os.environ['GRAPH_STATE'])['bad'])}))"
    assert run(tmp_path, text, name="step.py", state={"bad": "\udc80"}).delta == {"code": 0xDC80}


@pytest.mark.conformance("R14", "CY24")
def test_the_documented_variables_are_set(tmp_path: Path) -> None:
    env = environment(tmp_path, env={"LOKI_CONFIG_DIR": "/etc/loki"}, caller_dir=Path("/home/me/project"))
    expected = {
        "LLM_ROOT_DIR": "/etc/loki",
        "LLM_PROMPT_UTILS_FILE": "/etc/loki/functions/utils/prompt-utils.sh",
        "LLM_AGENT_NAME": "triage",
        "LLM_AGENT_ROOT_DIR": str(tmp_path),
        "LLM_AGENT_DATA_DIR": str(tmp_path),
        "CLICOLOR_FORCE": "1",
        "FORCE_COLOR": "1",
        "GRAPH_RUN_ID": "r1",
        "GRAPH_NODE_ID": "step",
        "GRAPH_VISIT": "r1/7",
        "GRAPH_CALLER_DIR": "/home/me/project",
        "AUTO_CONFIRM": "true",
        "PATH": f"/etc/loki/functions/bin{os.pathsep}{PATH}",
    }
    assert {name: env.get(name) for name in expected} == expected


@pytest.mark.conformance("R14")
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"LOKI_CONFIG_DIR": "/a", "XDG_CONFIG_HOME": "/b"}, "/a"),
        ({"XDG_CONFIG_HOME": "/b"}, "/b/loki"),
        ({"HOME": "/home/me"}, "/home/me/.config/loki"),
    ],
)
def test_the_root_dir_is_lokis_configuration_directory(tmp_path: Path, env: dict[str, str], expected: str) -> None:
    assert environment(tmp_path, env=env)["LLM_ROOT_DIR"] == expected


@pytest.mark.conformance("R14")
def test_a_script_finds_the_shared_folder_next_to_the_directory_of_installed_agents(tmp_path: Path) -> None:
    shared = tmp_path / "srv" / "agents" / ".shared" / "utils.sh"
    shared.parent.mkdir(parents=True)
    shared.write_text('said() { echo "{\\"said\\": \\"hello\\"}"; }\n')
    text = 'source "$LLM_ROOT_DIR/agents/.shared/utils.sh"\nsaid\n'
    assert run(tmp_path, text, settings={"agents_dir": shared.parents[1]}).delta == {"said": "hello"}
    assert not run(tmp_path, text).ok


@pytest.mark.conformance("T19")
def test_agent_variables_and_their_defaults_reach_the_script(tmp_path: Path) -> None:
    graph = {
        "variables": [
            Variable(name="log-dir", description="", default="/var/log"),
            Variable(name="who", description=""),
        ]
    }
    env = environment(tmp_path, graph=graph, variables={"who": "me"})
    assert (env["LLM_AGENT_VAR_LOG_DIR"], env["LLM_AGENT_VAR_WHO"]) == ("/var/log", "me")
    assert environment(tmp_path, graph=graph, variables={"log-dir": "/x"})["LLM_AGENT_VAR_LOG_DIR"] == "/x"


def test_no_secret_of_the_worker_reaches_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "OPENAI_API_KEY": "planted-1",
        "SLEIPNIR_REDIS_URL": "redis://:planted-2@localhost",
        "CELERY_BROKER_URL": "redis://:planted-3@localhost",
        "AWS_SECRET_ACCESS_KEY": "planted-4",
        "GITHUB_TOKEN": "planted-5",
        "GRAPH_STATE_FILE": "planted-6",
        "SLEIPNIR_SECRETS": "planted-7",
        "MINE_API_KEY": "planted-8",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    to_json = "import json, sys; print(json.dumps({'seen': sys.stdin.read()}))"
    text = f'python3 -c "{to_json}" < <(env; tr "\\0" "\\n" < /proc/$$/environ)'
    result = run(tmp_path, text, env=planted)
    assert result.ok, result.error
    assert "GRAPH_NODE_ID=step" in result.delta["seen"]
    assert "planted-" not in result.delta["seen"]


def test_the_env_file_of_the_agent_on_this_worker_is_read_but_does_not_win(tmp_path: Path) -> None:
    agents, folder = tmp_path / "agents", tmp_path / "bundle"
    (agents / "triage").mkdir(parents=True)
    (agents / "triage" / ".env").write_text(
        "# mine\n\nTOKEN='a b'\nexport LEVEL=\"3\"\nHOME=/other\nGRAPH_STATE_FILE=x\nno equals\n"
    )
    env = environment(folder, settings={"agents_dir": agents})
    assert (env["TOKEN"], env["LEVEL"], env["HOME"]) == ("a b", "3", "/nonexistent")
    assert "GRAPH_STATE_FILE" not in env
    assert "TOKEN" not in environment(folder, settings={"agents_dir": agents}, agent="other")


def test_a_script_works_in_the_directory_that_its_visit_was_given(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "project").mkdir()
    result = run(tmp_path / "agent", 'printf \'{"cwd": "%s"}\' "$PWD"', cwd=tmp_path / "project")
    assert result.delta == {"cwd": str(tmp_path / "project")}


def test_a_directory_that_was_removed_meanwhile_is_not_replaced_by_the_agents_folder(tmp_path: Path) -> None:
    """Finding U6 of the second review."""
    (tmp_path / "agent").mkdir()
    with pytest.raises(DirectoryMissing, match="gone' is not on this machine"):
        run(tmp_path / "agent", "echo '{}'", cwd=tmp_path / "gone")


@pytest.mark.parametrize(("code", "is_told"), [(1, True), (126, False)])
def test_a_script_that_may_not_write_to_its_folder_gets_the_name_of_a_writable_one(
    tmp_path: Path, code: int, is_told: bool
) -> None:
    """Finding U6 of the second review."""
    text = f"echo 'run.sh: line 1: notes.txt: Permission denied' >&2; exit {code}"
    result = run(tmp_path, text)
    told = f"is read-only: write below the working directory, '{tmp_path}', or print the data to keep"
    assert (told in str(result.error)) == is_told
    assert "notes.txt: Permission denied" in str(result.error)


def test_importing_a_neighbour_does_not_write_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("value = 1")
    assert run(tmp_path, "import neighbour\nprint('{}')", name="step.py").ok
    assert not (tmp_path / "__pycache__").exists()


# What it gives back


@pytest.mark.conformance("R05")
def test_the_object_on_stdout_is_merged_with_its_types(tmp_path: Path) -> None:
    value = {"n": 1, "list": [1, {"a": None}], "nothing": None, "flag": False, "f": 0.5}
    result = run(tmp_path, "echo noise >&2\n" + printing(value))
    assert result == VisitResult(
        ok=True, delta=value, notes=("running script 'step.sh'", "merged: n, list, nothing, flag, f")
    )


@pytest.mark.conformance("R06")
def test_next_routes_and_is_not_stored(tmp_path: Path) -> None:
    result = run(tmp_path, printing({"_next": "retry"}), next="done")
    assert result == VisitResult(
        ok=True, next="retry", notes=("running script 'step.sh'", "script set _next = 'retry'")
    )


@pytest.mark.conformance("R06")
@pytest.mark.parametrize("value", [3, None, {"to": "a"}, True])
def test_a_next_that_is_no_text_and_no_list_is_dropped(tmp_path: Path, value: Any) -> None:
    result = run(tmp_path, printing({"_next": value, "a": 1}))
    assert (result.ok, result.next, result.delta) == (True, None, {"a": 1})


@pytest.mark.conformance("R15")
def test_next_may_name_any_node(tmp_path: Path) -> None:
    assert run(tmp_path, printing({"_next": "statically unreachable"})).next == "statically unreachable"


@pytest.mark.conformance("U04", "U07")
def test_state_updates_see_the_new_keys_and_store_text(tmp_path: Path) -> None:
    updates = {"copy": "{{items[0]}}/{{old}}", "again": "{{copy}}!", "none": "{{missing}}", "all": "{{items}}"}
    result = run(tmp_path, printing({"items": [5]}), state={"old": "o"}, state_updates=updates)
    assert result.delta == {"items": [5], "copy": "5/o", "again": "5/o!", "none": "", "all": "[5]"}


@pytest.mark.conformance("U05")
def test_state_updates_win_over_merged_keys(tmp_path: Path) -> None:
    assert run(tmp_path, printing({"a": 1}), state_updates={"a": "{{a}}0"}).delta == {"a": "10"}


# How it fails


def failed_with(result: VisitResult, kind: str, message: str) -> bool:
    """The result is a failure in the agreed form."""
    assert result.error == message
    assert (result.ok, result.error_kind, result.next) == (False, kind, None)
    assert result.delta == {"_error": {"node": "step", "message": message}, "last_error": message}
    return True


@pytest.mark.conformance("R08", "R09", "R13")
def test_an_exit_code_is_a_failure_with_stderr_and_leaves_the_error_in_the_state(tmp_path: Path) -> None:
    result = run(tmp_path, printing({"a": 1}) + "echo ' no disk ' >&2; exit 4", state_updates={"u": "x"})
    assert failed_with(result, "exit", "Script 'step.sh' failed with exit code 4:\nno disk")


@pytest.mark.conformance("R13")
def test_stdin_is_closed(tmp_path: Path) -> None:
    assert run(tmp_path, "cat > copied\n" + printing({"a": 1})).ok
    assert (tmp_path / "copied").read_text() == ""


def test_death_by_a_signal_names_it(tmp_path: Path) -> None:
    result = run(tmp_path, "echo so >&2; kill -KILL $$")
    assert failed_with(result, "signal", "Script 'step.sh' failed: killed by signal 9 (SIGKILL):\nso")


def test_no_output_is_a_failure(tmp_path: Path) -> None:
    message = "Script 'step.sh' produced no output (scripts must emit a single JSON object on stdout)"
    assert failed_with(run(tmp_path, "echo"), "output", message)


@pytest.mark.conformance("R07")
@pytest.mark.parametrize("value", ["[1]", "3", "null", '"text"'])
def test_an_array_or_a_primitive_is_a_failure(tmp_path: Path, value: str) -> None:
    message = (
        "Failed to merge output from script 'step.sh': Script output must be a JSON object, not array or primitive"
    )
    assert failed_with(run(tmp_path, printing(value)), "output", message)


@pytest.mark.conformance("R08")
@pytest.mark.parametrize(
    ("stdout", "hint"),
    [
        ('loading…\n{"a": 1}', "stdout line 1 is not JSON: 'loading…'; print logs to stderr"),
        ('42 files\n{"a": 1}', "stdout line 1 is not JSON: '42 files'; print logs to stderr"),
        ('{"a": 1}\ndone', "stdout continues after the JSON at line 2: 'done'; print logs to stderr"),
        ('{"a": 1,\n "b": }', "Expecting value at line 2 column 7: '\"b\": }'"),
        ('{"a": NaN}', "key 'a' is NaN, which JSON cannot hold; use null or a number"),
        ('{"a": {"b": [1, -1e999]}}', "key 'a.b[1]' is -Infinity, which JSON cannot hold; use null or a number"),
        ('{"a": "\\ud800"}', "key 'a' holds half of a surrogate pair, which is not text"),
    ],
)
def test_what_is_wrong_with_stdout_is_shown(tmp_path: Path, stdout: str, hint: str) -> None:
    message = f"Failed to merge output from script 'step.sh': Script output must be valid JSON: {hint}"
    assert failed_with(run(tmp_path, printing(stdout)), "output", message)


@pytest.mark.parametrize(
    "stdout",
    [r"printf '\xff{}'", "printf '[%.0s' {1..200000}", "printf '{\"a\": '; printf '9%.0s' {1..9000}; printf '}'"],
)
def test_stdout_that_no_parser_takes_is_an_ordinary_failure(tmp_path: Path, stdout: str) -> None:
    result = run(tmp_path, stdout)
    assert (result.ok, result.error_kind) == (False, "output")
    assert "Script output must be valid JSON" in str(result.error)


def test_a_hundred_megabytes_on_stdout_are_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "head -c 100000000 /dev/zero", settings={"max_output_bytes": 1_000_000})
    assert result.error_kind == "output_size"
    assert "printed more than 1000000 bytes to stdout" in str(result.error)


@pytest.mark.conformance("R12")
def test_a_timeout_kills_the_script_and_its_children(tmp_path: Path) -> None:
    result = run(tmp_path, "sleep 60 & echo $! > child; wait", timeout=1)
    assert failed_with(result, "timeout", "Script 'step.sh' timed out after 1s")
    pid = text_of(tmp_path / "child")
    wait_until(lambda: is_gone(pid), "the child is dead")


@pytest.mark.conformance("R12")
def test_thirty_seconds_are_the_default() -> None:
    assert ScriptNode(script="a.sh").timeout == 30


def test_a_nul_in_a_variable_is_a_failure(tmp_path: Path) -> None:
    result = run(tmp_path, "", variables={"a": "x\0y"})
    assert result.error_kind == "spawn"


def test_a_lost_visit_stops_the_script_and_returns_nothing(tmp_path: Path) -> None:
    lost = threading.Event()
    with When(lambda: text_of(tmp_path / "pid"), lost.set) as trigger, pytest.raises(VisitLost):
        run(tmp_path, "trap '' TERM; echo $$ > pid; sleep 60", lost=lost)
    assert time.monotonic() - trigger.acted_at < 30
    wait_until(lambda: is_gone(text_of(tmp_path / "pid")), "the script is dead")


# Questions to a person

ASKS = """
import json, os
answers = json.loads(os.environ.get("GRAPH_RESUME") or "{}")
if "who" not in answers:
    print(json.dumps({"_interrupt": {"key": "who", "value": {"please": "name"}, "schema": {"type": "string"}}}))
elif "step#0" not in answers:
    print(json.dumps({"_interrupt": {"value": "sure?", "timeout": 1.5}}))
else:
    print(json.dumps({"answers": answers}))
"""


def answers(*used: UsedAnswer) -> StoredConversation:
    return StoredConversation(answers_text(used))


def test_a_script_asks_and_gets_the_answers_by_key(tmp_path: Path) -> None:
    first = run(tmp_path, ASKS, name="step.py").interrupt
    assert first == InterruptQuestion("who", {"please": "name"}, "who", 0, {"type": "string"})
    who = UsedAnswer("who", 0, "Ann")
    second = run(tmp_path, ASKS, name="step.py", talk=answers(who)).interrupt
    assert second == InterruptQuestion("step#0", "sure?", None, 1, None, 1500)
    last = run(tmp_path, ASKS, name="step.py", talk=answers(who, UsedAnswer(None, 1, [True])))
    assert (last.ok, last.delta) == (True, {"answers": {"step#0": [True], "who": "Ann"}})


def test_large_answers_are_in_a_file(tmp_path: Path) -> None:
    seen = environment(tmp_path, talk=answers(UsedAnswer("k", 0, "x" * 40_000)))
    assert "GRAPH_RESUME" not in seen
    assert Path(seen["GRAPH_RESUME_FILE"]).name.startswith("graph-resume-")
    assert not {"GRAPH_RESUME", "GRAPH_RESUME_FILE"} & environment(tmp_path, env={"GRAPH_RESUME": "{}"}).keys()


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ({"_interrupt": {"value": 1}, "n": 1}, "a script that asks prints nothing else, but it printed n too"),
        ({"_interrupt": "who?"}, "it must be an object with value, and if needed key, schema, timeout and rules"),
        ({"_interrupt": {"value": 1, "kye": "k"}}, "key, schema, timeout and rules; unknown: kye"),
        ({"_interrupt": {"value": 1, "key": "who"}}, "the question 'who' has an answer already"),
        ({"_interrupt": {"value": 1, "timeout": "5"}}, "must be a positive number of seconds, not '5'"),
    ],
)
def test_a_question_that_cannot_be_asked_is_a_failure(printed: Any, reason: str, tmp_path: Path) -> None:
    result = run(tmp_path, printing(printed), talk=answers(UsedAnswer("who", 0, 1)))
    assert (result.ok, result.error_kind, result.interrupt) == (False, "output", None)
    assert reason in (result.error or "")


# What it emits on descriptor 3


class Emitted:
    """What a visit emits, and how many of its emissions were skipped."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.skipped, self.has_room = 0, True

    def write(self, text: str) -> None:
        self.all.append(json.loads(text))

    def skip(self, count: int) -> None:
        self.skipped += count


SHELL_EMITS = """
echo '{"progress": 140, "message": "all"}' >&3
echo 'no JSON' >&3
printf '{"type": "found", "payload": {"n": 1}}\n[1, 2]\n{"text": "the end has no line end"}' >&"$GRAPH_EVENTS_FD"
echo '{"ran": true}'
"""
PYTHON_EMITS = """
import json, os
with os.fdopen(int(os.environ["GRAPH_EVENTS_FD"]), "w") as events:
    for line in ('{"progress": 140, "message": "all"}', "no JSON", '{"type": "found", "payload": {"n": 1}}', "[1, 2]"):
        print(line, file=events)
    events.write('{"text": "the end has no line end"}')
print('{"ran": true}')
"""


@pytest.mark.parametrize(("name", "text"), [("step.sh", SHELL_EMITS), ("step.py", PYTHON_EMITS)])
def test_lines_on_descriptor_3_are_emitted_in_order(tmp_path: Path, name: str, text: str) -> None:
    emitted = Emitted()
    for _ in range(2):  # the second one is a fork that was made ahead
        emitted.all.clear()
        result = run(tmp_path, text, name=name, emissions=emitted)
        assert result.delta == {"ran": True}, result.error
        assert emitted.all == [
            {"category": "progress", "progress": 100.0, "message": "all"},
            {"category": "text", "text": "no JSON\n"},
            {"category": "custom", "type": "found", "payload": {"n": 1}},
            {"chunk": [1, 2]},
            {"category": "text", "text": "the end has no line end"},
        ]
    assert emitted.skipped == 0


def test_a_script_whose_emissions_nobody_takes_runs_all_the_same(tmp_path: Path) -> None:
    assert run(tmp_path, SHELL_EMITS).delta == {"ran": True}
    assert run(tmp_path, PYTHON_EMITS, name="step.py").delta == {"ran": True}


def test_what_a_failed_script_has_emitted_is_shown(tmp_path: Path) -> None:
    emitted = Emitted()
    assert not run(tmp_path, "echo before >&3\nexit 3\n", emissions=emitted).ok
    assert emitted.all == [{"category": "text", "text": "before\n"}]


def test_much_is_read_while_it_runs_to_its_last_line_and_a_child_that_lives_on_delays_nothing(tmp_path: Path) -> None:
    text = "import os\nfor n in range(50_000): os.write(3, b'%d\\n' % n)\nprint('{}')"
    emitted = Emitted()
    assert run(tmp_path, text, name="many.py", emissions=emitted).ok
    assert [each["chunk"] for each in emitted.all] == list(range(50_000))
    started, emitted = time.monotonic(), Emitted()
    assert run(tmp_path, "echo 1 >&3; sleep 60 >/dev/null 2>&1 & echo '{}'\n", emissions=emitted).ok
    assert emitted.all == [{"chunk": 1}]
    assert time.monotonic() - started < 20


def test_a_line_that_is_too_long_is_dropped_and_counted_and_the_next_one_is_not(tmp_path: Path) -> None:
    text = (
        "import os\nos.write(3, b'7\\n')\nfor _ in range(9): os.write(3, b'x' * 9000)\n"
        "os.write(3, b'\\n8\\n')\nprint('{}')"
    )
    emitted = Emitted()
    assert run(tmp_path, text, name="long.py", emissions=emitted).ok
    assert [each["chunk"] for each in emitted.all] == [7, 8]
    assert emitted.skipped == 1


def test_a_script_that_writes_without_end_is_read_and_its_timeout_holds(tmp_path: Path) -> None:
    emitted = Emitted()
    emitted.has_room = False
    result = run(tmp_path, "yes >&3\n", emissions=emitted, timeout=1)
    assert "timed out" in (result.error or "")
    assert emitted.all == []
    assert emitted.skipped > 10_000


def test_secrets_of_the_runs_variables_are_not_emitted(tmp_path: Path) -> None:
    secrets, emitted = tmp_path / "secrets", Emitted()
    secrets.write_text("SERVICE_KEY=very-secret-value\n")
    secrets.chmod(0o600)
    result = run(
        tmp_path,
        'echo "{\\"text\\": \\"$LLM_AGENT_VAR_KEY\\"}" >&3\necho \'{}\'\n',
        emissions=emitted,
        graph={"variables": [Variable(name="key", description="", default="{{SERVICE_KEY}}")]},
        settings={"secrets": secrets},
    )
    assert result.ok, result.error
    assert emitted.all == [{"category": "text", "text": REDACTED}]
