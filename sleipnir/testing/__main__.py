"""`python -m sleipnir.testing serve --script FILE [--port PORT]`: the model server as a process.

It prints its URL on the first line of stdout and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from pathlib import Path

from sleipnir.errors import ConfigError
from sleipnir.testing.script import load
from sleipnir.testing.server import ModelServer


def main() -> None:
    """Serve a script until the process is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m sleipnir.testing", description="Run agents without a provider.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="a scripted OpenAI-compatible model server on the loopback")
    serve.add_argument("--script", type=Path, required=True, help="YAML, JSON, or Python with a function `answer`")
    serve.add_argument("--port", type=int, default=0, help="0, the default: a free one")
    options = parser.parse_args()
    try:
        script = load(options.script)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    with ModelServer(script, port=options.port) as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
