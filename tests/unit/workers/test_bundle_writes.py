"""A script or tool that writes to its agent's folder is told so, and where to write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sleipnir.agents.bundle import BundleCache, Unpacked, pack
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode
from sleipnir_workers.folders import bundle_writes
from sleipnir_workers.folders.bundle_writes import advice, refuse_changes
from sleipnir_workers.nodes.function import run_function
from tests.unit.workers.visits import visit

GRAPH = "name: one\nstart: a\nnodes:\n  a: {type: end, output: done}\n"
WORKING = Path("/srv/project")


@pytest.fixture
def unpacked(tmp_path: Path) -> Unpacked:
    folder = tmp_path / "agents" / "scribe"
    (folder / "scripts").mkdir(parents=True)
    (folder / "graph.yaml").write_text(GRAPH)
    (folder / "scripts" / "run.sh").write_text("echo '{}'\n")
    bundle = pack(folder, limit_bytes=1 << 20)
    return BundleCache(tmp_path / "unpacked", lambda _: bundle.packed).get(bundle.digest, "scribe")


SAID = [
    "{folder}/scripts/run.sh: line 3: notes.txt: Permission denied",
    "{folder}/scripts/run.sh: line 3: {folder}/notes.txt: Permission denied",
    "Traceback ...\nPermissionError: [Errno 13] Permission denied: '{folder}/notes.txt'",
    "Traceback ...\nPermissionError: [Errno 13] Permission denied: '{folder}/../.shared/notes.txt'",
    "Traceback ...\nOSError: [Errno 30] Read-only file system: 'out/notes.txt'",
    "mkdir: cannot create directory ‘out’: Permission denied",
    "touch: cannot touch '{folder}/x y.txt': Permission denied",
    "Error: EACCES: permission denied, open '{folder}/notes.txt'",
]


@pytest.mark.parametrize("said", SAID)
def test_an_error_of_a_write_to_the_agents_folder_reports_where_to_write(said: str, unpacked: Unpacked) -> None:
    """Finding U6 of the second review."""
    folder = unpacked.folder
    told = advice(said.replace("{folder}", str(folder)), folder, WORKING)
    assert told == (
        f"\nThe agent's folder, '{folder}', is read-only: write below the working directory, '/srv/project', or print "
        "the data to keep"
    )


@pytest.mark.parametrize(
    "said",
    [
        "",
        "boom",
        "{folder}/scripts/run.sh: line 3: /etc/passwd: Permission denied",
        "PermissionError: [Errno 13] Permission denied: '/srv/data/x'",
        "curl: (9) Server denied you to change to the given directory",
        "git@example.org: Permission denied (publickey).",
        "x" * 60_000,
        "x" * 60_000 + " Permission denied",
        "Permission denied",
    ],
    ids=range(9),
)
def test_other_errors_are_left_as_they_are(said: str, unpacked: Unpacked) -> None:
    assert advice(said.replace("{folder}", str(unpacked.folder)), unpacked.folder, WORKING) == ""


@pytest.mark.parametrize("said", [SAID[0], "touch: cannot touch '{cwd}/notes.txt': Permission denied"])
def test_a_working_directory_of_another_user_is_named_and_the_agents_folder_is_not(
    said: str, unpacked: Unpacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding U6 of the second review."""
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    told = advice(said.format(folder=unpacked.folder, cwd=tmp_path), unpacked.folder, tmp_path)
    assert told.startswith(f"\nThe worker's user may not write to the working directory, '{tmp_path}': ")
    own = advice(SAID[1].format(folder=unpacked.folder), unpacked.folder, tmp_path)
    assert own.startswith("\nThe agent's folder, ")


@pytest.mark.parametrize("said", ["'" * 60_000, ": Permission denied" * 3_000, "Permission denied\n" * 3_000])
def test_what_a_program_prints_does_not_hold_up_the_worker(said: str, unpacked: Unpacked) -> None:
    started = time.process_time()  # not that of the clock, which counts what else the machine does
    advice(said + ": Permission denied", unpacked.folder, WORKING)
    assert time.process_time() - started < 5.0


def test_a_function_gets_the_same_message(unpacked: Unpacked, tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "scribe"
    (folder / "f.py").write_text("def f(state): raise PermissionError(13, 'Permission denied', __file__ + '.log')\n")
    result = run_function(FunctionNode(id="f", call="f.py:f"), visit(FunctionNode(id="f", call="f.py:f"), folder))
    assert "is read-only: write to a temporary directory, or print the data to keep" in str(result.error)


def _write(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "notes.txt").write_text("note")


def _change(folder: Path) -> None:
    (folder / "scripts" / "run.sh").chmod(0o755)
    (folder / "scripts" / "run.sh").write_text("exit")


def _remove(folder: Path) -> None:
    (folder / "scripts").chmod(0o755)
    (folder / "scripts" / "run.sh").unlink()


def _make_a_folder(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "out").mkdir()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_write, "notes.txt"),
        (_change, "scripts/run.sh"),
        (_remove, "scripts/run.sh"),
        (_make_a_folder, "out"),
    ],
)
def test_where_the_worker_may_write_the_visit_fails_by_what_it_wrote(
    change: Callable[[Path], None], named: str, unpacked: Unpacked
) -> None:
    """Finding U6 of the second review."""
    refuse_changes(unpacked, WORKING)
    change(unpacked.folder)
    with pytest.raises(NodeFailed) as caught:
        refuse_changes(unpacked, WORKING)
    assert caught.value.kind == bundle_writes.KIND
    assert f"written or removed while the visit ran: 'agents/scribe/{named}'. The agent's" in str(caught.value)


def test_caches_of_python_are_no_writes_of_the_agent(unpacked: Unpacked) -> None:
    folder = unpacked.folder
    folder.chmod(0o755)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("cache")
    assert not unpacked.is_intact()
    refuse_changes(unpacked, WORKING)
