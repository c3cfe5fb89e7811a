"""Documents that cannot be had.

UnreadableContent  a loader's word on a content; it does not know whose
Unloadable         one source and what is wrong with it: raised where it is met, collected by loading.py
LoadFailed         what a load ends with, all of it named
"""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.errors import SleipnirError


class UnreadableContent(Exception):
    """A content is not what its name says, or nothing can be read from it. The message completes `<path>: ...`."""


class Unloadable(SleipnirError):
    """A source that could not be loaded. `path` is a file, a directory or a URL."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class LoadFailed(SleipnirError):
    """Documents cannot be used as they are (spec 8.2). `failures` is empty where there was simply nothing."""

    def __init__(self, message: str, failures: Sequence[Unloadable] = ()) -> None:
        super().__init__("\n  ".join([message, *map(str, failures)]))
        self.failures = tuple(failures)
