"""A server that speaks as much of S3 as our index store needs, over real HTTP: objects in memory, whole or in parts."""

from __future__ import annotations

import hashlib
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Stored:
    def __init__(self, body: bytes, metadata: dict[str, str]) -> None:
        self.body, self.metadata = body, metadata
        self.modified = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class S3:
    """`objects` by `bucket/key`. `cut` many of the next GETs end in the middle of the object. While `go_on` is not set,
    a GET stops after its first half; `held` counts those that do."""

    def __init__(self, buckets: tuple[str, ...]) -> None:
        self.buckets = buckets
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, tuple[str, dict[str, str], dict[int, bytes]]] = {}
        self.requests: Counter[str] = Counter()
        self.cut, self.held = 0, 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.url = ""

    @property
    def env(self) -> dict[str, str]:
        """The variables that send boto3 here."""
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_EC2_METADATA_DISABLED": "true"}
        return {**keys, "AWS_DEFAULT_REGION": "here", "AWS_ENDPOINT_URL": self.url}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    @property
    def s3(self) -> S3:
        return self.server.s3  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *_: Any) -> None: ...

    def handle_expect_100(self) -> bool:
        """boto3 waits a second for it, and this stream is buffered."""
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def _do(self) -> None:
        parts = urlsplit(self.path)
        self.name, self.query = unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.s3.requests[self.command] += 1
        if self.name.partition("/")[0] not in self.s3.buckets:
            self._error(404, "NoSuchBucket")
        else:
            getattr(self, f"_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def _put(self) -> None:
        if "partNumber" in self.query:
            self.s3.uploads[self.query["uploadId"][0]][2][int(self.query["partNumber"][0])] = self.body
        else:
            self.s3.objects[self.name] = Stored(self.body, self._metadata())
        self._reply(200, headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})

    def _post(self) -> None:
        bucket, _, key = self.name.partition("/")
        if "uploads" in self.query:
            upload = f"upload{len(self.s3.uploads)}"
            self.s3.uploads[upload] = (self.name, self._metadata(), {})
            said = f"<UploadId>{upload}</UploadId>"
            name = "InitiateMultipartUploadResult"
        else:
            said, name = '<ETag>"whole"</ETag>', "CompleteMultipartUploadResult"
            of, metadata, parts = self.s3.uploads.pop(self.query["uploadId"][0])
            numbers = [int(str(each.text)) for each in ET.fromstring(self.body).iter() if "PartNumber" in each.tag]
            self.s3.objects[of] = Stored(b"".join(parts[number] for number in numbers), metadata)
        text = f"{_XML}<{name}><Bucket>{bucket}</Bucket><Key>{key}</Key>{said}</{name}>"
        self._reply(200, text.encode())

    def _delete(self) -> None:
        if "uploadId" in self.query:
            self.s3.uploads.pop(self.query["uploadId"][0], None)
        else:
            self.s3.objects.pop(self.name, None)
        self._reply(204)

    def _head(self) -> None:
        self._get(only_head=True)

    def _list(self) -> None:
        """All objects at once."""
        bucket, prefix = self.name.partition("/")[0], self.query.get("prefix", [""])[0]
        found = [(name.removeprefix(f"{bucket}/"), each) for name, each in self.s3.objects.items()]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(each.body)}</Size><LastModified>{each.modified}</LastModified></Contents>"
            for key, each in found
            if key.startswith(prefix)
        )
        text = f"<IsTruncated>false</IsTruncated><Name>{bucket}</Name>{contents}"
        self._reply(200, f"{_XML}<ListBucketResult>{text}</ListBucketResult>".encode())

    def _get(self, only_head: bool = False) -> None:
        if "list-type" in self.query:
            self._list()
            return
        stored = self.s3.objects.get(self.name)
        if stored is None:
            self._error(404, "NoSuchKey")
            return
        self.send_response(200)
        for name, value in stored.metadata.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(stored.body)))
        self.send_header("ETag", '"it"')
        self.end_headers()
        if only_head:
            return
        half = len(stored.body) // 2
        self.wfile.write(stored.body[:half])
        self.wfile.flush()
        if not self.s3.go_on.is_set():
            self.s3.held += 1
            self.s3.go_on.wait(60)
        if self.s3.cut > 0:
            self.s3.cut -= 1
            self.close_connection = True
        else:
            self.wfile.write(stored.body[half:])

    def _metadata(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def _error(self, status: int, code: str) -> None:
        text = f"{_XML}<Error><Code>{code}</Code><Message>on purpose</Message></Error>"
        self._reply(status, b"" if self.command == "HEAD" else text.encode())

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, s3: S3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.s3 = s3

    def handle_error(self, *_: Any) -> None:
        """A client that was killed is none of our errors."""


@contextmanager
def s3_server(*buckets: str) -> Iterator[S3]:
    s3 = S3(buckets)
    with _Server(s3) as server:
        s3.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield s3
        finally:
            s3.go_on.set()
            server.shutdown()
            thread.join()
