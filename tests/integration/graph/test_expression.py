"""What importing the graph language loads."""

from __future__ import annotations

import subprocess
import sys


def test_the_engine_is_imported_by_the_first_expression_only() -> None:
    program = "import sys, sleipnir.cli, sleipnir.graph.expression, sleipnir.graph.load; print('cel' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
