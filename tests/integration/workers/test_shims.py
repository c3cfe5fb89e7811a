"""What is behind a python3 that is a shim of pyenv or asdf. Finding U21 of the second review."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sleipnir_workers.processes import shims
from tests.integration.workers.shim_files import ASDF, write_shim

REST = os.environ.get("PATH", os.defpath)


def env_of(shim: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{shim.parent}{os.pathsep}{REST}", "HOME": str(shim.parent), **more}


def test_a_shim_is_asked_once_for_all_directories_that_choose_nothing(tmp_path: Path) -> None:
    shim, asked = write_shim(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert shims.python3(env_of(shim), tmp_path / name) == sys.executable
    assert asked.read_text() == "asked\n"


def test_it_is_asked_again_where_a_directory_chooses_and_when_that_changes(tmp_path: Path) -> None:
    shim, asked = write_shim(tmp_path)
    project = tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    shims.python3(env_of(shim), project)
    choice = tmp_path / "project" / ".python-version"
    for number, version in enumerate(("3.11", "3.12"), 2):
        choice.write_text(version)
        os.utime(choice, ns=(number, number))
        shims.python3(env_of(shim), project)
        assert asked.read_text() == "asked\n" * number
    shims.python3(env_of(shim, PYENV_VERSION="3.13"), project)
    assert asked.read_text() == "asked\n" * 4


def test_a_shim_that_chooses_nothing_is_left_as_it_is(tmp_path: Path) -> None:
    shim, _ = write_shim(tmp_path, chooses="/nowhere/python3")
    assert shims.python3(env_of(shim), tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#!/usr/bin/env bash\nexec "/home/me/.pyenv/libexec/pyenv" exec "$program" "$@"\n', True),
        (ASDF, True),
        ('#!/bin/sh\nexec asdf exec "python3" "$@"\n', True),
        ('#!/bin/sh\nexec /usr/bin/python3 "$@"\n', False),
        ('#!/bin/sh\nexport X=1\nexec my-pyenv exec "$@"\n', False),
        ('exec "/home/me/.pyenv/libexec/pyenv" exec "$program" "$@"\n', False),
    ],
)
def test_only_shims_are_taken_for_shims(tmp_path: Path, text: str, expected: bool) -> None:
    file = tmp_path / "python3"
    file.write_text(text)
    assert shims.is_shim(str(file)) is expected
