"""Packing a folder as a user who may not read all of it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def test_an_unreadable_folder_is_refused() -> None:
    """Finding S12."""
    with tempfile.TemporaryDirectory() as place:  # not tmp_path, whose parents other users cannot enter
        folder = Path(place) / "agent"
        (folder / "docs").mkdir(parents=True)
        for path, mode in ((place, 0o755), (folder, 0o755), (folder / "docs", 0)):
            Path(path).chmod(mode)
        code = (
            "import os, sys\nfrom pathlib import Path\nfrom sleipnir.agents.bundle import pack\n"
            "from sleipnir.errors import BundleError\n"
            "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "try:\n    pack(Path(sys.argv[1]), limit_bytes=1 << 20)\nexcept BundleError as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
        (folder / "docs").chmod(0o755)
    assert "cannot read" in done.stdout, done.stderr
    assert "docs: Permission denied" in done.stdout
