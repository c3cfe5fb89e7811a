"""Documents that cannot be loaded.

UnreadableContent  raised by a loader about a content; it does not know its source
Unloadable         one source and its problem: raised where it occurs, collected by loading.py
LoadFailed         the end of a load with problems; it names all of them
"""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.errors import SleipnirError


class UnreadableContent(Exception):
    """A content is not of the kind that its name claims, or cannot be read. The message completes `<path>: ...`."""


class Unloadable(SleipnirError):
    """A source that could not be loaded. `path` is a file, a directory or a URL."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class LoadFailed(SleipnirError):
    """The documents cannot be used (spec 8.2). `failures` is empty if there were no documents."""

    def __init__(self, message: str, failures: Sequence[Unloadable] = ()) -> None:
        super().__init__("\n  ".join([message, *map(str, failures)]))
        self.failures = tuple(failures)
