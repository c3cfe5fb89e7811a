"""Whose failure it is: the node's, or the machine's."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sleipnir.errors import MachineFailed
from sleipnir.graph.model import FunctionNode
from sleipnir_workers.machine import health
from sleipnir_workers.nodes.script import run_script
from sleipnir_workers.visits.guard import execute
from tests.disks import SIZE_BYTES, full_disk
from tests.unit.workers.visits import host, script, visit


def test_a_sound_machine_passes_its_check(tmp_path: Path) -> None:
    health.check(tmp_path)
    health.check(tmp_path / "not" / "there" / "yet")
    assert list(tmp_path.iterdir()) == [], "the check leaves nothing behind"


def test_a_full_disk_fails_the_check_until_there_is_room(tmp_path: Path) -> None:
    """Finding C18."""
    with full_disk(tmp_path / "home") as disk:
        if os.statvfs(disk.folder).f_blocks * 4096 <= SIZE_BYTES:  # else nothing could be mounted here
            with pytest.raises(MachineFailed, match=r"disk: cannot write below .*No space left on device"):
                health.check(disk.folder)
        disk.make_room()
        health.check(disk.folder)


def test_no_file_descriptors_fail_the_check(tmp_path: Path) -> None:
    """Finding C18."""
    done = _in_a_process(
        tmp_path,
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 6,) * 2)",
        "health.check(home)",
    )
    assert done == "MachineFailed descriptors"


def test_no_memory_fails_the_check_and_a_greedy_function_does_not(tmp_path: Path) -> None:
    """Finding C18."""
    limited = "resource.setrlimit(resource.RLIMIT_AS, (int(open('/proc/self/statm').read().split()[0]) * 4096,) * 2)"
    assert _in_a_process(tmp_path, limited, "health.check(home)").startswith("MachineFailed memory")
    (tmp_path / "steps.py").write_text("def greedy(state): return {'x': len(bytearray(1 << 60))}\n")
    result = execute(visit(FunctionNode(id="f", call="steps.py:greedy"), tmp_path))
    assert result is not None
    assert "MemoryError" in str(result.error), "the machine is sound: it is the function's failure"


def test_an_error_of_a_function_is_the_nodes_while_the_machine_is_sound(tmp_path: Path) -> None:
    """Finding C18."""
    (tmp_path / "steps.py").write_text("import os\ndef f(state): raise OSError(28, 'No space left on device')\n")
    result = execute(visit(FunctionNode(id="f", call="steps.py:f"), tmp_path))
    assert result is not None
    assert result.error_kind == "exception"


def test_a_command_that_cannot_be_started_for_want_of_descriptors_is_the_machines_failure(tmp_path: Path) -> None:
    """Finding C18."""
    node = script(tmp_path, "a.sh", "echo '{}'")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    with contextlib.ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.dup(1))
        with pytest.raises(MachineFailed) as caught:
            run_script(node, visit(node, tmp_path), host(warm_python=False))
    assert caught.value.part == "descriptors"
    assert not caught.value.begun


def test_bash_belongs_to_the_machine_and_node_to_the_agent(tmp_path: Path) -> None:
    """Finding C18."""
    nothing = host({"PATH": str(tmp_path)})
    node = script(tmp_path, "a.sh", "echo '{}'")
    with pytest.raises(MachineFailed, match="interpreter: bash is not on PATH"):
        run_script(node, visit(node, tmp_path), nothing)
    typescript = script(tmp_path, "a.ts", "")
    assert run_script(typescript, visit(typescript, tmp_path), nothing).error_kind == "spawn"


def test_arguments_that_are_too_long_are_the_nodes_failure(tmp_path: Path) -> None:
    node = script(tmp_path, "a.sh", "echo '{}'")
    result = run_script(node, visit(node, tmp_path, variables={"a": "x" * (1 << 20)}), host(warm_python=False))
    assert result.error_kind == "spawn"
    assert os.strerror(errno.E2BIG) in str(result.error)


def _in_a_process(home: Path, *lines: str) -> str:
    """Run `lines` with a limit of its own; how it ended."""
    code = "\n".join(
        ["import os, resource", "from pathlib import Path", "from sleipnir_workers.machine import health",
         "from sleipnir.errors import MachineFailed", f"home = Path({str(home)!r})", "try:",
         *(f"    {line}" for line in lines), "except MachineFailed as failure:",
         "    print('MachineFailed', failure.part)"]
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
