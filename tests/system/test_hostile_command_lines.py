"""Command lines that are wrong in every way: each ends with the right exit code and a line that names what is wrong,
none with a traceback."""

from __future__ import annotations

import gzip
import http.server
import itertools
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sleipnir.store.connect import connect
from tests import starter
from tests.processes import RedisServer, Stack, write_agent

pytestmark = pytest.mark.one_redis  # its command lines have the address of one server

FINE = """
name: fine
version: sleipnir/1
start: sure
variables: [{name: city, description: which, default: Rome}]
state: {kind: {schema: {enum: [a, b]}}}
nodes:
  sure: {type: approval, question: "Sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: "ok"}
"""

STATE = b"""
name: b
version: sleipnir/1
start: a
state: {kind: {schema: %s, default: 1}}
nodes: {a: {type: end, output: x}}
"""
BROKEN: dict[str, bytes] = {
    "latin1": "name: b\ndescription: Gerät\nstart: a\n".encode("latin-1"),
    "binary": bytes(range(256)),
    "nul": b"name: b\0\n",
    "empty": b"",
    "a-list": b"- 1\n- 2\n",
    "a-number": b"7\n",
    "deep": b"[" * 20_000,
    "deep-flow": b"state: " + b"{a: " * 5_000 + b"1" + b"}" * 5_000,
    "deep-block": b"".join(b" " * n + b"a:\n" for n in range(1_500)),
    "cyclic": b"name: b\nstart: a\nnodes: &n\n  a: {type: end, output: x}\n  b: *n\n",
    "cyclic-value": b"name: b\nstart: a\ninitial_state: &s {again: *s}\nnodes: {a: {type: end, output: x}}\n",
    "cyclic-ref": STATE % b"{$ref: '#/$defs/a', $defs: {a: {$ref: '#/$defs/b'}, b: {$ref: '#/$defs/a'}}}",
    "lost-ref": STATE % b"{$ref: '#/$defs/none'}",
    "far-ref": STATE % b"{$ref: 'http://127.0.0.1:9/s'}",
    "long-number": b"name: b\nstart: a\nlimits: {max_steps: "
    + b"9" * 5_000
    + b"}\nnodes: {a: {type: end, output: x}}\n",
    "infinite": b"name: b\nstart: a\nnodes: {a: {type: script, script: a.sh, timeout: .inf, next: z}, z: {type: end}}",
    "tagged": b"name: !!python/object/apply:os.system ['true']\nstart: a\nnodes: {a: {type: end, output: x}}\n",
    "unhashable": b"name: b\nstart: a\nnodes: {[1, 2]: {type: end, output: x}}\n",
    "surrogate": b'name: "\\ud800"\nstart: a\nnodes: {a: {type: end, output: x}}\n',
}
"""graph.yaml by what is wrong with it."""

NAMES: dict[str, tuple[str, str]] = {
    "absent": ("no-such-agent", "no-such-agent"),
    "long": ("a" * 300, "a" * 40),
    "path": ("/" + "p" * 5_000, "ppp"),
    "deep-path": ("a/" * 2_500, "a/a/a/"),
    "two-lines": ("a\nb", "a"),
    "escape": ("a\x1b[2Jb", "x1b[2J"),
    "empty": ("", "e"),
    "blank": (" ", "empty"),
    "bytes": ("ab\udcff", "is not text in UTF-8"),
    "a-file": ("{corner}/rows.jsonl", "{corner}"),
    "a-loop": ("{corner}/loop/x", "loop"),
    "a-device": ("/dev/null/x", "/dev/null/x"),
    "locked": ("{corner}/locked/agent", "locked"),
    "unreadable": ("{corner}/agents/unreadable", "unreadable"),
}
"""What stands where an agent should: the word, and what the message says of it."""

OF_AGENTS = (
    ("validate", "{}"), ("run", "{}", "hi"), ("submit", "{}", "hi"), ("draw", "{}"), ("tools", "{}"),
    ("agents", "show", "{}"), ("batch", "submit", "{}", "{corner}/rows.jsonl"), ("kb", "show", "{}"), ("chat", "{}"),
)  # fmt: skip

RUNS: dict[str, tuple[str, str]] = {
    "absent": ("nosuchrun000", "nosuchrun000"),
    "long": ("r" * 5_000, "r" * 40),
    "two-lines": ("a\nb", "a"),
    "escape": ("a\x1b[2Jb", "x1b[2J"),
    "bytes": ("ab\udcff", "is not text in UTF-8"),
    "braces": ("}{*", "}{*"),
}
OF_RUNS = (
    ("show", "{}"), ("show", "{}", "--state"), ("watch", "{}"), ("wait", "{}"), ("cancel", "{}"), ("retry", "{}"),
    ("answer", "{}", "yes"), ("history", "{}"), ("state", "{}"), ("export", "{}"), ("draw", "--run", "{}"),
    ("pause", "{}"), ("resume", "{}"), ("batch", "show", "{}"), ("batch", "results", "{}"), ("batch", "cancel", "{}"),
    ("batch", "fork", "{}"), ("compare", "{}", "{}"), ("trace", "{}"),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A command line, the exit codes that are right, and a text that its messages must have."""

    words: tuple[str, ...]
    says: str
    codes: tuple[int, ...] = (1, 2)
    env: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    wrapped: bool = False
    """As a process that has no more rights than the owner of the files, though it may be root."""

    def __str__(self) -> str:
        env = [f"{name}={value}" for name, value in self.env.items()]
        shown = " ".join((*env, *self.words)).encode("ascii", "backslashreplace").decode()
        return shown if len(shown) < 70 else f"{shown[:50]}...{len(shown)}"


def over(table: Mapping[str, tuple[str, str]], commands: tuple[tuple[str, ...], ...]) -> Iterator[Line]:
    for (name, (word, says)), words in itertools.product(table.items(), commands):
        filled = tuple(word if each == "{}" else each for each in words)
        closed = name in ("locked", "unreadable")
        if not closed or words[0] in ("validate", "run", "batch"):  # starting those without rights takes a second each
            yield Line(filled, says, wrapped=closed)


def line(
    *words: str, says: str, codes: tuple[int, ...] = (1, 2), text: str = "", wrapped: bool = False, **env: str
) -> Line:
    return Line(words, says, codes, env, text, wrapped)


NUMBER = "9" * 30
SETTINGS = [
    ("SLEIPNIR_LEASE_S", "inf"), ("SLEIPNIR_LEASE_S", "nan"), ("SLEIPNIR_LEASE_S", "-1"), ("SLEIPNIR_LEASE_S", "0"),
    ("SLEIPNIR_LEASE_S", "1e300"), ("SLEIPNIR_LEASE_S", "15 minutes"), ("SLEIPNIR_LEASE_S", "9" * 5_000),
    ("SLEIPNIR_HEARTBEAT_S", "-inf"), ("SLEIPNIR_RETENTION_S", "1e18"), ("SLEIPNIR_DRAIN_S", "nan"),
    ("SLEIPNIR_PARTITIONS", "0"), ("SLEIPNIR_PARTITIONS", NUMBER), ("SLEIPNIR_PARTITIONS", "1.5"),
    ("SLEIPNIR_MAX_REDELIVERIES", NUMBER), ("SLEIPNIR_MAX_PROMPT_BYTES", NUMBER), ("SLEIPNIR_METRICS_PORT", "99999"),
    ("SLEIPNIR_LOG_LEVEL", "loud"), ("SLEIPNIR_STREAM", "perhaps"), ("SLEIPNIR_LEESE_S", "15"),
    ("SLEIPNIR_MODEL", "ab\udcff"), ("SLEIPNIR_", "x"),
]  # fmt: skip

ADDRESSES: list[tuple[str, str]] = [
    ("redis://[::1", "its host and port cannot be read"),
    ("redis://localhost:port", "its host and port cannot be read"),
    ("redis://localhost:99999", "99999"),
    ("redis://localhost:1?foo=bar", "foo"),
    ("redis://localhost:1?socket_timeout=soon", "socket_timeout"),
    ("redis://:pl4nted/x@localhost:1/0", "percent-encoded"),
    ("redis://:pl4nted#x@localhost:1/0", "percent-encoded"),
    ("redis://:pl4nted?x@localhost:1/0", "percent-encoded"),
    ("redis://:pl4nted@localhost:1/0", "redis://:***@localhost:1/0"),
    ("rediss://localhost:1/0?ssl_ca_certs=/no/such/file", "localhost:1"),
    ("redis+sentinel://", "one of its hosts has no name"),
    ("redis+sentinel://localhost:1/m", "localhost:1"),
    ("http://localhost:1", "is not a Redis URL"),
    ("localhost:6379", "is not a Redis URL"),
    ("ab\udcff", "not"),
    ("x" * 5_000, "is not a Redis URL"),
    ("unix:///no/such/socket", "/no/such/socket"),
    ("unix://" + "/s" * 200, "/s/s/s"),
    ("redis://" + "h" * 300, "hhh"),
    ("{http}", "is not a Redis"),
    ("{noise}", "{noise}"),
    ("{silence}", "{silence}"),
    ("{nothing_allowed}", "does not allow this user"),
    ("{wrong_password}", "refused the password"),
    ("{no_such_db}", "has no database of that number"),
]  # fmt: skip

LINES: list[Line] = [
    *over(NAMES, OF_AGENTS),
    *over(RUNS, OF_RUNS),
    *(line("validate", f"{{corner}}/agents/{name}", says=name) for name in BROKEN),
    *(line("submit", name, "hi", says="error") for name in BROKEN),
    *(line("draw", name, says="error") for name in ("binary", "deep", "cyclic-value", "long-number")),
    line("agents", says="", codes=(0,)),
    line("validate", "{corner}/graph-is-a-folder", says="graph.yaml"),
    line("validate", "{corner}/graph-is-a-pipe", says="graph.yaml"),
    line("submit", "{corner}/leaves", "hi", says="outside"),
    line("tools", "{corner}/bad-tools", says="tools.py"),
    *(
        line("ps", env_says, says=env_name, **{env_name: value})
        for env_name, value in SETTINGS
        for env_says in ("--all",)
    ),
    *(line("ps", says=says, SLEIPNIR_REDIS_URL=url) for url, says in ADDRESSES),
    *(line("--redis-url", url, "doctor", says=says, codes=(1, 2)) for url, says in ADDRESSES),
    line("ps", "--limit", NUMBER, says="more than"),
    line("ps", "--among", NUMBER, says="more than"),
    line("ps", "--limit", "-1", says="--limit"),
    line("ps", "--limit", "0x10", says="0x10"),
    line("ps", "--limit", "9" * 5_000, says="--limit"),
    line("ps", "--status", "odd", says="odd"),
    line("ps", "--batch", "b" * 5_000, says="bbb"),
    line("ps", "--nonsense", says="--nonsense"),
    line("ps", "extra", says="extra"),
    line("pss", says="Did you mean 'ps'?"),
    line("p" * 5_000, says="ppp"),
    line("\x1b[2J", says="x1b[2J"),
    line("ab\udcff", says="is not text in UTF-8"),
    line("--home", "/dev/null", "ps", says="/dev/null", SLEIPNIR_REDIS_URL=""),
    line("--home", "/dev/null/x", "ps", says="/dev/null/x", SLEIPNIR_REDIS_URL=""),
    line("--home", "/" + "h" * 5_000, "ps", says="hhh", SLEIPNIR_REDIS_URL=""),
    line("--home", "/proc/nowhere", "ps", says="/proc/nowhere", SLEIPNIR_REDIS_URL=""),
    line("--home", "{corner}/locked/home", "ps", says="locked", wrapped=True, SLEIPNIR_REDIS_URL=""),
    line("--home", "{corner}/loop", "ps", says="loop", SLEIPNIR_REDIS_URL=""),
    line("--home", "{corner}/locked/home", "doctor", says="locked", codes=(1,), wrapped=True, SLEIPNIR_REDIS_URL=""),
    line("--agents-dir", "{corner}/locked", "agents", says="is not readable", wrapped=True),
    line("--agents-dir", "/" + "d" * 5_000, "agents", says="", codes=(0, 1, 2)),
    line("submit", "fine", "--var", "city", says="city"),
    line("submit", "fine", "--var", "=x", says="'=x'"),
    line("submit", "fine", "--var", "city=\udcff", says="is not text in UTF-8"),
    line("submit", "fine", "--var", "nobody=x", says="nobody"),
    line("submit", "fine", "--agent-variable", "city", says="--agent-variable"),
    line("submit", "fine", "--state", "kind=\udcff", says="is not text in UTF-8"),
    line("submit", "fine", "--state", "kind=red", says="kind"),
    line("submit", "fine", "--state", "kind=NaN", says="kind"),
    line("submit", "fine", "--state", "kind=" + "[" * 20_000, says="kind"),
    line("submit", "fine", "--state", "kind=" + "9" * 5_000, says="kind"),
    line("submit", "fine", "--state", 'kind="\\ud800"', says="kind"),
    line("submit", "fine", "--state", 'kind="c"', says="kind"),
    line("submit", "fine", "--file", "{corner}/no-such-file", says="no-such-file"),
    line("submit", "fine", "--file", "{corner}/latin1.txt", says="UTF-8"),
    line("submit", "fine", "--file", "{corner}", says="is a directory"),
    line("submit", "fine", "--file", "{corner}/locked/x", says="locked", wrapped=True),
    line("submit", "fine", "--file", "{corner}/unreadable.txt", says="unreadable.txt", wrapped=True),
    line("submit", "fine", "--cwd", "{corner}/no-such-folder", says="no-such-folder", SLEIPNIR_REDIS_URL=""),
    line("submit", "fine", "--cwd", "{corner}/rows.jsonl", says="rows.jsonl"),
    line("submit", "fine", "--max-cost", "nan", says="nan"),
    line("submit", "fine", "--max-tokens", NUMBER, says="more than"),
    line("submit", "fine", "--session", "s" * 5_000, says="session"),
    line("submit", "fine", "\udcff", says="is not text in UTF-8"),
    line("submit", "fine", "p" * 5_000, says="SLEIPNIR_MAX_PROMPT_BYTES", SLEIPNIR_MAX_PROMPT_BYTES="10"),
    line("run", "fine", "--answer", "sure", says="sure"),
    line("run", "fine", "--record", "{corner}/rows.jsonl", says="rows.jsonl"),
    line("run", "fine", "--replay", "{corner}/no-tape", says="no-tape", SLEIPNIR_REDIS_URL=""),
    line("batch", "submit", "fine", "{corner}/latin1.txt", says="UTF-8"),
    line("batch", "submit", "fine", "{corner}/binary.csv", says="binary.csv"),
    line("batch", "submit", "fine", "{corner}/wide.csv", says="wide.csv"),
    line("batch", "submit", "fine", "{corner}/deep.jsonl", says="deep.jsonl"),
    line("batch", "submit", "fine", "{corner}/numbers.jsonl", says="numbers.jsonl"),
    line("batch", "submit", "fine", "{corner}/empty.jsonl", says="no"),
    line("batch", "submit", "fine", "{corner}/no-such-file", says="no-such-file"),
    line("batch", "submit", "fine", "{corner}", says="is a directory"),
    line("batch", "submit", "fine", "-", says="standard input", text="{}{}\n"),
    line("batch", "submit", "fine", "{corner}/rows.jsonl", "--key", "none", says="none"),
    line("batch", "submit", "fine", "{corner}/rows.jsonl", "--parallel", NUMBER, says="more than"),
    line("batch", "submit", "fine", "{corner}/rows.jsonl", "--priority", "77", says="77"),
    line("batch", "ls", "--limit", NUMBER, says="more than"),
    line("archive", "ls", says="archive"),
    line("archive", "ls", "--folder", "{corner}/no-such-folder", says="no-such-folder"),
    line("archive", "ls", "--folder", "{corner}/rows.jsonl", says="rows.jsonl"),
    line("archive", "ls", "--folder", "{corner}/locked", says="locked", wrapped=True),
    line("archive", "ls", "--folder", "{corner}/damaged", says="runs-2026-01-01-h-1"),
    line("archive", "show", "x", "--folder", "{corner}/damaged", says="runs-2026-01-01-h-1"),
    line("archive", "ls", "--folder", "{corner}/binary", says="runs-2026-01-01-h-1"),
    line("archive", "show", "x" * 5_000, "--folder", "{corner}/binary", says="xxx"),
    line("export", "nosuchrun000", "-o", "/dev/full", says="nosuchrun000"),
    line("draw", "fine", "-o", "/dev/full", says="No space left"),
    line("draw", "fine", "-o", "{corner}/no/such/f.svg", says="no/such"),
    line("draw", "fine", "-o", "/" + "f" * 5_000, says="fff"),
    line("draw", "fine", "-o", "{corner}", says="is a directory"),
    line("draw", says="agent"),
    line("tools", "call", "fine", "none", says="none"),
    line("tools", "call", "tooled", "add", "{}", says="add"),
    line("tools", "call", "tooled", "add", "[" * 20_000, says="JSON"),
    line("tools", "call", "tooled", "add", "\udcff", says="is not text in UTF-8"),
    line("kb", "search", "fine", "x", says="no rag node"),
    line("answer", "nosuchrun000", "a", "b", "c", says="one argument"),
    line("sessions", "show", "fine", "s" * 5_000, says="sss"),
    line("sessions", "rm", "fine", "none", says="none", codes=(0, 1, 2)),
    line("completion", "tcsh", says="tcsh"),
    line("wait", "nosuchrun000", "--timeout", "nan", says="nan"),
    line("wait", "nosuchrun000", "--timeout", "inf", says="inf"),
    line("worker", "-c", NUMBER, says="more than"),
    line("worker", "-P", "gevent", says="gevent"),
    line("worker", "--health", "--within", "nan", says="nan"),
    line("worker", says="there is no transport", SLEIPNIR_BROKER_URL="foo://x"),
    line("scheduler", says="there is no transport", SLEIPNIR_BROKER_URL="foo://x"),
    line("scheduler", says="there is no transport", SLEIPNIR_BROKER_URL="ampq://:pl4nted@x"),
    line("doctor", says="there is no transport", SLEIPNIR_BROKER_URL="foo://x"),
    line("doctor", says="percent-encoded", SLEIPNIR_BROKER_URL="redis://:pl4nted/x@localhost:1"),
    line("worker", says="SLEIPNIR_REDIS_URL", SLEIPNIR_REDIS_URL=""),
    line("up", "--scripts", NUMBER, says="more than"),
]


class Corner:
    """A folder with what should not be, servers that are no Redis, and the environment of a command."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self.folder, self.stack = folder, stack
        agents = folder / "agents"
        write_agent(agents / "fine", FINE)
        write_agent(
            agents / "tooled", FINE, tools_py='def add(a: int):\n    """Adds.\n\n    Args:\n        a: a\n    """\n'
        )
        for name, content in BROKEN.items():
            write_agent(agents / name, "")
            (agents / name / "graph.yaml").write_bytes(content)
        write_agent(agents / "unreadable", FINE)
        (agents / "unreadable" / "graph.yaml").chmod(0)
        write_agent(folder / "locked" / "agent", FINE)
        (folder / "graph-is-a-folder" / "graph.yaml").mkdir(parents=True)
        (folder / "graph-is-a-pipe").mkdir()
        os.mkfifo(folder / "graph-is-a-pipe" / "graph.yaml")
        (write_agent(folder / "leaves", FINE) / "link").symlink_to("/etc/hostname")
        write_agent(folder / "bad-tools", FINE, tools_py="def (:\n")
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "rows.jsonl").write_text('{"prompt": "a"}\n')
        (folder / "empty.jsonl").write_text("")
        (folder / "latin1.txt").write_bytes("Gerät\n".encode("latin-1"))
        (folder / "unreadable.txt").write_text("x")
        (folder / "unreadable.txt").chmod(0)
        (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
        (folder / "wide.csv").write_text("prompt\n" + '"' + "x" * 200_000 + "\n")
        (folder / "deep.jsonl").write_text('{"prompt": ' + "[" * 20_000 + "\n")
        (folder / "numbers.jsonl").write_text('{"prompt": "a", "n": ' + "9" * 5_000 + "}\n")
        for name in ("damaged", "binary"):
            (folder / name).mkdir()
        whole = gzip.compress(b'{"type":"run","run":"x"}\n' * 2_000, mtime=0)
        (folder / "damaged" / "runs-2026-01-01-h-1.jsonl.gz").write_bytes(whole[:20] + b"\xff" * 40 + whole[30:])
        (folder / "binary" / "runs-2026-01-01-h-1.jsonl").write_bytes(bytes(range(256)) * 8)
        (folder / "locked").chmod(0)
        self.places = {"corner": str(folder)}
        self._servers: list[socketserver.BaseServer] = []

    def serve(self, name: str, handler: type[socketserver.BaseRequestHandler]) -> None:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)
        self.places[name] = f"redis://127.0.0.1:{server.server_address[1]}/0"

    def fill(self, text: str) -> str:
        for name, value in self.places.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        mine = {
            **self.stack.environment(), "SLEIPNIR_AGENTS_DIR": str(self.folder / "agents"), "NO_COLOR": "1",
            "LOKI_CONFIG_DIR": str(self.folder / "loki"), "SLEIPNIR_LOG_LEVEL": "info", "SLEIPNIR_HOME": str(self.home),
        }  # fmt: skip
        for name, value in (env or {}).items():
            mine[name] = self.fill(value)
        return mine

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self, line: Line) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sleipnir", *map(self.fill, line.words)]
        if line.wrapped and os.geteuid() == 0:
            rights = "-dac_override,-dac_read_search"
            command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]
        return starter.run(command, self.environment(line.env), text=line.text, timeout_s=60)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for path in (
            self.folder / "locked",
            self.folder / "unreadable.txt",
            self.folder / "agents/unreadable/graph.yaml",
        ):
            path.chmod(0o700)


class Http(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Noise(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(100)
        self.request.sendall(b"\x00\xff\x16\x03\r\n" * 20)


class HangsUp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(100)


@pytest.fixture(scope="module")
def corner(stack: Stack, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corner]:
    made = Corner(tmp_path_factory.mktemp("corner"), stack)
    made.serve("http", Http)
    made.serve("noise", Noise)
    made.serve("silence", HangsUp)
    admin: Any = connect(redis_server.url)
    admin.acl_setuser(
        "nobody", enabled=True, passwords=["+pl4nted"], categories=["-@all"], commands=["+ping", "+hello"]
    )
    made.places["nothing_allowed"] = f"unix://nobody:pl4nted@{redis_server.socket}?db=0"
    made.places["wrong_password"] = f"unix://nobody:pl4ntedtoo@{redis_server.socket}?db=0"
    made.places["no_such_db"] = f"unix://{redis_server.socket}?db=99"
    yield made
    admin.acl_deluser("nobody")
    admin.close()
    made.close()


def test_there_are_enough_of_them() -> None:
    assert len(set(map(repr, LINES))) >= 200


@pytest.mark.parametrize("hostile", LINES, ids=str)
def test_a_hostile_command_line_ends_with_a_line_that_names_what_is_wrong(corner: Corner, hostile: Line) -> None:
    """S13 of the second review."""
    done = corner.run(hostile)
    said = done.stderr + done.stdout
    wrong = [what for what in ("Traceback", "This error was not expected", "\x1b", "pl4nted") if what in said]
    missing = [] if corner.fill(hostile.says) in said else [hostile.says]
    code = None if done.returncode in hostile.codes else done.returncode
    assert (wrong, missing, code) == ([], [], None), said[:2_000]


CLOSED = [
    ">&-",
    "<&-",
    "2>&-",
    ">&- 2>&-",
    "<&- >&- 2>&-",
    ">/dev/full",
    "2>/dev/full",
    ">/dev/full 2>/dev/full",
    "| true",
]


@pytest.mark.parametrize("streams", CLOSED)
@pytest.mark.parametrize("words", ["agents", "ps --all", "validate {corner}/agents/fine"])
def test_closed_and_full_streams_lose_an_output_only_with_an_exit_code(
    corner: Corner, words: str, streams: str
) -> None:
    """S13 of the second review. `ps` has nothing to write to standard output: its message is no result."""
    script = f"set -o pipefail; {sys.executable} -m sleipnir {corner.fill(words)} {streams}"
    env = corner.environment() | {"SLEIPNIR_KEY_PREFIX": "without-runs"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    lost = ">&-" in streams.replace("2>&-", "") or streams.startswith((">/dev/full", "| true"))
    if words.startswith("ps"):
        assert done.returncode == 0
    elif lost:
        assert done.returncode == 1
        if "2>" not in streams and "|" not in streams:
            assert done.stderr.startswith("error: the output cannot be written: ")
    else:
        assert done.returncode == 0, done.stderr


MODULES = [
    "sleipnir.cli.unexpected",
    "click",
    "sleipnir.cli.app",
    "sleipnir.cli.terminal.render",
    "sleipnir.settings",
    "redis",
    "sleipnir.client.client",
]


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_while_modules_are_imported_is_an_interruption(corner: Corner, module: str) -> None:
    """S13 of the second review: in the first quarter of a second it was a traceback of an import. Before `main` has
    begun, a few milliseconds, it is Python's."""
    command = [sys.executable, "-X", "importtime", "-m", "sleipnir", "ps"]
    imported, said = False, ""
    with subprocess.Popen(
        command, env=corner.environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for each in process.stderr:
            is_timing = each.startswith("import time:")
            if is_timing and not imported and each.rpartition("|")[2].strip() == module:
                imported = True
                process.send_signal(signal.SIGINT)
            said += "" if is_timing else each
    assert imported, f"ps imports {module}"
    assert said.strip() == "interrupted"
    # Python ends by the signal itself where Ctrl-C meets code made of text, as in a dataclass; a shell says 130 then.
    assert process.returncode in (130, -signal.SIGINT)


def test_a_removed_directory_is_named(corner: Corner, tmp_path: Path) -> None:
    """S13 of the second review."""
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {Path(sys.executable).parent}/sleipnir agents"
    done = subprocess.run(
        ["bash", "-c", script], env=corner.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the current directory cannot be used")


def test_a_bug_is_one_line_and_its_traceback_is_in_a_file_for_the_user_alone(tmp_path: Path) -> None:
    """S13 of the second review. An address in an error is masked there, too."""
    code = (
        "import sys, sleipnir.cli as cli\n"
        "def run(arguments): raise RuntimeError('cannot reach redis://u:pl4nted/x@h')\n"
        "cli._run = run\nsys.exit(cli.main(sys.argv[1:]))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}

    def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return starter.run(
            [sys.executable, "-c", code, *words], env | {"SLEIPNIR_HOME": str(home), "TMPDIR": str(tmp_path)}
        )

    done = run(tmp_path / "home")
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (1, "error: RuntimeError: cannot reach redis://u:***@h")
    file = Path(second.partition("The traceback is in ")[2])
    assert file.parent == tmp_path / "home" / "crashes"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "RuntimeError" in file.read_text()
    assert "pl4nted" not in file.read_text()
    assert Path(run(Path("/dev/null")).stderr.rpartition(" ")[2].strip()).parent == tmp_path, "else for temporary files"
    verbose = run(tmp_path / "home", "-v").stderr
    assert "Traceback (most recent call last)" in verbose
    assert "pl4nted" not in verbose
    for _ in range(25):
        (tmp_path / "home" / "crashes" / f"crash-1-{_}.txt").touch()
    run(tmp_path / "home")
    assert len(list((tmp_path / "home" / "crashes").iterdir())) == 20, "old ones are removed"
