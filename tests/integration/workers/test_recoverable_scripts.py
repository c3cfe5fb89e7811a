"""Scripts that report a failure after which the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.testing import run

GRAPH = """
name: reports
version: sleipnir/1
start: first
ERRORS
nodes:
  first: {type: script, script: first.sh, next: last}
  last: {type: end, output: "{{n}}"}
"""


@pytest.mark.parametrize("about", ['"half done"', '{"message": "half done", "code": 3}'])
def test_a_script_prints_its_failure_beside_what_it_writes_instead(tmp_path: Path, about: str) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("ERRORS", "errors: {collect: true}"))
    (tmp_path / "first.sh").write_text(f"""echo '{{"n": 4, "_recoverable": {about}}}'\n""")
    result = run(tmp_path)
    assert (result.status, result.output) == ("completed", "4")
    [record] = result.state["execution_errors"]
    assert (record["type"], record["code"]) == ("recoverable", "3" if "code" in about else None)
    assert record["message"] == "Script 'first.sh' reported: half done"


def test_without_the_block_it_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("ERRORS\n", ""))
    (tmp_path / "first.sh").write_text("""echo '{"n": 4, "_recoverable": "half done"}'\n""")
    result = run(tmp_path)
    assert result.status == "failed"
    assert "Script 'first.sh' reported: half done" in str(result.error)


def test_a_report_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("ERRORS", "errors: {}"))
    (tmp_path / "first.sh").write_text("""echo '{"_recoverable": 4}'\n""")
    result = run(tmp_path)
    assert "printed a _recoverable that is no text, and no object of message and code" in str(result.error)
