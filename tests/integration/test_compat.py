"""`sleipnir validate` on a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.compat import run as compat
from tests.unit.test_compat import write_checkout


def test_each_agent_of_a_checkout_is_validated_as_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = write_checkout(tmp_path)
    monkeypatch.setenv("LOKI_CONFIG_DIR", "/nowhere")
    assert compat.main([f"HEAD={checkout}", "--validate-only"]) == 1
    out, told = capsys.readouterr()
    assert "### HEAD" in out and "Installed in `~/.config/coyote`: 1 of 2 agents are valid." in out
    assert told.splitlines() == ["HEAD: validating 1/2 one", "HEAD: validating 2/2 two"]
    one, two = (next(line for line in out.splitlines() if line.startswith(f"| {name} |")) for name in ("one", "two"))
    assert one.startswith("| one | config | yes | not run | 'memory' is ignored. Memory is part of newer")
    assert two.startswith("| two | graph | no | not run | Start node 'nowhere' not found")
    assert compat.main([str(checkout), "--validate-only", "--agent", "one"]) == 0
