"""The command line. `main` is the entry point of the `sleipnir` command.

Rule. Starting must stay cheap: this module, `unexpected` and `front_page` import nothing that Python has not loaded
itself, so the help page and every completion of a command name cost little more than starting Python. click is loaded
when a command is really asked for, that command's module after it, and Redis, pydantic and rich inside its functions.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: sys.argv) and return its exit code. Prints; raises nothing but SystemExit."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if argv is None and arguments[:1] == ["worker"]:  # with --health, in a worker's container every 20 s
        from sleipnir.hardening import refuse_inspection

        refuse_inspection()
    try:
        from sleipnir.cli import unexpected

        unexpected.open_streams()
        code = _run(arguments)
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        from sleipnir.cli import unexpected

        code = unexpected.end(error, arguments)
    return code


def _run(arguments: list[str]) -> int:
    if arguments in ([], ["--help"], ["-h"]) and "_SLEIPNIR_COMPLETE" not in os.environ:
        from sleipnir.cli.front_page import text

        print(text())
        return 0
    from sleipnir.cli.app import main as run_command

    return run_command(arguments)
