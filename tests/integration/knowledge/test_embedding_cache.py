"""The cache of embeddings, where processes share it and are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache
from tests.unit.knowledge.test_embedding_cache import vectors

_WRITER = """
import json, sys
from pathlib import Path
from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache, keys_of
home, name, count = json.loads(sys.argv[1])
cache = EmbeddingCache(Path(home), notice=lambda text: print("NOTICE", text, flush=True))
for number in range(count):
    texts = [f"{name}/{number}/{part}" for part in range(8)]
    keys = keys_of("mine:e", {"model": "openai/e"}, texts)
    cache.store({key: text.encode().ljust(256) for key, text in zip(keys, texts)})
    print(number, flush=True)
"""


def writer(home: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, json.dumps([str(home), name, count])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_begin_the_file_at_once_lose_nothing(tmp_path: Path) -> None:
    processes = [writer(tmp_path, name, 30) for name in ("one", "two")]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert outputs == [list(map(str, range(30)))] * 2
    texts = [f"{name}/{number}/{part}" for name in ("one", "two") for number in range(30) for part in range(8)]
    stored = vectors(*texts)
    assert EmbeddingCache(tmp_path).find(list(stored)) == stored


@pytest.mark.parametrize("written", [0, 1, 7, 23])
def test_data_that_a_killed_process_had_stored_is_kept(tmp_path: Path, written: int) -> None:
    process = writer(tmp_path, "killed", 1_000_000)
    assert process.stdout is not None
    for _ in range(written + 1):
        last = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    notices: list[str] = []
    cache = EmbeddingCache(tmp_path, notice=notices.append)
    for number in range(int(last) + 1):
        stored = vectors(*(f"killed/{number}/{part}" for part in range(8)))
        assert cache.find(list(stored)) == stored
    cache.store(more := vectors("more"))
    assert (cache.find(list(more)), notices) == (more, [])
