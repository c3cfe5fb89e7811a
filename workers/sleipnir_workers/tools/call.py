"""Execute one tool call of a model: from its name and its arguments to the result for the model.

Rules. A call that cannot be executed is answered, not raised: a model corrects its mistakes if the answer names them.
`answer` enforces the whitelist of the node: an invented name, or a tool that was not offered, runs nothing.
All processes that the tool started are dead when `answer` returns (sandbox).
"""

from __future__ import annotations

import contextlib
import errno
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sleipnir.errors import MachineFailed, ToolFileError
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.folder import Tools, built_in
from sleipnir_workers.folders import bundle_writes
from sleipnir_workers.processes import sandbox
from sleipnir_workers.tools import languages, questions, repeated_calls, results
from sleipnir_workers.tools.environment import environment
from sleipnir_workers.tools.place import Place
from sleipnir_workers.tools.repeated_calls import ROOT, PastCall, RepeatRule
from sleipnir_workers.tools.results import ToolOutcome, failed
from sleipnir_workers.tools.timeouts import COYOTES_S

SHOWN = 500
"""Characters of arguments that a message quotes."""


CATALOG = "This tool is not available or the call failed; use only tools listed in your catalog."
"""The end of the answer to a call of an unknown tool (spec/coyote.md 2.3)."""


class BadArguments(Exception):
    """The arguments of a call are wrong; the message says how."""


def answer(
    call: PastCall,
    tools: Tools,
    place: Place,
    *,
    allowed: Iterable[str] | None = None,
    earlier: Sequence[PastCall] = (),
    patience: RepeatRule = ROOT,
    timeout_s: float = COYOTES_S,
    answers: VisitAnswers | None = None,
) -> ToolOutcome:
    """Execute a call, if the node may make it. Raises VisitLost and ProcessLost.

    With `answers` it may ask a person. `allowed` are the node's `tools:` as it spells them; None: all. `earlier` are
    the calls of the conversation, oldest first; loops are detected in them.
    """
    usable = tools if allowed is None else tools.only(allowed)
    declaration = usable.find(call.name)
    if declaration is None:
        return _refused(call.name, tools, [*usable.names, *built_in(allowed or ())])
    if looping := repeated_calls.alert(earlier, call, patience):
        return ToolOutcome(looping, "loop")
    try:
        arguments = arguments_of(declaration, call)
    except BadArguments as error:
        return failed("arguments", str(error))
    return run_call(declaration, arguments, place, name=call.name, timeout_s=timeout_s, answers=answers)


def run_call(
    declaration: Declaration,
    arguments: Mapping[str, Any],
    place: Place,
    *,
    name: str | None = None,
    timeout_s: float = COYOTES_S,
    answers: VisitAnswers | None = None,
) -> ToolOutcome:
    """Run a tool in the sandbox. Raises VisitLost, ProcessLost and MachineFailed.

    `name` is the tool's name in messages. With `answers` to what it has asked, it may ask a person.
    """
    name = declaration.name if name is None else name
    settings = place.host.settings
    with contextlib.ExitStack() as stack:
        try:
            scratch = tempfile.TemporaryDirectory(prefix="tool-call-", ignore_cleanup_errors=True)
            output, data = (Path(stack.enter_context(scratch)) / file for file in ("output", "arguments.json"))
            output.touch()
            raw = json.dumps(dict(arguments), separators=(",", ":"))
            data.write_text(raw, encoding="utf-8")
            asking = {} if answers is None else questions.variables(answers, data.parent)
        except OSError as error:
            raise MachineFailed.of(error, "cannot write the arguments of a tool") from error
        try:
            env = environment(declaration, place)
            start = languages.start(declaration, arguments, raw, env, place.cwd, data.parent)
            outcome = sandbox.run(
                start.argv,
                env={**env, **start.variables, **asking, "LLM_OUTPUT": str(output), "LLM_TOOL_DATA_FILE": str(data)},
                cwd=place.cwd,
                timeout_s=timeout_s,
                lost=place.lost,
                max_stdout_bytes=None,
                warm=settings.warm_python,
            )
        except (languages.NoInterpreter, ToolFileError, OSError, ValueError) as error:  # ValueError: a NUL
            return ToolOutcome({"output": f"Unable to run {name}, {_reason(error)}"}, "spawn")
        if answers is not None and outcome.reason == "exited" and outcome.signal is None:
            try:
                if (question := questions.question(answers, data.parent)) is not None:
                    return ToolOutcome(None, question=question)
            except ValueError as error:
                return failed("question", f"Tool call '{name}' asked a question that cannot be asked: {error}")
        result = results.of_outcome(
            name, outcome, output, timeout_s=timeout_s, limit_bytes=settings.max_tool_result_bytes
        )
        hint = bundle_writes.advice(outcome.stderr, place.folder, place.cwd) if result.failure == "exit" else ""
        return results.with_advice(result, hint.strip()) if hint else result


def arguments_of(declaration: Declaration, call: PastCall) -> dict[str, Any]:
    """The arguments as an object whose names the tool knows. Raises BadArguments, which names the tool's parameters.

    A bash tool reports missing and unknown arguments itself: it may take a value from its environment instead.
    """
    arguments = _object(call)
    if isinstance(arguments, str):
        raise BadArguments(_invalid(declaration, call, arguments))
    if declaration.language == "bash":
        return arguments
    known = declaration.parameters.get("properties", {})
    missing = [name for name in declaration.parameters.get("required", []) if name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing:
        raise BadArguments(_invalid(declaration, call, f"missing: {', '.join(missing)}"))
    if unknown:
        raise BadArguments(_invalid(declaration, call, f"unknown: {', '.join(unknown)}"))
    return arguments


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return "its arguments are too long for a command line (128 KiB each, 2 MiB together); name a file instead"
    return str(error)


def _object(call: PastCall) -> dict[str, Any] | str:
    """The object, or a description of what is wrong. Models send empty text for a tool without parameters."""
    if not isinstance(call.arguments, str):
        return dict(call.arguments)
    if not call.arguments.strip():
        return {}
    try:
        arguments = json.loads(call.arguments)
    except json.JSONDecodeError as error:
        return f"not JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"not JSON that can be read: {error}"
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else f"a JSON object is needed, not {type(arguments).__name__}"


def _invalid(declaration: Declaration, call: PastCall, problem: str) -> str:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    quoted = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return f"The call '{call.name}' has invalid arguments: {quoted} ({problem}). {_takes(declaration)}"


def _takes(declaration: Declaration) -> str:
    properties = declaration.parameters.get("properties", {})
    if not properties:
        return "It takes no parameters: send {}."
    required = declaration.parameters.get("required", [])
    names_and_types = ", ".join(
        f"{name} ({schema.get('type', 'any')}{', required' if name in required else ''})"
        for name, schema in properties.items()
    )
    return f"It takes a JSON object with: {names_and_types}."


def _refused(name: str, tools: Tools, usable: Sequence[str]) -> ToolOutcome:
    available = f"Available tools: {', '.join(usable) or 'none'}."
    if tools.find(name) is not None:
        return failed("not_allowed", f"The tool '{name}' is not among the tools of this node. {available}")
    return failed("unknown", f"Unexpected call: '{name}' is no tool. {available} {CATALOG}")
