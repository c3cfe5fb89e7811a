"""The index store in S3, or in a server with its protocol: one object per index, `<prefix>/<digest>.tar`.

An object is a tar, uncompressed because vectors do not compress. Its SHA-256 is in its metadata, so that truncation and
changes on the way are detected. S3 shows an object once it is complete; the parts of an upload that died are never
visible, and a life cycle rule of the bucket (AbortIncompleteMultipartUpload) deletes them. boto3 looks up keys, region
and endpoint (AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.files import is_digest
from sleipnir.staging import staging
from sleipnir_workers.knowledge.cache import Cache
from sleipnir_workers.knowledge.index_store import (
    DamagedIndex,
    Moved,
    OpenIndex,
    checked,
    disk_error,
    not_there,
    size_of,
)

ATTEMPTS = 3  # at an object that arrives damaged
_MISSING = {"404", "NoSuchKey", "NotFound"}


class Bucket:
    """`name` is `s3://bucket/prefix`. Fetched indexes are kept in `cache`. Thread-safe, as boto3's clients are."""

    def __init__(self, name: str, cache: Cache) -> None:
        self.name, self._cache = name, cache
        self._bucket, _, prefix = name.removeprefix("s3://").partition("/")
        if not self._bucket:
            raise KnowledgeError(f"SLEIPNIR_KNOWLEDGE={name!r} names no bucket; write s3://BUCKET/PREFIX", "usage")
        self._prefix = f"{prefix}/" if prefix else ""

    def has(self, digest: str) -> bool:
        with self._errors():
            return self._head(digest) is not None

    def put(self, digest: str, write: Callable[[Path], None], moved: Moved = lambda done, total: None) -> int:
        try:
            with staging(self._cache.root) as folder:
                content, packed = folder / checked(digest), folder / "packed.tar"
                content.mkdir()
                write(content)
                pack(content, packed)
                self._upload(digest, packed, moved)
                return size_of(content)
        except OSError as error:
            raise disk_error(error, self._cache.root) from error

    def _upload(self, digest: str, packed: Path, moved: Moved) -> None:
        total = packed.stat().st_size
        sent = 0

        def report(sent_bytes: int) -> None:
            nonlocal sent
            sent += sent_bytes
            moved(sent, total)

        with packed.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        with self._errors(), packed.open("rb") as content:
            headers = {"Metadata": {"sha256": sha256}, "ContentType": "application/x-tar"}
            self._client.upload_fileobj(content, self._bucket, self._key(digest), ExtraArgs=headers, Callback=report)

    def open(self, digest: str) -> OpenIndex:
        return self._cache.open(checked(digest), functools.partial(self._size, digest), self._fetcher(digest))

    def all(self) -> Iterator[tuple[str, int, float]]:
        """The digest, the bytes and the time (seconds since 1970) of each index. Other objects are ignored."""
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            for item in (item for page in pages for item in page.get("Contents", ())):
                digest = item["Key"].removeprefix(self._prefix).removesuffix(".tar")
                if is_digest(digest) and item["Key"] == self._key(digest):
                    yield digest, int(item["Size"]), item["LastModified"].timestamp()

    def drop(self, digest: str) -> None:
        with self._errors():
            self._client.delete_object(Bucket=self._bucket, Key=self._key(digest))
        self._cache.drop(digest)

    def _size(self, digest: str) -> int:
        with self._errors():
            head = self._head(digest)
        if head is None:
            raise not_there(digest, self.name)
        return int(head["ContentLength"])

    def _fetcher(self, digest: str) -> Callable[[Path], None]:
        def fetch(folder: Path) -> None:
            for _ in range(ATTEMPTS):
                if self._fetch(digest, folder):
                    return
                shutil.rmtree(folder)
                folder.mkdir()
            raise DamagedIndex(
                f"knowledge base {digest[:12]} does not arrive complete from the index store: {self.name}/{digest}.tar "
                "is damaged, or truncated on the way. If it is damaged, remove it and index the base again",
                "store",
            )

        return fetch

    def _fetch(self, digest: str, folder: Path) -> bool:
        """Unpack the object into `folder`. Returns whether it has arrived complete and unchanged."""
        with self._errors():
            from botocore.exceptions import HTTPClientError, IncompleteReadError

            reply = self._client.get_object(Bucket=self._bucket, Key=self._key(digest))
            body = _Hashed(reply["Body"])
            try:
                unpack(body, folder)
                body.drain()
            except (tarfile.TarError, EOFError, HTTPClientError, IncompleteReadError):
                return False
            finally:
                reply["Body"].close()
            sha256: str | None = reply["Metadata"].get("sha256")
        return body.hexdigest() == sha256

    def _head(self, digest: str) -> Any:
        """None: there is no such object."""
        from botocore.exceptions import ClientError

        try:
            return self._client.head_object(Bucket=self._bucket, Key=self._key(digest))
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:
                return None
            raise

    def _key(self, digest: str) -> str:
        return f"{self._prefix}{checked(digest)}.tar"

    @property
    def _client(self) -> Any:
        try:
            return client()
        except ModuleNotFoundError as error:
            raise KnowledgeError(
                f"the index store {self.name} needs {error.name}, which is not installed: "
                "pip install '.[s3]' in a checkout",
                "store",
            ) from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn boto3's errors into Sleipnir's. Errors of the network are transient."""
        no_such_key = self._client.exceptions.NoSuchKey  # first, as its error explains how to install boto3
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        try:
            yield
        except no_such_key as error:
            raise KnowledgeError(f"{self.name} has no such knowledge base: {error}", "store") from error
        except ClientError as error:
            transient = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500
            message = f"the index store {self.name} refuses: {error}"
            raise KnowledgeError(message, "store", transient=transient) from error
        except BotoCoreError as error:
            transient = isinstance(error, (HTTPClientError, ConnectionError))
            message = f"the index store {self.name} cannot be used: {error}"
            raise KnowledgeError(message, "store", transient=transient) from error


@functools.cache
def client() -> Any:
    """The client of this process: making one takes a quarter of a second. Raises ModuleNotFoundError."""
    import boto3
    from botocore.config import Config

    # No optional checksums, which some servers do not support: objects have a checksum of our own.
    config = Config(
        connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 4},
        request_checksum_calculation="when_required", response_checksum_validation="when_required",
    )  # fmt: skip
    return boto3.session.Session().client("s3", config=config)


def pack(folder: Path, file: Path) -> None:
    """A tar of the files in `folder`. Equal files give equal bytes."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                archive.addfile(info, content)


def unpack(stream: Any, folder: Path) -> None:
    """Unpack a tar, which is read once, from its beginning. Nothing is written outside `folder`."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            path = folder / member.name
            if content is None or not path.resolve().is_relative_to(folder.resolve()):
                raise tarfile.TarError(f"{member.name!r} is not a file inside the index")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)


class _Hashed:
    """A stream, and the SHA-256 of the bytes that were read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(None if size < 0 else size)
        self._hash.update(content)
        return content

    def drain(self) -> None:
        """Read to the end: the hash includes a tar's padding, which unpacking does not read."""
        while self.read(1 << 16):
            pass

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
