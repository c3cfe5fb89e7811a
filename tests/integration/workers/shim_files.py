"""A python3 as pyenv writes it, and a pyenv that notes when it is asked."""

from __future__ import annotations

import sys
from pathlib import Path

PYENV = """#!/usr/bin/env bash
set -e
program="${{0##*/}}"
export PYENV_ROOT="{root}"
exec "{root}/libexec/pyenv" exec "$program" "$@"
"""
ASDF = '#!/usr/bin/env bash\n# asdf-plugin: python 3.13.1\nexec /opt/asdf/bin/asdf exec "python3" "$@"\n'


def write_shim(folder: Path, chooses: str = sys.executable) -> tuple[Path, Path]:
    """The shim, and the file that gets a line each time it is run."""
    root, asked = folder / ".pyenv", folder / "asked"
    for name, text in (
        ("shims/python3", PYENV.format(root=root)),
        ("libexec/pyenv", f'#!/bin/sh\necho asked >> "{asked}"\nshift 2\nexec "{chooses}" "$@"\n'),
    ):
        file = root / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    return root / "shims" / "python3", asked
