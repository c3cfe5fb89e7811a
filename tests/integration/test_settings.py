"""What reading the settings loads."""

from __future__ import annotations

import subprocess
import sys


def test_settings_are_read_without_pydantic() -> None:
    """Finding U13 of the second review: its import took as long as all else that `sleipnir ps` does."""
    code = "import sys, sleipnir.settings as s; s.Settings.from_env(); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
