"""Commands that a script prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sleipnir.messages import Send, VisitResult
from sleipnir_workers.nodes.script import run_script
from tests.unit.workers.test_commands import way
from tests.unit.workers.visits import host, script, visit


def printing(folder: Path, output: dict[str, Any]) -> VisitResult:
    """The result of a script that prints this."""
    node = script(folder, "plan.sh", f"echo {json.dumps(json.dumps(output))}")
    return run_script(node, visit(node, folder), host())


def test_a_script_goes_to_one_node_to_several_or_commands_visits(tmp_path: Path) -> None:
    assert way(printing(tmp_path, {"_next": "a"})) == ("a", None)
    assert way(printing(tmp_path, {"_next": ["a", "b"]})) == (("a", "b"), None)
    commanded = printing(tmp_path, {"n": 1, "_next": [{"to": "w", "update": {"i": 1}}, {"to": "w"}]})
    assert way(commanded) == (None, (Send("w", {"i": 1}), Send("w")))
    assert commanded.delta == {"n": 1}


def test_a_scripts_bad_list_names_the_script(tmp_path: Path) -> None:
    result = printing(tmp_path, {"_next": [1]})
    assert str(result.error).startswith("Script 'plan.sh': _next[0] must be the name of a node")
