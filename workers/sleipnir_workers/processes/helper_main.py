"""The child's side of helper.py: `python -m sleipnir_workers.processes.helper_main MODULE` answers requests until stdin
ends."""

from __future__ import annotations

import importlib
import json
import os
import struct
import sys
from typing import IO

_LENGTHS = struct.Struct(">QQ")


def main(module: str) -> None:
    # Output of a library must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer = importlib.import_module(module).answer
    while head := sys.stdin.buffer.read(_LENGTHS.size):
        request_bytes, body_bytes = _LENGTHS.unpack(head)
        request = json.loads(sys.stdin.buffer.read(request_bytes))
        _write(answers, *answer(request, sys.stdin.buffer.read(body_bytes)))


def _write(pipe: IO[bytes], answer: object, body: bytes) -> None:
    text = json.dumps(answer).encode()
    pipe.write(_LENGTHS.pack(len(text), len(body)))
    pipe.write(text)
    pipe.write(body)
    pipe.flush()


if __name__ == "__main__":
    main(sys.argv[1])
