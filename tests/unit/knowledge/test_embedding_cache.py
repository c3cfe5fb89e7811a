"""The cache of embeddings, as several processes use it, and as kills and damage leave it."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import pytest

from sleipnir_workers.knowledge.embedding_cache import FILE, EmbeddingCache, keys_of

SETTINGS = {"model": "openai/e"}


def vectors(*texts: str) -> dict[bytes, bytes]:
    """A vector per text that tells what it is of."""
    return {key: text.encode().ljust(256) for key, text in zip(keys_of("mine:e", SETTINGS, texts), texts, strict=True)}


def test_stored_vectors_are_found_by_every_process_that_opens_the_file(tmp_path: Path) -> None:
    cache, other = EmbeddingCache(tmp_path), EmbeddingCache(tmp_path)
    stored = vectors("a", "b")
    cache.store(stored)
    assert other.find([*stored, *vectors("c")]) == stored
    assert other.known([*stored, *vectors("c")]) == set(stored)


def test_many_more_keys_than_a_statement_takes_are_found(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    stored = vectors(*map(str, range(1_700)))
    cache.store(stored)
    assert cache.find(list(stored)) == stored


def test_the_key_depends_on_model_settings_and_text_and_on_nothing_else() -> None:
    keys = [
        keys_of("mine:e", SETTINGS, ["a"]),
        keys_of("mine:f", SETTINGS, ["a"]),
        keys_of("mine:e", {**SETTINGS, "dimensions": 8}, ["a"]),
        keys_of("mine:e", SETTINGS, ["a "]),
    ]
    assert len({key for [key] in keys}) == 4
    assert keys_of("mine:e", {"b": 1, "a": 2}, ["a"]) == keys_of("mine:e", {"a": 2, "b": 1}, ["a"])


def test_removed_vectors_are_not_found(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    cache.store(stored := vectors("a", "b"))
    cache.forget(vectors("a"))
    assert list(cache.find(list(stored)).values()) == list(vectors("b").values())


def test_a_vector_that_is_not_what_was_stored_is_not_found(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    cache.store(stored := vectors("a", "b"))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE key = ?", (struct.pack("<f", 1.0), next(iter(stored))))
    connection.close()
    assert list(cache.find(list(stored))) == list(vectors("b"))


def test_what_was_not_used_for_longest_is_dropped_first(tmp_path: Path) -> None:
    now_s = 0.0
    cache = EmbeddingCache(tmp_path, most_bytes=100_000, now_s=lambda: now_s)
    first = vectors(*(f"first {number}" for number in range(20)))
    cache.store(first)
    for day in range(1, 60):
        now_s = day * 100_000.0
        cache.store(vectors(*(f"{day}/{number}" for number in range(20))))
        assert len(cache.find(list(first))) == 20, "they are used every day"
    assert cache.known(list(vectors(*(f"1/{number}" for number in range(20))))) == set()
    assert len(cache.known(list(vectors(*(f"59/{number}" for number in range(20)))))) == 20
    cache.close()
    assert (tmp_path / FILE).stat().st_size < 200_000


@pytest.mark.parametrize("content", [b"no database at all, " * 500, b"SQLite format 3\0" + b"\xff" * 8_000])
def test_a_damaged_file_is_moved_aside_and_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    notices: list[str] = []
    cache = EmbeddingCache(tmp_path, notice=notices.append, now_s=lambda: 17.0)
    cache.store(stored := vectors("a"))
    assert cache.find(list(stored)) == stored
    assert (tmp_path / f"{FILE}.damaged-17").read_bytes() == content
    [notice] = notices
    assert "was damaged" in notice and f"{FILE}.damaged-17" in notice


def test_damage_within_is_found_when_it_is_met(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    cache.store(stored := vectors(*map(str, range(500))))
    cache.close()
    with (tmp_path / FILE).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 10)
    notices: list[str] = []
    again = EmbeddingCache(tmp_path, notice=notices.append)
    assert again.find(list(stored)) == {}
    again.store(stored)
    assert again.find(list(stored)) == stored
    assert len(notices) == 1


def test_the_second_process_that_finds_the_damage_takes_the_new_file(tmp_path: Path) -> None:
    notices: list[str] = []
    one, two = (EmbeddingCache(tmp_path, notice=notices.append) for _ in range(2))
    (tmp_path / FILE).write_bytes(b"no database at all, " * 500)
    error = sqlite3.DatabaseError("file is not a database")
    one.store(stored := vectors("a"))
    two._move_aside(error)
    assert two.find(list(stored)) == stored
    assert len(notices) == 1


@pytest.mark.parametrize("made", ["directory", "newer"])
def test_an_unusable_file_is_reported_once_and_fails_nothing(tmp_path: Path, made: str) -> None:
    if made == "directory":
        (tmp_path / FILE).mkdir()
    else:
        with sqlite3.connect(tmp_path / FILE) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    notices: list[str] = []
    cache = EmbeddingCache(tmp_path, notice=notices.append)
    cache.store(stored := vectors("a"))
    assert (cache.find(list(stored)), cache.known(list(stored)), len(notices)) == ({}, set(), 1)
    assert "is not used" in notices[0]
