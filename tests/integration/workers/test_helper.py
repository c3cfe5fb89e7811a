"""Child processes for work that may never end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir_workers.processes.helper import HelperFailed, HelperProcesses, TookTooLong

MODULE = """
import os, sys, time
print("an import that prints")

def answer(request, body):
    print("a request that prints")
    match request["do"]:
        case "echo": return {"said": request["said"], "pid": os.getpid()}, body * 2
        case "environment": return dict(os.environ), b""
        case "hang":
            while True: pass
        case "exit": os._exit(3)
        case "fill": return {"bytes": len(bytearray(8 * 2**30))}, b""
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HelperProcesses]:
    (tmp_path / "lab_helper.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-worker")
    monkeypatch.setenv("SLEIPNIR_REDIS_URL", "redis://:password@example.org")
    found = HelperProcesses("lab_helper")
    yield found
    found.close()


def test_a_child_answers_and_is_kept(helper: HelperProcesses) -> None:
    first, body = helper.ask({"do": "echo", "said": "ö"}, b"ab", timeout_s=30)
    assert (first["said"], body) == ("ö", b"abab")
    second, _ = helper.ask({"do": "echo", "said": 2}, timeout_s=30)
    assert second["pid"] == first["pid"]


def test_a_child_has_no_secret_of_its_worker(helper: HelperProcesses) -> None:
    environment, _ = helper.ask({"do": "environment"}, timeout_s=30)
    assert not {name for name in environment if "KEY" in name or "SLEIPNIR" in name}


def test_a_child_that_does_not_answer_is_killed_and_another_one_takes_the_next_request(helper: HelperProcesses) -> None:
    first, _ = helper.ask({"do": "echo", "said": 1}, timeout_s=30)
    with pytest.raises(TookTooLong, match=r"took longer than 0\.2 s and was ended"):
        helper.ask({"do": "hang"}, timeout_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(first["pid"], 0)
    second, _ = helper.ask({"do": "echo", "said": 1}, timeout_s=30)
    assert second["pid"] != first["pid"]


@pytest.mark.parametrize("do", ["exit", "fill"])
def test_a_child_that_dies_is_a_failure_of_its_request(helper: HelperProcesses, do: str) -> None:
    with pytest.raises(HelperFailed, match="ended its process"):
        helper.ask({"do": do}, timeout_s=30)
    assert helper.ask({"do": "echo", "said": 1}, timeout_s=30)[0]["said"] == 1


def test_threads_that_ask_at_once_do_not_wait_for_one_another(helper: HelperProcesses) -> None:
    pids = set()
    meeting = threading.Barrier(3)

    def ask() -> None:
        meeting.wait()
        pids.add(helper.ask({"do": "echo", "said": 1}, b"x" * 5_000_000, timeout_s=60)[0]["pid"])

    def hang() -> None:
        with pytest.raises(TookTooLong):
            helper.ask({"do": "hang"}, timeout_s=5)

    hanging = threading.Thread(target=hang)
    hanging.start()
    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert pids
    hanging.join()


def test_children_end_with_their_helper(helper: HelperProcesses) -> None:
    pid = helper.ask({"do": "echo", "said": 1}, timeout_s=30)[0]["pid"]
    helper.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_fork_leaves_the_children_to_its_parent(helper: HelperProcesses) -> None:
    first, _ = helper.ask({"do": "echo", "said": 1}, timeout_s=30)
    child = os.fork()
    if child == 0:
        os._exit(0 if helper.ask({"do": "echo", "said": 1}, timeout_s=30)[0]["pid"] != first["pid"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert helper.ask({"do": "echo", "said": 1}, timeout_s=30)[0]["pid"] == first["pid"]
