"""Run tool files under a real bash, as a worker would, and see what they got."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sleipnir.tools.bash import runnable

SHOW = r"""
show() {
    local name values reference
    for name in "${!argc_@}"; do
        case $name in argc__args | argc__fn) continue ;; esac
        reference="$name[@]"
        values=("${!reference}")
        printf '%s\0%s\0' "$name" "${#values[@]}"
        for reference in ${values[@]+"${values[@]}"}; do
            printf '%s\0' "$reference"
        done
    done
    printf '%s\0' words $# "$@"
}
"""
"""Prints each variable as its name, how many values it has, and these; each with a NUL behind it."""


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def shown(self) -> dict[str, list[str]]:
        parts = iter(self.stdout.split("\0")[:-1])
        return {name: [next(parts) for _ in range(int(next(parts)))] for name in parts}


Run = Callable[..., Ended]


def execute(file: Path, *words: str, env: dict[str, str] | None = None) -> Ended:
    program = runnable(file.read_text(), file, words)
    command = ["bash", str(file)] if program is None else ["bash", "-c", program, str(file)]
    ended = subprocess.run(
        [*command, *words],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **(env or {})},
        cwd=file.parent,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def in_folder(folder: Path) -> Run:
    """Runs a file of a text, with words and variables, in `folder`."""

    def run(text: str, *words: str, **env: str) -> Ended:
        file = folder / "prog.sh"
        file.write_text(text)
        return execute(file, *words, env=env)

    return run


def main(*tags: str) -> str:
    """A file whose one function shows what it got, under the strictest options of bash."""
    return "\n".join(["set -euo pipefail", *(f"# {tag}" for tag in tags), SHOW, 'main() { show "$@"; }', ""])
