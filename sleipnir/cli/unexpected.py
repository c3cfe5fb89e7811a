"""Failures that no command expects: closed or full streams, Ctrl-C at any time, and bugs.

Rules. The message is one line; a traceback is written to a file that the line names. At its top this module imports
only modules that Python has loaded itself, because every command line calls `open_streams`.
"""

from __future__ import annotations

import errno
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

FAILED, USAGE, INTERRUPTED = 1, 2, 130  # as in exit_codes
KEPT = 20
"""Files with tracebacks; older ones are removed."""
LINE_CHARS = 500
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO, errno.EFBIG}


class _Messages(io.FileIO):
    """Standard error, whose messages must not end a run: output that a full disk or a closed stream refuses is dropped.
    A closed pipe (EPIPE) still ends the command, as for standard output."""

    def write(self, data: Any, /) -> int:
        rest = memoryview(data)
        while rest:
            try:
                written = super().write(rest)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    raise
                break
            rest = rest[written or len(rest) :]
        return memoryview(data).nbytes


def open_streams() -> None:
    """Give this process its three standard streams, even if it was started without one (`>&-`).

    Otherwise the next file that it opens, for example a socket to Redis, would be that stream. Reading from a closed
    standard input returns its end. Writing to a closed standard output fails, because a result would be lost.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    if sys.stderr is sys.__stderr__:  # not where a test keeps what is written
        sys.stderr = io.TextIOWrapper(
            _Messages(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable


def _unraisable(unraisable: Any) -> None:
    """Keeps a Ctrl-C in a callback of the interpreter, which would be lost; imports have many such callbacks."""
    if unraisable.exc_type is KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(unraisable)


def end(error: BaseException, arguments: Sequence[str]) -> int:
    """Print in one line what ended the command, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader, `head` for one, has seen enough
        _drop_output()
        return FAILED
    if any(isinstance(each, KeyboardInterrupt) for each in _chain(error)):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
        _drop_output()
        _say(f"error: the output cannot be written: {error.strerror}")
        return FAILED
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        piece = error.object[max(0, error.start - 20) : error.end + 20]
        _say(f"error: {piece!r} is not text in UTF-8")
        return USAGE
    _say(f"error: {_in_one_line(error)}")
    _say(f"  This error was not expected. {_where_the_traceback_is(error, arguments)}")
    return FAILED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes: imports turn a Ctrl-C into other errors."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _drop_output() -> None:
    """Discards the buffer of standard output, or the flush at exit would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody reads
        return


def _in_one_line(error: BaseException) -> str:
    from sleipnir.runs.plain_text import one_line
    from sleipnir.store.address import masked

    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename!r}: {error.strerror}", LINE_CHARS)
    return one_line(masked(f"{type(error).__name__}: {error}"), LINE_CHARS)


def _where_the_traceback_is(error: BaseException, arguments: Sequence[str]) -> str:
    import traceback

    from sleipnir.store.address import masked

    text = masked("".join(traceback.format_exception(error)))
    if any(argument in ("-v", "-vv", "--verbose") for argument in arguments):
        _say(text)
        return "The traceback is above."
    file = _write(text)
    return "Its traceback could not be written; -v shows it." if file is None else f"The traceback is in {file}"


def _write(text: str) -> Path | None:
    """Into the home, or else into the directory for temporary files; readable only by the user."""
    import tempfile
    import time
    from pathlib import Path

    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (_home() / "crashes", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = folder / name
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", errors="replace") as opened:  # noqa: PTH123
                opened.write(text)
            for old in sorted(folder.glob("crash-*.txt"))[:-KEPT] if folder.name == "crashes" else ():
                old.unlink(missing_ok=True)
        except OSError:
            continue
        return file
    return None


def _home() -> Path:
    """The home, without reading settings, which may have caused the error."""
    from pathlib import Path

    import platformdirs

    return Path(os.environ.get("SLEIPNIR_HOME") or platformdirs.user_data_dir("sleipnir", appauthor=False))
