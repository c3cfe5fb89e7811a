"""The commands for users, tokens and the audit, as processes with a real Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import RedisServer

PASSWORD = "correct horse battery"

Sleipnir = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sleipnir(redis_server: RedisServer, tmp_path: Path) -> Sleipnir:
    """Runs a command line to its end, with the text on stdin."""
    settings = {
        "HOME": str(tmp_path),
        "SLEIPNIR_REDIS_URL": redis_server.url,
        "SLEIPNIR_KEY_PREFIX": f"acc-{tmp_path.name}",
        "NO_COLOR": "1",
    }

    def run(*words: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sleipnir", *words],
            input=stdin, capture_output=True, text=True, timeout=120, cwd=tmp_path,
            env=os.environ | settings,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_users_tokens_and_the_audit_from_the_command_line(sleipnir: Sleipnir) -> None:
    add = ("users", "add", "ann", "--role", "operator", "--namespace", "team", "--password-stdin")
    assert "user ann is added" in sleipnir(*add, "--reason", "new", stdin=f"{PASSWORD}\n").stderr
    assert "there is a user 'ann' already" in sleipnir(*add, stdin=PASSWORD, code=2).stderr
    assert "12 to 1,000 characters" in sleipnir("users", "passwd", "ann", "--password-stdin", stdin="x", code=2).stderr
    assert "--password-stdin" in sleipnir("users", "passwd", "ann", code=2).stderr
    sleipnir("users", "passwd", "ann", "--password-stdin", stdin=PASSWORD + "!")
    sleipnir("users", "role", "ann", "viewer")
    sleipnir("users", "disable", "ann")
    [user] = json.loads(sleipnir("users", "ls", "--json").stdout)
    assert user.items() >= {"name": "ann", "roles": {"team": "operator", "*": "viewer"}, "disabled": True}.items()
    sleipnir("users", "enable", "ann")

    token = json.loads(sleipnir("tokens", "create", "ann", "--role", "viewer", "--label", "ci", "--json").stdout)
    shown = sleipnir("tokens", "ls").stdout
    assert token["id"] in shown and token["token"] not in shown
    sleipnir("tokens", "revoke", token["id"], "--reason", "leaked")
    assert "no token" in sleipnir("tokens", "revoke", token["id"], code=2).stderr
    assert json.loads(sleipnir("tokens", "ls", "--json").stdout) == []

    exported = sleipnir("audit", "export").stdout
    entries = [json.loads(line) for line in exported.splitlines()]
    assert [entry["what"] for entry in entries] == [
        "user added", "password changed", "role changed", "user disabled", "user enabled", "token created",
        "token revoked",
    ]  # fmt: skip
    assert all(entry["by"].endswith(" (cli)") and "@" in entry["by"] for entry in entries)
    assert (entries[0]["reason"], entries[-1]["reason"]) == ("new", "leaked")
    assert PASSWORD not in exported and token["token"] not in exported
    assert [entry["what"] for entry in json.loads(sleipnir("audit", "ls", "--limit", "1", "--json").stdout)] == [
        "token revoked"
    ]
    assert "leaked" in sleipnir("audit", "ls", "--since", "1h", "--on", "token").stdout


def test_a_password_is_no_argument(sleipnir: Sleipnir) -> None:
    for words in (("add", "bob", "--role", "viewer", "--password", PASSWORD), ("passwd", "bob", PASSWORD)):
        assert sleipnir("users", *words, code=2)
    assert json.loads(sleipnir("users", "ls", "--json").stdout) == []


def test_a_user_whom_a_proxy_names_has_no_password(sleipnir: Sleipnir) -> None:
    sleipnir("users", "add", "bob", "--role", "viewer", "--no-password")
    assert "no password" in sleipnir("users", "ls").stdout
