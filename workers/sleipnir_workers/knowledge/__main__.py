"""The builder: `python -m sleipnir_workers.knowledge` reads one Order, and tells how it goes (knowledge/order.py).

It stops on SIGTERM and SIGINT, and when nobody reads what it tells; the lease is given back then. Killed without a
word, it leaves a lease that lapses and a folder that the next builder clears up.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TextIO

from sleipnir import hardening, logs
from sleipnir.errors import KnowledgeError, NodeFailed, SleipnirError, StoreUnavailable
from sleipnir.knowledge.order import BuildDone, BuildFailed, BuildMessage, message_line, order_of
from sleipnir_workers.execution import ProcessLost
from sleipnir_workers.host import here
from sleipnir_workers.knowledge.failures import LoadFailed
from sleipnir_workers.llm.failures import CallFailed


class Stopped(BaseException):
    """By a signal."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def main() -> None:
    hardening.refuse_inspection()
    messages = _message_stream()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _stop)
    try:
        report = _reporter(messages)
        report(_carried_out(sys.stdin.readline(), report))
    except BrokenPipeError:
        _die_of(signal.SIGPIPE)
    except Stopped as stopped:
        _die_of(stopped.signum)


def _message_stream() -> TextIO:
    """Standard output for messages alone. Whatever else is printed, by a library or a command, goes to standard
    error."""
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return messages


def _reporter(file: TextIO) -> Callable[[BuildMessage], None]:
    def report(message: BuildMessage) -> None:
        file.write(message_line(message))
        file.flush()

    return report


def _carried_out(line: str, report: Callable[[BuildMessage], None]) -> BuildDone | BuildFailed:
    try:
        host = here()
        logs.configure(host.settings)
        order = order_of(line)
        if order.task in ("shelved", "unshelve"):
            from sleipnir_workers.knowledge import s3_garbage  # here: it needs the extra `s3` alone

            return s3_garbage.run(order, host.settings)
        from sleipnir_workers.knowledge.build import run  # here: it needs the extra `rag`

        return run(order, host, report)
    except (SleipnirError, CallFailed, ProcessLost) as error:
        return BuildFailed(str(error), kind_of(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sleipnir"):
            raise
        return BuildFailed(
            f"{error.name} is not installed, and builders need it: pip install '.[rag]' in a checkout", "usage"
        )
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        return BuildFailed(f"{type(error).__name__}: {error}", "bug")


def kind_of(error: BaseException) -> str:
    """Who must act, as BuildFailed says it."""
    match error:
        case KnowledgeError():
            return error.kind
        case LoadFailed():
            return "sources"
        case NodeFailed() | CallFailed():
            return "model"
        case StoreUnavailable() | ProcessLost():
            return "store"
    return "usage"


def _stop(signum: int, _: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)  # once: what is cleared up after it is not to be stopped too
    raise Stopped(signum)


def _die_of(signum: int) -> NoReturn:
    """End as if the signal had not been caught, so that who waits for us sees what it was."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
