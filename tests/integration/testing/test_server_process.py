"""The scripted model server as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = {
    "rules": [{"match": "^ping", "reply": "pong"}],
    "replies": ["first", {"text": "second", "input_tokens": 3}],
    "default": {"status": 503, "error": "nothing left"},
}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "replies.json").write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "sleipnir.testing", "serve", "--script", str(tmp_path / "replies.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def post(url: str, prompt: str) -> tuple[int, Any]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"Authorization": "Bearer k"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]["message"]


def test_it_prints_its_address_and_follows_its_script(url: str) -> None:
    prompts = ["a", "ping", "b", "c", "d"]
    expected = [(200, "first"), (200, "pong"), (200, "second"), (503, "nothing left"), (503, "nothing left")]
    assert [post(url, prompt) for prompt in prompts] == expected
    with urllib.request.urlopen(url.removesuffix("/v1") + "/requests") as response:
        recorded = json.load(response)
    assert [request["body"]["messages"][0]["content"] for request in recorded] == prompts
    assert recorded[0]["authorization"] == "Bearer k"


def test_a_wrong_script_is_reported_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("replies: [{txt: a}]")
    command = [sys.executable, "-m", "sleipnir.testing", "serve", "--script", str(tmp_path / "script.yaml")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    place = f"{tmp_path / 'script.yaml'}: replies[0].txt"
    assert (refused.returncode, refused.stderr) == (1, f"error: {place}: Unexpected keyword argument\n")
