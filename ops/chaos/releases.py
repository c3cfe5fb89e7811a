"""Another revision of this repository, whose processes run beside those of this one in the same virtual environment."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (".", "scheduler", "workers")


class NoRelease(Exception):
    """The repository has no such revision. The text is the reason."""


@dataclass(frozen=True)
class Release:
    """A revision, unpacked in `folder`."""

    revision: str
    subject: str
    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Under which Python imports this revision's packages. The working directory, where `-m` would look first, is
        left out."""
        path = os.pathsep.join(str(self.folder / package) for package in PACKAGES)
        return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def unpack(revision: str, folder: Path) -> Release:
    """Raises NoRelease."""
    try:
        subject = _git("log", "-1", "--format=%h %s", revision).decode().strip()
        packed = _git("archive", "--format=tar", revision)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", b"") or str(error).encode()
        raise NoRelease(f"{revision}: {message.decode().strip()}") from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(folder)
    return Release(*subject.split(" ", 1), folder)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout
