"""Set up .venv, for the Makefile: `PYTHON ops/setup.py`. Uses the standard library alone.

A line for each step. On a terminal the line of the step under way counts packages and seconds, because the two long
steps take a minute each. The output of pip goes to .build/setup.log; if a step fails, its end is printed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LOG = ROOT / ".build" / "setup.log"
STEPS = 4
SHOWN_LINES = 15  # of the log, after a failure
TICK_S = 0.5


class Failed(Exception):
    """A command of a step ended with an error."""


class Progress:
    """The printed lines. `is_live`: the line of the step under way is drawn again and again."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._number, self._text, self._began, self._detail = 0, "", 0.0, ""
        self._over = threading.Event()
        self._ticking: threading.Thread | None = None

    def step(self, text: str) -> None:
        """The next step begins; the one before is done."""
        self.done()
        self._number, self._text, self._began, self._detail = self._number + 1, text, time.monotonic(), ""
        if not self.is_live:
            print(self._line(), flush=True)
            return
        self._over.clear()
        self._ticking = threading.Thread(target=self._tick, daemon=True)
        self._ticking.start()

    def detail(self, text: str) -> None:
        """What of the step is done; shown on a terminal."""
        self._detail = text

    def done(self) -> None:
        """The last step has ended, well or not."""
        if self._ticking is None:
            return
        self._over.set()
        self._ticking.join()
        self._ticking = None
        print(f"\r\x1b[K{self._line()}", flush=True)

    def _line(self) -> str:
        return f"  {self._number} of {STEPS}: {self._text}"

    def _tick(self) -> None:
        while True:
            detail = f"{self._detail}, " if self._detail else ""
            print(f"\r\x1b[K{self._line()} ({detail}{time.monotonic() - self._began:.0f} s)", end="", flush=True)
            if self._over.wait(TICK_S):
                return


def main() -> int:
    progress = Progress()
    print(f"setting up .venv with Python {platform.python_version()} (once; one to two minutes)", flush=True)
    LOG.parent.mkdir(exist_ok=True)
    try:
        LOG.write_text("")
        set_up(progress)
    except Failed:
        progress.done()
        end = LOG.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        print(
            "\n".join(["error: this step failed:", *end, f"All of it is in {LOG.relative_to(ROOT)}."]), file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        progress.done()
        print("interrupted; the next `make` starts again", file=sys.stderr)
        return 130
    return 0


def set_up(progress: Progress) -> None:
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    progress.step("making the virtual environment")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    packages = len(re.findall(r"^[\w.\[\]-]+==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    progress.step(f"downloading {packages} packages")
    count = 0

    def follow(line: str) -> None:
        nonlocal count
        if line.startswith("Collecting "):
            count += 1
            progress.detail(f"{count} of {packages}")
        elif line.startswith("Installing collected packages"):
            progress.step("installing them")

    run([*pip, "--require-hashes", "-r", "requirements.lock"], follow)
    progress.step("installing Sleipnir itself")
    run([*pip, "--no-deps", "--editable", "."])
    progress.done()


def run(command: Sequence[str], follow: Callable[[str], None] = lambda line: None) -> None:
    """Raises Failed. `follow` gets each line that the command prints, which goes to the log as well."""
    for line in _lines(command):
        follow(line)


def _lines(command: Sequence[str]) -> Iterator[str]:
    with LOG.open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                yield line
    if process.returncode:
        raise Failed


if __name__ == "__main__":
    sys.exit(main())
