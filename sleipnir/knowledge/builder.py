"""Has orders carried out by a builder: a process of its own, which ends with its order (order.py has the protocol).

The builder dies with the thread that asked, however that ends, and can itself be killed at any moment: the base is then
as it was or complete, and building again goes on from what was embedded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.files import pin_name
from sleipnir.knowledge.order import BuildDone, BuildFailed, BuildMessage, Order, message_of
from sleipnir.local import launch
from sleipnir.settings import Settings

STOP_S = 10.0
"""A builder that is told to stop and has not after so long is killed."""

_SHOWN_BYTES = 4_000


class Builder:
    """Builders get these settings, and the environment of this process with its keys of models."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def carry_out(
        self, order: Order, on_message: Callable[[BuildMessage], None] = lambda message: None
    ) -> Mapping[str, Any]:
        """Returns BuildDone.value; `on_message` gets Progress and BuildNotice. Calling again after any error is safe.

        Raises KnowledgeError for what the builder failed at, and when it died. Whatever else is raised meanwhile, by
        `on_message` or by Ctrl-C, stops the builder first.
        """
        with tempfile.TemporaryFile() as said, self._process(order, said) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # it died in the middle of it
                match message := message_of(line):
                    case BuildDone(value):
                        return value
                    case BuildFailed(why, kind):
                        raise KnowledgeError(why, kind)
                    case _:
                        on_message(message)
            raise _died(order, process.wait(), said)

    @contextmanager
    def _process(self, order: Order, said: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
        command = launch.command([sys.executable, "-m", "sleipnir_workers.knowledge"], signum=signal.SIGTERM)
        env = {**os.environ, **self._settings.to_env()}
        # A process group of its own: Ctrl-C at a terminal comes to us alone, and we pass it on once.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, process_group=0
        )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it died at once: its end says why
                process.stdin.write(order.line())
            yield process
        except BaseException:
            process.terminate()
            raise
        finally:
            _see_it_end(process)


def _see_it_end(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _died(order: Order, code: int, said: IO[bytes]) -> KnowledgeError:
    name = pin_name(order.agent, order.node)
    if code < 0:
        return KnowledgeError(
            f"the builder of knowledge base {name!r} was ended by {signal.Signals(-code).name}. Nothing is half-built: "
            "building again goes on from what was embedded",
            "bug",
            transient=True,
        )
    said.seek(max(0, said.seek(0, os.SEEK_END) - _SHOWN_BYTES))
    last_words = said.read().decode(errors="replace").strip() or "it said nothing"
    return KnowledgeError(f"the builder of knowledge base {name!r} died with exit code {code}:\n{last_words}", "bug")
