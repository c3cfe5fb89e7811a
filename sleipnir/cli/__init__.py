"""The command line. `main` is the entry point of the `sleipnir` command.

Rule. Starting must stay cheap: this module and `front_page` import nothing but `sys` and `os`, so the help
page and every completion of a command name cost little more than starting Python. click is loaded when a
command is really asked for, that command's module after it, and Redis, pydantic and rich inside its functions.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: sys.argv) and return its exit code. Prints; raises only on a bug."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would complain again
        code = 1
    except OSError as error:
        import errno

        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        code = 1
    return code


def _run(arguments: list[str]) -> int:
    if arguments in ([], ["--help"], ["-h"]) and "_SLEIPNIR_COMPLETE" not in os.environ:
        from sleipnir.cli.front_page import text

        print(text())
        return 0
    from sleipnir.cli.app import main as run_command

    return run_command(arguments)
