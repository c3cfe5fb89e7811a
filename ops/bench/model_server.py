"""The scripted model server as a process, and what it says of the calls that it got."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ops.bench.processes import PYTHON, environment, workspace
from sleipnir.local import launch

SAYS_OK: Mapping[str, Any] = {"default": "ok"}


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    @property
    def env(self) -> dict[str, str]:
        """The variables that send calls of the client `openai` here."""
        return {"OPENAI_API_BASE": self.url, "OPENAI_API_KEY": "sk-bench"}

    def arrivals_s(self) -> Sequence[float]:
        """When its calls came in, by its clock (Unix seconds), oldest first."""
        return sorted(float(request["at_s"]) for request in self.get("requests"))

    def get(self, path: str) -> Any:
        return self._asked(path, None)

    def post(self, path: str) -> Any:
        return self._asked(path, b"")

    def _asked(self, path: str, content: bytes | None) -> Any:
        url = f"{self.url.removesuffix('/v1')}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, content), timeout=60) as reply:
            return json.load(reply)


@contextmanager
def model_server(script: Mapping[str, Any] | str = SAYS_OK) -> Iterator[Server]:
    """A server that answers by `script`: the object of a script file (sleipnir/testing/script.py), or the text of a
    Python file."""
    with workspace() as folder:
        file = folder / ("script.py" if isinstance(script, str) else "script.json")
        file.write_text(script if isinstance(script, str) else json.dumps(script))
        command = [PYTHON, "-m", "sleipnir.testing", "serve", "--script", str(file)]
        process = subprocess.Popen(launch.command(command), env=environment({}), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip(), process.pid)
        finally:
            process.terminate()
            process.wait()
