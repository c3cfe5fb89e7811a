"""Read a log file once, from the beginning to the end, and group the lines that look like problems.

In:  `initial_prompt`, the path of the log file; LLM_AGENT_VAR_MAX_MEGABYTES, how much of its end to read.
Out: `log`, `summary`, `findings`, `findings_text`, or `problem` when there is no readable log.
     `_next` is the node to go to when that is not `diagnose`.

The file may be larger than memory: one line is held at a time, and what enters the state is capped.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

MAX_LINE_BYTES = 8192  # the rest of a longer line is skipped
MAX_FINDINGS = 12
MAX_TEXT = 240  # characters of one message in the state

# The first kind that matches any line of a record wins, so a cause comes before its symptoms.
KINDS = [
    ("memory", r"OutOfMemory|out of memory|maxmemory|MemoryError|cannot allocate memory|\bOOM\b|oom-kill"),
    ("disk", r"no space left on device|ENOSPC|disk (?:is )?full|disk quota exceeded"),
    ("crash", r"unrecoverable|\bpanic\b|segmentation fault|core dumped|killed process|\bCRITICAL\b|\bFATAL\b"),
    ("restart", r"not properly shut down|was interrupted; last known up|code=killed"),
    ("connection", r"connection (?:to \S+ )?(?:refused|reset|lost|aborted|timed out)|cannot connect|broken pipe"),
    ("access", r"permission denied|access denied|unauthori[sz]ed|authentication failed|NOAUTH|WRONGPASS"),
    ("timeout", r"timed out|\btimeout\b|deadline exceeded"),
    ("exception", r"Traceback \(most recent call last\)|\braised unexpected\b|unhandled exception"),
    ("error", r'(?-i:\bERROR\b|\b[Ee]rror:)|\blevel"?[=:] ?"?error|\bfailed\b|" 50\d '),
]
KIND_OF = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS), re.IGNORECASE)
RANK = {kind: rank for rank, (kind, _) in enumerate(KINDS)}
CALM = re.compile(r'\b(?:TRACE|DEBUG|INFO|NOTICE)\b|\blevel"?[=:] ?"?(?:trace|debug|info)\b')
FATAL = re.compile(r"unrecoverable|\bpanic\b|\bCRITICAL\b|\bFATAL\b", re.IGNORECASE)

SOURCE = re.compile(r"([\w.-]{1,40}) +\| ")  # the prefix of `docker compose logs`
CLOCK = re.compile(r"\d\d:\d\d:\d\d")  # a line with a time of day near its front starts a record
RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)\b(?:: .*)?$")
FRAME = re.compile(r'\s+File "(.+)", line (\d+), in (\S+)')
VARYING = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{16,}\b|\d+")
UUID = re.compile(r"\[?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\]?")


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    path, problem = find(str(state.get("initial_prompt", "")).strip())
    if path is None:
        finish(problem=problem, _next="unreadable")
        return
    try:
        triage(path, limit=int(os.environ.get("LLM_AGENT_VAR_MAX_MEGABYTES") or 256) * 2**20)
    except OSError as error:
        finish(problem=f"{path.name} cannot be read: {error.strerror}.", _next="unreadable")


def finish(**output: object) -> None:
    """A script speaks once: one JSON object on stdout."""
    print(json.dumps(output, ensure_ascii=False))


def find(asked: str) -> tuple[Path | None, str]:
    """The requested file, or the reason why there is none."""
    if not asked:
        return None, "No log file was named. Give its path, for example: sleipnir run log-triage server.log"
    if "\n" in asked or len(asked) > 4096:
        return None, "This is the text of something, not a path. Save the log to a file and give the path of the file."
    folders = [os.environ.get("GRAPH_CALLER_DIR"), os.environ.get("LLM_AGENT_DATA_DIR") or "."]
    places = [Path(folder, os.path.expanduser(asked)) for folder in folders if folder]
    path = next((place for place in places if os.path.exists(place)), None)
    if path is None:
        return None, f"{asked} does not exist here or in the agent's folder."
    if not path.is_file():
        return None, f"{asked} is not a file. Give the path of one log file."
    return path, ""


def triage(path: Path, limit: int) -> None:
    size = path.stat().st_size
    if size == 0:
        finish(problem=f"{path.name} is empty.", _next="unreadable")
        return
    with path.open("rb") as file:
        if looks_binary(file.read(8192)):
            finish(problem=f"{path.name} is not a text file. Unpack it first if it is compressed.", _next="unreadable")
            return
        skipped = max(0, size - limit)
        file.seek(skipped)
        if skipped:
            file.readline(MAX_LINE_BYTES)  # most likely the second half of a line
        log = Log()
        for line in text_lines(file):
            log.read(line)
        log.close()
    report(path.name, log, skipped)


def looks_binary(head: bytes) -> bool:
    return b"\0" in head or head[:2] == b"\x1f\x8b"


def text_lines(file):
    """The lines of the file, each cut at MAX_LINE_BYTES."""
    while piece := file.readline(MAX_LINE_BYTES):
        yield piece.decode("utf-8", errors="replace").rstrip()
        while piece and not piece.endswith(b"\n"):
            piece = file.readline(MAX_LINE_BYTES)


class Log:
    """The state after each line. A record is a line with a time and the lines without one below it."""

    def __init__(self) -> None:
        self.lines = self.warnings = 0
        self.first = self.last = ""
        self.sources: dict[str, dict | None] = {}  # the open record of each source
        self.groups: dict[tuple, dict] = {}
        self.redis_is_up: dict[str, bool] = {}

    def read(self, line: str) -> None:
        self.lines += 1
        prefix = SOURCE.match(line)
        source = prefix[1] if prefix else ""
        if prefix:
            line = line[prefix.end() :]
        clock = CLOCK.search(line, 0, 64)
        record = self.sources.get(source)
        if clock is None and record is not None and (record["clock"] or line[:1].isspace()):
            self.extend(record, line)
            return
        self.finish_record(source)
        self.sources[source] = self.start_record(source, line, clock[0] if clock else "")

    def start_record(self, source: str, line: str, clock: str) -> dict:
        if clock:
            self.first = self.first or clock
            self.last = clock
        self.warnings += "WARN" in line
        record = {"source": source, "clock": clock, "head": line, "kind": None, "raised": "", "frame": ""}
        if "Redis is starting" in line:
            if self.redis_is_up.get(source):
                record["kind"] = "restart"
                record["head"] = "Redis started again; it had not shut down, so it was killed or it crashed"
            self.redis_is_up[source] = True
        elif "ready to exit" in line:
            self.redis_is_up[source] = False
        elif not CALM.search(line, 0, 100):
            self.rank(record, line)
        return record

    def extend(self, record: dict, line: str) -> None:
        if record["kind"] is None:
            return
        self.rank(record, line)
        if frame := FRAME.match(line):
            record["frame"] = f"{frame[1]}:{frame[2]} in {frame[3]}"
        elif RAISED.match(line):
            record["raised"] = line

    def rank(self, record: dict, line: str) -> None:
        for match in KIND_OF.finditer(line):
            kind = match.lastgroup
            if record["kind"] is None or RANK[kind] < RANK[record["kind"]]:
                record["kind"] = kind

    def finish_record(self, source: str) -> None:
        record = self.sources.get(source)
        if not record or record["kind"] is None:
            return
        if record["kind"] == "error" and re.search(r"\bWARN", record["head"][:100]):
            return  # a warning that merely mentions an error
        message = cut(UUID.sub("", bare(record["head"])))
        key = (record["kind"], source, VARYING.sub("#", message)[:120])
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= 500:
                return  # hundreds of different errors: the first ones tell the story
            group = self.groups[key] = {
                "kind": record["kind"],
                "message": message,
                "detail": cut(UUID.sub("…", record["raised"])),
                "where": record["frame"] if record["kind"] == "exception" else "",
                "source": source,
                "count": 0,
                "first": record["clock"],
                "fatal": bool(FATAL.search(record["head"])),
            }
        group["count"] += 1
        group["last"] = record["clock"]

    def close(self) -> None:
        for source in self.sources:
            self.finish_record(source)


def bare(line: str) -> str:
    """A record's first line without its time, level and process."""
    line = re.sub(r"^\[[^\]]*\d\d:\d\d:\d\d[^\]]*\]\s*", "", line)
    line = re.sub(r"^.{0,40}?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s*[*#.-]?\s*", "", line)
    return line.strip()


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def report(name: str, log: Log, skipped: int) -> None:
    findings = sorted(log.groups.values(), key=lambda group: (RANK[group["kind"]], -group["count"]))
    about = {
        "name": name,
        "lines": log.lines,
        "first": log.first,
        "last": log.last,
        "sources": sorted(source for source in log.sources if source)[:20],
        "warnings": log.warnings,
        "skipped_bytes": skipped,
    }
    finish(
        log=about,
        summary=summarise(about, findings),
        findings=findings[:MAX_FINDINGS],
        findings_text="\n".join(describe(finding) for finding in findings[:MAX_FINDINGS]),
        _next="diagnose" if findings else "all_quiet",
    )


def summarise(about: dict, findings: list[dict]) -> str:
    text = f"{about['name']}: {plural(about['lines'], 'line')}"
    if about["sources"]:
        text += f" from {', '.join(about['sources'])}"
    if about["first"]:
        text += f", {about['first']} to {about['last']}"
    if about["skipped_bytes"]:
        text += f" (the end of the file; {about['skipped_bytes'] / 2**20:,.0f} MB before it were not read)"
    times = sum(finding["count"] for finding in findings)
    trouble = f"{plural(times, 'error')} of {plural(len(findings), 'kind')}" if findings else "no errors"
    return f"{text}; {trouble}; {plural(about['warnings'], 'warning')}."


def plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def describe(finding: dict) -> str:
    times = f"{finding['count']} times, {finding['first']} to {finding['last']}"
    when = finding["first"] if finding["count"] == 1 else times
    text = f"- [{finding['kind']}] {when or 'no time'}: {finding['message']}"
    if finding["detail"] and finding["detail"] not in finding["message"]:
        text += f" | {finding['detail']}"
    return text + (f" | {finding['where']}" if finding["where"] else "")


if __name__ == "__main__":
    main()
