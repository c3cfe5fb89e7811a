"""A script of an unpacked bundle finds what agents share."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.unit.test_bundle_layout import OWN, Config


def test_a_script_finds_what_is_shared_by_its_relative_path(tmp_path: Path) -> None:
    """Finding U5 of the second review; row CY28 of Coyote's checklist."""
    config = Config(tmp_path)
    assert config.tree() == ["agents/.shared/utils.sh", *OWN]
    script = config.unpacked().folder / "scripts" / "run.sh"
    done = subprocess.run(["bash", script], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout == '{"said": "hello"}'
