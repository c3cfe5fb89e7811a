"""What the kernel refuses to everybody but root, also where tests run as root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[Path]:
    """Be a user without privileges meanwhile. Yields a new folder of that user; it goes with what is in it."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, 0)  # the saved id leads back
        yield folder
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        for current, names, _ in os.walk(folder):
            for name in (current, *(f"{current}/{name}" for name in names)):
                Path(name).chmod(0o700)
        shutil.rmtree(folder)
