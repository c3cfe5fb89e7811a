"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sleipnir.errors import UsageError


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[TextIO]:
    """A temporary file beside `file`, which takes its place if the block ends well. Raises UsageError."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8", newline="") as content:
            yield content
        beside.replace(file)
    except BrokenPipeError:
        raise  # of what else the block writes
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
