"""The builder: `python -m sleipnir_workers.knowledge` reads one Order and reports its progress (knowledge/order.py).

It stops on SIGTERM and SIGINT, and when the reader of its reports is gone, and releases the lease. If it is killed, its
lease lapses, and the next builder removes its staging folder.
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
from sleipnir_workers.execution.execution import ProcessLost
from sleipnir_workers.knowledge.failures import LoadFailed
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.machine.host import this_host


class Interrupted(BaseException):
    """The process got a signal to stop."""

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
    except Interrupted as stopped:
        _die_of(stopped.signum)


def _message_stream() -> TextIO:
    """Standard output, for messages only. All other output, of libraries and commands, goes to standard error."""
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
        host = this_host()
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
    """The `kind` of BuildFailed: who must act."""
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
    signal.signal(signum, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    raise Interrupted(signum)


def _die_of(signum: int) -> NoReturn:
    """End as if the signal had not been caught, so that the parent process sees which one it was."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
