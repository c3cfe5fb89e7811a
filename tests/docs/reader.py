"""Somebody who follows a page: has what it presupposes in a folder, and types its commands there, in its order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sleipnir.client.client import Client
from sleipnir.local.home import Home
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer
from tests import starter
from tests.docs.before import BEFORE, Before
from tests.docs.improviser import Improviser
from tests.docs.pages import Block
from tests.processes import wait_until

NAMES_ITS_FILE = re.compile(r"# (?P<file>[\w./-]+/[\w.-]+)\n")  # the first line of a block
MODEL = "openai:gpt-5-mini"  # what the pages say
KEPT = '{ code=$?; env -0 > "$KEEP_IN/env"; pwd > "$KEEP_IN/pwd"; exit $code; }'


@dataclass(frozen=True)
class Typed:
    """A command that has ended. `text` is what it printed on both streams, as a terminal shows it."""

    code: int
    text: str


class Machine:
    """A user's machine with a private stack, whose model answers by a script. One for all pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "stack")
        self.improviser = Improviser()
        self.model = ModelServer(self.improviser)

    def __enter__(self) -> Machine:
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        for name, words in {
            "sleipnir": "-m sleipnir ",
            "pytest": "-m pytest -p no:cacheprovider ",
            "python": "",
            "python3": "",
        }.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            (programs / name).chmod(0o755)
        self.model.__enter__()
        log = (self.folder / "up.log").open("wb")
        with log, Path(os.devnull).open("rb") as nothing:
            self._up = starter.start([sys.executable, "-m", "sleipnir", "up"], self.environment(), nothing, log, log)
        wait_until(self._has_a_scheduler, "the private stack advances runs", 120)
        return self

    def __exit__(self, *_: object) -> None:
        self._up.send_signal(signal.SIGTERM)
        self._up.wait(60)
        self.model.__exit__(None, None, None)

    def _has_a_scheduler(self) -> bool:
        """Whether a reader's first command finds what `sleipnir up` starts, of which the scheduler comes last."""
        if self.home.running() is None:
            return False
        with Client(Settings(home=self.home.root, redis_url=self.home.redis_url)) as client:
            return bool(client.health().schedulers)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLEIPNIR_", "PYTEST"))}
        return (
            kept
            | self.model.env()
            | {
                "HOME": str(self.folder),
                "XDG_CONFIG_HOME": str(self.folder / ".config"),
                "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath)]),
                "SLEIPNIR_HOME": str(self.home.root),
                "SLEIPNIR_MODEL": MODEL,
                "NO_COLOR": "1",
                "COLUMNS": "160",
            }
        )


class Reader:
    """One page's session: the directory and the environment last from command to command."""

    def __init__(self, machine: Machine, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = self._here = folder
        self._kept = folder.parent / f"{folder.name}.kept"
        for made in (folder, self._kept):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
        self._environment = {**machine.environment(), **environment, "KEEP_IN": str(self._kept)}

    def save(self, block: Block) -> None:
        """Write the block to the file that its first line names, if it names one."""
        if named := NAMES_ITS_FILE.match(block.text):
            file = self.folder / named["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)

    def type(self, command: str, *, timeout_s: float = 120) -> Typed:
        """Run it as bash would, without a terminal, and wait for its end."""
        script = f"set -a -o pipefail\ntrap '{KEPT}' EXIT\n{command}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._here, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
        pairs = (self._kept / "env").read_bytes().decode().rstrip("\0").split("\0")
        self._environment = dict(pair.split("=", 1) for pair in pairs)
        self._here = Path((self._kept / "pwd").read_text().strip())
        return Typed(done.returncode, done.stdout)


def open_page(page: str, machine: Machine) -> Reader:
    """A reader who has what the page presupposes."""
    before = BEFORE.get(page, Before())
    folder = machine.folder / re.sub(r"\W", "-", page)
    beside = folder.with_name(f"{folder.name}.beside")
    reader = Reader(machine, folder, {name: text.format(beside=beside) for name, text in before.environment.items()})
    before.prepare(folder)
    machine.improviser.follow(before.rules)
    return reader
