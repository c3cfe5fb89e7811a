"""An MCP server of the older protocol without the SDK, which starts at once: `python -I -S plain_server.py FAULT`.

FAULT is what it does wrong; "none" for nothing, "many" for 500 tools more, "backtracks"
for a tool whose output schema has a pattern that backtracking never ends. Its tools are in `TOOLS`.
"""

import json
import os
import subprocess
import sys

FAULT = sys.argv[1]
TOOLS = ["echo", "sleep", "die", "read_and_die", "spawn", "grow", "stderr"]
OUTPUT = {"type": "object", "properties": {"value": {"type": "string", "pattern": "^(a+)+$"}}}
tools = [*TOOLS, *(f"item_{number}" for number in range(500 if FAULT == "many" else 0))]


def send(message: dict) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value: str) -> dict:
    return {"content": [{"type": "text", "text": value}]}


def listed(params: dict) -> dict:
    """Two to a page."""
    start = int(params.get("cursor") or 0)
    if FAULT == "endless":
        return {"tools": [{"name": "again", "inputSchema": {"type": "object"}}] * 60, "nextCursor": str(start + 1)}
    page = [
        {
            "name": name,
            "description": f"Does {name}.",
            "inputSchema": {"type": "object", "properties": {"value": {"type": "string"}}},
            "annotations": {"idempotentHint": name == "read_and_die"},
            **({"outputSchema": OUTPUT} if FAULT == "backtracks" and name == "echo" else {}),
        }
        for name in tools[start : start + 2]
    ]
    return {"tools": page, **({"nextCursor": str(start + 2)} if start + 2 < len(tools) else {})}


def called(name: str, arguments: dict) -> dict | None:
    if name == "sleep":
        return None
    if name in ("die", "read_and_die"):
        print("about to die of", arguments.get("value"), file=sys.stderr, flush=True)
        os._exit(3)
    if name == "spawn":
        return text(str(subprocess.Popen(["sleep", "600"]).pid))
    if name == "grow":
        tools.append("late")
        send({"method": "notifications/tools/list_changed"})
        return text("grown")
    if name == "stderr":
        print("x" * 1_000_000, file=sys.stderr, flush=True)
        return text(str(os.getpid()))
    if FAULT == "backtracks":
        return {**text("echo"), "structuredContent": arguments}
    return text(json.dumps(arguments))


if FAULT == "dies at start":
    sys.exit("no database at db.example:5432, password is hunter2-hunter2")
if FAULT == "prints":
    print("Welcome to the server!", flush=True)
if FAULT == "stays":
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    request = json.loads(line)
    method, number = request["method"], request.get("id")
    if FAULT == "silent" or number is None:
        continue
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "plain", "version": "1"},
        }
    elif method == "tools/list":
        result = listed(request.get("params", {}))
    elif method == "tools/call":
        result = called(request["params"]["name"], request["params"].get("arguments") or {})
    else:
        send({"id": number, "error": {"code": -32601, "message": f"no method {method}"}})
        continue
    if result is not None:
        send({"id": number, "result": result})
if told := os.environ.get("ENDED"):
    os.close(os.open(told, os.O_CREAT))  # stdin was closed
if FAULT == "stays":
    signal.pause()
