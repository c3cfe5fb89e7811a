"""What one run does to the files of its agent, or beside them, no other run meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.agents.bundle import UNPACKED
from sleipnir.upkeep.work_folders import WorkFolders
from sleipnir_workers.folders.scratch import sweep
from tests.processes import RedisServer, Stack, write_agent

GRAPH = """
name: tampering
start: first
nodes:
  first: {type: script, script: first.sh, next: second, on_error: null}
  second: {type: script, script: second.py, next: third}
  third: {type: function, call: "third.py:third", next: done}
  done: {type: end, output: "{{seen}}|{{second}}|{{third}}"}
""".replace(", on_error: null", "")
FIRST_SH = """
seen=$(cat left-behind 2>/dev/null)
echo something > left-behind
cd "$LLM_AGENT_ROOT_DIR"
chmod -R u+w . 2>/dev/null
{ echo 'print("{\\"second\\": \\"changed\\"}")' > second.py; echo 'raise SystemExit' > json.py
  echo 'def third(state): return {"third": "changed"}' > third.py; } 2>/dev/null
printf '{"seen": "%s"}' "$seen"
"""
SECOND_PY = 'import json\nprint(json.dumps({"second": "original"}))\n'
THIRD_PY = 'def third(state): return {"third": "original"}\n'


@pytest.mark.parametrize("warm", [True, False])
def test_a_run_cannot_change_its_own_code_or_that_of_other_runs(
    redis_server: RedisServer, tmp_path: Path, warm: bool
) -> None:
    """Finding S5."""
    agent = write_agent(tmp_path / "tampering", GRAPH, first_sh=FIRST_SH, second_py=SECOND_PY, third_py=THIRD_PY)
    prefix = f"tamper-{warm}"
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, warm_python=warm) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        for _ in range(3):
            run = client.submit(agent, caller_dir=tmp_path / "not-on-this-machine")
            assert run.wait(60).status == "completed"
            assert run.output == "|original|original"
        assert (stack.home / UNPACKED).is_dir()
        assert not [path for path in (stack.home / UNPACKED).rglob("left-behind")]
        assert len(list((stack.home / "work").iterdir())) == 3
        assert sweep(WorkFolders(stack.home, 0), client.store) == 3
        assert list((stack.home / "work").iterdir()) == []


HERE = """
name: here
start: a
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: done}
  done: {type: end, output: "{{a}} {{b}}"}
"""
WHERE_SH = 'printf \'{"%s": "%s"}\' NAME "$PWD"\n'


def test_commands_work_where_the_caller_is_or_else_in_the_runs_own_folder(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Finding S5."""
    agent = write_agent(tmp_path / "here", HERE, a_sh=WHERE_SH.replace("NAME", "a"), b_sh=WHERE_SH.replace("NAME", "b"))
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    with Stack(redis_server, tmp_path / "home", key_prefix="where") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()

        def output(**places: Path) -> str:
            run = client.submit(agent, **places)
            assert run.wait(60).status == "completed"
            return str(run.output).replace(run.id, "RUN")

        project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
        assert output(caller_dir=project) == f"{project} {project}"
        assert output(caller_dir=project, cwd=elsewhere) == f"{elsewhere} {elsewhere}"
        scratch = stack.home / "work" / "RUN"
        assert output(caller_dir=tmp_path / "gone") == f"{scratch} {scratch}"
