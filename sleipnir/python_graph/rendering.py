"""Pictures that Graphviz makes of DOT text: its program `dot` must be installed."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final, Literal, TypeAlias

from sleipnir.errors import UsageError

Rendered: TypeAlias = Literal["png", "pdf"]

RENDERED: Final[tuple[Rendered, ...]] = ("png", "pdf")

MOST_S: Final = 120
"""The longest time that Graphviz may take."""


def rendered(text: str, form: Rendered) -> bytes:
    """DOT text as a picture. Raises UsageError if Graphviz is not installed, fails or takes too long."""
    program = shutil.which("dot")
    if program is None:
        raise UsageError(
            f"the program 'dot' of Graphviz was not found, which makes {form.upper()} pictures. Install Graphviz, or "
            "draw an SVG, which needs no other program"
        )
    try:
        done = subprocess.run(
            [program, f"-T{form}"], input=text.encode(), capture_output=True, timeout=MOST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"Graphviz did not draw the graph within {MOST_S} s") from None
    except OSError as error:
        raise UsageError(f"Graphviz cannot be started: {error.strerror}") from error
    if done.returncode != 0 or not done.stdout:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise UsageError(f"Graphviz failed: {said[:500]}")
    return done.stdout
