"""The result of a tool call, as the model gets it (spec/graph-agents.md 4.5.6 and 4.5.7).

Rules. A tool that exits with 0 answers with the file LLM_OUTPUT: the JSON in it, else `{"output": text}`, else "DONE".
Any other end is `{"tool_call_error": ...}` with the tool's `stderr`, `stdout` and `output` as far as they are not blank
(spec/coyote.md 2.3); after a timeout, with `stderr` only. Of a result over the limit the beginning is kept, and a note
says how much was cut.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.messages import InterruptQuestion
from sleipnir_workers.processes import sandbox

DONE = "DONE"
"""The result of a tool that leaves no output."""

Failure: TypeAlias = Literal[
    "unknown",
    "not_allowed",
    "arguments",
    "loop",
    "tool_file",
    "spawn",
    "exit",
    "signal",
    "timeout",
    "server",
    "question",
]


@dataclass(frozen=True)
class ToolOutcome:
    """`value` is for the model, after a failure too. `failure` None: the tool ran and succeeded. `printed` is output
    that the model does not see: stdout, and the stderr of a success. `cut_bytes` is how much of the result was cut, and
    `kept_text` the text of the rest, parsed or not. With a `question` the tool asks a person, and the rest is of no
    meaning."""

    value: Json
    failure: Failure | None = None
    printed: str = ""
    cut_bytes: int = 0
    kept_text: str = ""
    question: InterruptQuestion | None = None

    @property
    def text(self) -> str:
        """The value as JSON text: the content of the message that answers the call."""
        return compact_json(self.value)


def failed(failure: Failure, message: str, printed: str = "", **texts: str) -> ToolOutcome:
    """A failed call. Blank `texts` are left out."""
    details = {name: text.strip() for name, text in texts.items() if text.strip()}
    return ToolOutcome({"tool_call_error": message, **details}, failure, printed)


def message(result: ToolOutcome) -> str:
    """What a failed call says went wrong."""
    value = result.value if isinstance(result.value, dict) else {}
    texts = (value.get(name) for name in ("tool_call_error", "stderr"))
    return ": ".join(str(text) for text in texts if text) or str(result.failure)


def with_advice(result: ToolOutcome, advice: str) -> ToolOutcome:
    """A failure, with advice at the end of its message."""
    assert isinstance(result.value, dict)
    return replace(result, value={**result.value, "tool_call_error": f"{result.value['tool_call_error']}. {advice}"})


def of_outcome(
    name: str, outcome: sandbox.CommandOutcome, output: Path, *, timeout_s: float, limit_bytes: int
) -> ToolOutcome:
    """The result of a process that has ended; `output` is its file LLM_OUTPUT."""
    printed = outcome.stdout.decode(errors="replace")
    if outcome.reason == "timeout":
        message = f"Tool call '{name}' timed out after {timeout_s:g}s and was stopped"
        return failed("timeout", message, printed, stderr=outcome.stderr)
    if outcome.signal is not None or outcome.code != 0:
        ended = f"exited with code {outcome.code}"
        if outcome.signal is not None:
            ended = f"was killed by {sandbox.signal_name(outcome.signal)}"
        return _failed_process(f"Tool call '{name}' {ended}", outcome, output, limit_bytes)
    kept, size = _read(output, limit_bytes)
    return ToolOutcome(
        _value(kept, size),
        printed=printed + outcome.stderr,
        cut_bytes=size - len(kept),
        kept_text=kept.decode(errors="replace"),
    )


def _failed_process(message: str, outcome: sandbox.CommandOutcome, output: Path, limit_bytes: int) -> ToolOutcome:
    printed, share = outcome.stdout.decode(errors="replace"), limit_bytes // 4
    content, _ = _read(output, share)
    return failed(
        "exit" if outcome.signal is None else "signal",
        message,
        printed,
        stderr=outcome.stderr,
        stdout=printed.encode()[:share].decode(errors="ignore"),
        output=content.replace(b"\0", b"").decode(errors="replace"),
    )


def limited(value: Json, limit_bytes: int) -> Json:
    """The value; if its text is too long, the beginning of the text with a note."""
    text = compact_json(value).encode(errors="replace")
    return value if len(text) <= limit_bytes else _cut(text[:limit_bytes], len(text))


def storable(value: Json) -> Json:
    """The value, with `?` for halves of surrogate pairs: a message may quote the text of a model."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        cleaned: Json = json.loads(text.encode(errors="replace"))
        return cleaned
    return value


def _cut(kept: bytes, size: int) -> Json:
    note = (
        f"The result had {size:,} bytes: these are the first {len(kept):,}, the other {size - len(kept):,} were cut. "
        "Ask for less of it, or for the rest."
    )
    return {"output": kept.decode(errors="ignore"), "truncated": note}


def _read(output: Path, limit_bytes: int) -> tuple[bytes, int]:
    """At most `limit_bytes` of the file, and its size. The tool may have removed or replaced it."""
    try:
        fd = os.open(output, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b"", 0
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        return (file.read(limit_bytes), status.st_size) if stat.S_ISREG(status.st_mode) else (b"", 0)


def _value(kept: bytes, size: int) -> Json:
    if b"\0" in kept:
        return {"output": f"({size:,} bytes that are not text; have the tool write a file and name it)"}
    if size > len(kept):
        return _cut(kept, size)
    text = kept.decode(errors="replace").rstrip()
    if not text:
        return DONE
    value = _parsed(text)
    return DONE if value is None else value


def _parsed(text: str) -> Json:
    """The text parsed as JSON; text that is not JSON is wrapped as Loki does it."""
    wrapped: Json = {"output": text}
    try:
        value: Json = json.loads(text)
        json.dumps(value)
    except (ValueError, RecursionError):  # also an integer of thousands of digits, and endless nesting
        return wrapped
    return wrapped if first_not_json({"output": value}) else value
