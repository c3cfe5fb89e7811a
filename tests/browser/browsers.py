"""The browser of the tests."""

from __future__ import annotations

import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str:
    """The program of an installed browser."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, f"none of {', '.join(BROWSERS)} is on PATH; on Debian: apt install chromium"
    return found
