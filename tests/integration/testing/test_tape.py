"""Several processes record into one folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sleipnir.testing.tape import read, recordings


def test_several_processes_record_into_one_folder(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom sleipnir.testing.tape import Tape\n"
        "tape = Tape.record(pathlib.Path(sys.argv[1]))\nsys.stdin.read()\n"
        "for number in range(20): tape.keep({'model': 'm', 'messages': []}, {'id': f'{sys.argv[2]}-{number}'})\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdin=subprocess.PIPE) for name in "ab"
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # both begin now
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    written = [read(file).answer["id"] for file in recordings(tmp_path)]
    assert sorted(written) == sorted(f"{name}-{number}" for name in "ab" for number in range(20))
