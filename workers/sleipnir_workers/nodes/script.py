"""The script node: a file of the agent's folder gets the state as JSON and prints one JSON object.

Rules (spec 2.7.2). The extension chooses the interpreter. The state is in GRAPH_STATE, or, above 32 KiB, in the file
that GRAPH_STATE_FILE names; never in both. A script that asks a person prints `_interrupt` alone, and is run again with
the answers by key in GRAPH_RESUME, or in the file that GRAPH_RESUME_FILE names. stdout must be the object and nothing
else; stderr is for logs. With `stream_input` its stdin has the text of another node. What it writes to descriptor 3 is
for people who watch (functions/emitting.py). A script has a clean environment (sandbox.KEPT and the variables of
`environment`), and all processes that it started are dead when the visit ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sleipnir.errors import MachineFailed, NodeFailed
from sleipnir.graph.model import Json, ScriptNode
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.messages import InterruptQuestion, VisitResult
from sleipnir.redaction import redacted
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.folders import bundle_writes
from sleipnir_workers.folders.agent_files import agent_file
from sleipnir_workers.functions import asking
from sleipnir_workers.functions.emitting import EmittedLines
from sleipnir_workers.functions.stream_reading import on_stdin
from sleipnir_workers.machine import health
from sleipnir_workers.machine.agent_environment import (
    agent_variables,
    parse_env_file,
    root_of,
    roots,
    secrets_of,
    without_secrets,
)
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.processes import sandbox
from sleipnir_workers.results import output

INLINE_STATE_BYTES = 32 * 1024  # Loki's limit; the kernel's for one variable is 128 KiB

INTERRUPT = "_interrupt"
RECOVERABLE = "_recoverable"
"""The key of a failure after which the run may go on: a text, or an object of `message` and `code`."""
_ASKED = frozenset(("key", "value", "schema", "timeout", "rules"))

INTERPRETERS: Mapping[str, tuple[str, ...]] = {
    "sh": ("bash",),
    "py": ("python3",),
    "ts": ("npx", "tsx"),
}
NOT_EXECUTABLE = 126
"""A shell's exit code for a file that it may not execute: a denied permission too, but not of a write."""
NEEDED = ("bash", "python3")
"""Interpreters without which a worker cannot serve scripts at all."""


@executor("script")
def run_script(node: ScriptNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Run the node's script. `host` None means this process's. Raises VisitLost, ProcessLost and MachineFailed."""
    host = host or this_host()
    try:
        printed = _run(node, execution, host)
        if RECOVERABLE in printed:
            result = _recoverable(node, execution, printed)
        elif INTERRUPT in printed:
            result = VisitResult.asking(_question(node, execution, printed))
        else:
            result = output.success(node, execution, printed, what="script")
    except NodeFailed as error:
        # A script that fails while the disk is full has most likely failed because of it.
        if error.kind in ("exit", "output") and not health.has_room(host.settings.home):
            raise MachineFailed("disk", f"no room on the disk of {host.settings.home}", begun=True) from error
        result = output.failure(node, error, what="script")
    return without_secrets(result, execution.graph, execution.variables, host)


def _recoverable(node: ScriptNode, execution: Execution, printed: Mapping[str, Json]) -> VisitResult:
    """The result of a script that reports a failure after which the run may go on. Raises NodeFailed (`output`)."""
    about, kept = printed[RECOVERABLE], {key: value for key, value in printed.items() if key != RECOVERABLE}
    about = {"message": about} if isinstance(about, str) else about
    if not isinstance(about, dict) or not about.keys() <= {"message", "code"}:
        message = f"Script '{node.script}' printed a {RECOVERABLE} that is no text, and no object of message and code"
        raise NodeFailed(message, "output")
    text = str(about.get("message") or "it gives no reason")
    error = NodeFailed(f"Script '{node.script}' reported: {text}", "recoverable")
    error.code = None if about.get("code") is None else str(about["code"])
    result = output.failure(node, error, what="script")
    if execution.graph.errors is None:
        return result
    return output.recoverable(result, output.success(node, execution, kept, what="script"))


def _question(node: ScriptNode, execution: Execution, printed: Mapping[str, Json]) -> InterruptQuestion:
    """What a script asks. Raises NodeFailed (`output`)."""
    asked = printed[INTERRUPT]
    try:
        if len(printed) > 1:
            others = ", ".join(name for name in printed if name != INTERRUPT)
            raise ValueError(f"a script that asks prints nothing else, but it printed {others} too")
        if not isinstance(asked, dict) or "value" not in asked or (unknown := asked.keys() - _ASKED):
            found = f"; unknown: {', '.join(sorted(unknown))}" if isinstance(asked, dict) and "value" in asked else ""
            raise ValueError(f"it must be an object with value, and if needed key, schema, timeout and rules{found}")
        answers = asking.answers_for(execution)
        return answers.ask(
            asked["value"], asked.get("key"), asked.get("schema"), asked.get("timeout"), rules=asked.get("rules")
        )
    except ValueError as error:
        raise NodeFailed(
            f"Script '{node.script}' printed an {INTERRUPT} that cannot be asked: {error}", "output"
        ) from None


def command_for(path: Path, name: str) -> list[str]:
    """The argument vector that runs the script at `path`; `name` is its name in the graph.

    Raises NodeFailed (`extension`).
    """
    extension = path.suffix.removeprefix(".")
    if not extension:
        raise NodeFailed(f"Script has no file extension: '{name}'; name it .sh, .py or .ts", "extension")
    if extension not in INTERPRETERS:
        raise NodeFailed(
            f"Unsupported script extension '.{extension}' for '{name}'; use one of .sh, .py, .ts", "extension"
        )
    return [*INTERPRETERS[extension], str(path)]


def _run(node: ScriptNode, execution: Execution, host: Host) -> dict[str, Json]:
    argv = command_for(agent_file(execution.folder, node.script, what="Script"), node.script)
    env = environment(node, execution, host)
    _need_interpreter(node, argv[0], env["PATH"], host)
    limit = host.settings.max_output_bytes
    answers = asking.answers_for(execution).named()
    with (
        _json_variable("GRAPH_STATE", execution.state) as state,
        _json_variable("GRAPH_RESUME", answers or None) as resume,
        on_stdin(execution) as stdin,
    ):
        lines = _emitted_lines(node, execution, host)
        try:
            outcome = sandbox.run(
                argv,
                env={**env, **state, **resume},
                cwd=execution.directory,
                timeout_s=node.timeout,
                lost=execution.lost,
                max_stdout_bytes=limit,
                warm=host.settings.warm_python and stdin is None,
                stdin=stdin,
                events=_dropped if lines is None else lines.feed,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a variable
            raise NodeFailed(f"Failed to spawn script process for '{node.script}': {error}", "spawn") from error
        finally:
            if lines is not None:
                lines.close()
    _raise_for_end(node, outcome, limit, execution)
    return _parse(node, outcome.stdout)


def _emitted_lines(node: ScriptNode, execution: Execution, host: Host) -> EmittedLines | None:
    """None: what the script emits is dropped."""
    if execution.emissions is None:
        return None
    secrets = secrets_of(execution.graph, execution.variables, host)
    return EmittedLines(execution.emissions, lambda emission: redacted(emission, secrets) if secrets else emission)


def _dropped(_: bytes) -> None:
    return


def environment(node: ScriptNode, execution: Execution, host: Host) -> dict[str, str]:
    """The variables of the visit's script, apart from the state (spec 3.7). Raises NodeFailed (`config`)."""
    env_file = host.agent_env_file(execution.agent)
    own_variables = parse_env_file(env_file.read_text(encoding="utf-8", errors="replace")) if env_file else {}
    env = {**own_variables, **sandbox.clean_environment(host.env)}
    for name in ("GRAPH_STATE", "GRAPH_STATE_FILE", "GRAPH_RESUME", "GRAPH_RESUME_FILE", sandbox.EVENTS_FD):
        env.pop(name, None)
    config, folder = host.config_dir, str(execution.folder)
    bin_dir = str(host.functions_dir / "bin")
    env |= {
        "PATH": os.pathsep.join([bin_dir, env.get("PATH") or os.defpath]),
        "LLM_ROOT_DIR": str(root_of(execution.folder / node.script, config, roots(execution.folder, host))),
        "LLM_PROMPT_UTILS_FILE": str(host.functions_dir / "utils" / "prompt-utils.sh"),
        "LLM_AGENT_NAME": execution.agent,
        "LLM_AGENT_ROOT_DIR": folder,
        "LLM_AGENT_DATA_DIR": folder,
        "AUTO_CONFIRM": "true",
        "CLICOLOR_FORCE": "1",
        "FORCE_COLOR": "1",
        # The folder belongs to every visit of this bundle: importing a neighbour must not write into it.
        "PYTHONDONTWRITEBYTECODE": "1",
        "GRAPH_RUN_ID": execution.run,
        "GRAPH_NODE_ID": execution.node.id,
        "GRAPH_VISIT": f"{execution.run}/{execution.seq}",
    }
    if execution.caller_dir is not None:
        env["GRAPH_CALLER_DIR"] = str(execution.caller_dir)
    if execution.scratch is not None:
        env["GRAPH_SCRATCH_DIR"] = str(execution.scratch)
    return env | agent_variables(execution.graph, execution.variables, host)


def _need_interpreter(node: ScriptNode, program: str, path: str, host: Host) -> None:
    """bash and python3 belong to every machine that runs scripts; any other interpreter is the agent's requirement."""
    if shutil.which(program, path=path) is None:
        if program in NEEDED and shutil.which(program, path=host.env.get("PATH")) is None:
            raise MachineFailed("interpreter", f"{program} is not on PATH")
        raise NodeFailed(
            f"Failed to spawn script process for '{node.script}': {program} is not installed on this worker "
            f"(not found on PATH)",
            "spawn",
        )


@contextlib.contextmanager
def _json_variable(name: str, values: Mapping[str, Json] | None) -> Iterator[dict[str, str]]:
    """The variable `name`, or `name`_FILE; the file exists while the block runs, readable by this user only. None: no
    variable."""
    if values is None:
        yield {}
        return
    text = _compact(values)
    if len(text.encode()) <= INLINE_STATE_BYTES:
        yield {name: text}
        return
    with contextlib.ExitStack() as stack:
        prefix = f"{name.lower().replace('_', '-')}-"
        try:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix=prefix, suffix=".json")
            )
            file.write(text)
            file.flush()
        except OSError as error:
            raise MachineFailed.of(error, "cannot write the state for a script") from error
        yield {f"{name}_FILE": file.name}


def _compact(state: Mapping[str, Json]) -> str:
    text = compact_json(dict(state))
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows only as an escape
        return json.dumps(dict(state), separators=(",", ":"))
    return text


def _raise_for_end(node: ScriptNode, outcome: sandbox.CommandOutcome, limit: int, execution: Execution) -> None:
    """Raise NodeFailed unless the script ended with exit code 0 in time."""
    stderr = outcome.stderr.strip()
    detail = f":\n{stderr}" if stderr else ""
    match outcome.reason:
        case "timeout":
            raise NodeFailed(f"Script '{node.script}' timed out after {node.timeout}s", "timeout")
        case "stdout_limit":
            raise NodeFailed(
                f"Script '{node.script}' was killed: it printed more than {limit} bytes to stdout; "
                f"write large data to a file and print its path (SLEIPNIR_MAX_OUTPUT_BYTES is the limit)",
                "output_size",
            )
        case "exited":
            pass
    if outcome.signal is not None:
        raise NodeFailed(
            f"Script '{node.script}' failed: killed by {sandbox.signal_name(outcome.signal)}{detail}", "signal"
        )
    if outcome.code != 0:
        wrote_nothing = outcome.code == NOT_EXECUTABLE
        hint = "" if wrote_nothing else bundle_writes.advice(stderr, execution.folder, execution.cwd)
        message = f"Script '{node.script}' failed with exit code {outcome.code}{detail}{hint}"
        raise NodeFailed(message, "exit", transient=outcome.code == os.EX_TEMPFAIL)


def _parse(node: ScriptNode, stdout: bytes) -> dict[str, Json]:
    """The object on stdout. Raises NodeFailed (`output`) that quotes what is there instead."""
    if not stdout.strip():
        raise NodeFailed(
            f"Script '{node.script}' produced no output (scripts must emit a single JSON object on stdout)", "output"
        )
    try:
        return _object(stdout)
    except _BadOutput as error:
        raise NodeFailed(f"Failed to merge output from script '{node.script}': {error}", "output") from error


class _BadOutput(Exception):
    """A script's stdout is wrong; the message says how."""


def _object(stdout: bytes) -> dict[str, Json]:
    try:
        text = stdout.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadOutput(f"Script output must be valid JSON: byte {error.start + 1} is not UTF-8") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _BadOutput(f"Script output must be valid JSON: {_hint(text, error)}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, endless nesting
        raise _BadOutput(f"Script output must be valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _BadOutput("Script output must be a JSON object, not array or primitive")
    if problem := first_not_json(value):
        raise _BadOutput(f"Script output must be valid JSON: {problem}")
    return value


def _hint(text: str, error: json.JSONDecodeError) -> str:
    """The position of the error; a stray log line, the usual cause, is quoted."""
    lines = text.split("\n")
    line = lines[error.lineno - 1].strip()
    if error.lineno == 1 and not line.startswith("{"):
        return f"stdout line 1 is not JSON: {_quoted(line)}; print logs to stderr"
    if error.msg == "Extra data":
        return f"stdout continues after the JSON at line {error.lineno}: {_quoted(line)}; print logs to stderr"
    return f"{error.msg} at line {error.lineno} column {error.colno}: {_quoted(line)}"


def _quoted(line: str) -> str:
    return repr(line if len(line) <= 120 else line[:119] + "…")
