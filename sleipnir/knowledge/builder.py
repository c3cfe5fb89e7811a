"""Runs orders in a builder: a separate process for each order (order.py has the protocol).

The builder dies with the thread that started it, and can be killed at any moment: the base is then unchanged or
complete, and a new build reuses the chunks that were embedded.
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
"""A builder that does not stop within this time is killed."""

_SHOWN_BYTES = 4_000


class Builder:
    """Starts builders with these settings and the environment of this process, which holds the keys of models."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def carry_out(
        self, order: Order, on_message: Callable[[BuildMessage], None] = lambda message: None
    ) -> Mapping[str, Any]:
        """Returns BuildDone.value; `on_message` gets Progress and BuildNotice. Calling again after any error is safe.

        Raises KnowledgeError if the builder fails or dies. Any other exception, from `on_message` or Ctrl-C, stops the
        builder first.
        """
        with tempfile.TemporaryFile() as errors, self._process(order, errors) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # it died while writing
                match reported := message_of(line):
                    case BuildDone(value):
                        return value
                    case BuildFailed(why, kind):
                        raise KnowledgeError(why, kind)
                    case _:
                        on_message(reported)
            raise _died(order, process.wait(), errors)

    @contextmanager
    def _process(self, order: Order, errors: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
        command = launch.command([sys.executable, "-m", "sleipnir_workers.knowledge"], signum=signal.SIGTERM)
        env = {**os.environ, **self._settings.to_env()}
        # A separate process group: Ctrl-C at a terminal reaches only this process, which stops the builder once.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
        )
        try:
            assert process.stdin is not None
            with (
                contextlib.suppress(BrokenPipeError),
                process.stdin,
            ):  # it died at once: its exit code is reported below
                process.stdin.write(order.line())
            yield process
        except BaseException:
            process.terminate()
            raise
        finally:
            _ensure_ended(process)


def _ensure_ended(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _died(order: Order, code: int, errors: IO[bytes]) -> KnowledgeError:
    name = pin_name(order.agent, order.node)
    if code < 0:
        return KnowledgeError(
            f"the builder of knowledge base {name!r} was ended by {signal.Signals(-code).name}. The base is unchanged: "
            "a new build reuses the chunks that were embedded",
            "bug",
            transient=True,
        )
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _SHOWN_BYTES))
    output = errors.read().decode(errors="replace").strip() or "it wrote nothing"
    return KnowledgeError(f"the builder of knowledge base {name!r} died with exit code {code}:\n{output}", "bug")
