"""A provider of OpenID Connect as a process of its own: `python -m tests.login_provider` prints its address.

Its person is logged in already: the page of the login sends the browser back at once. `POST /control` makes it lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "sleipnir-console", "a-secret-of-the-client-with+signs=%"
TIMEOUT_S = 30
ROOT = Path(__file__).parents[1]


class Provider(ThreadingHTTPServer):
    """`lies` are those of the tests: what the token says instead, and how it is signed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.codes: dict[str, dict[str, str]] = {}
        self.person: dict[str, Any] = {"sub": "1001", "preferred_username": "ann", "groups": ["ops"]}
        self.lies: dict[str, Any] = {}
        self.asked: list[str] = []
        self.rotate()

    def rotate(self) -> None:
        """A new key, with a new id; the one before is withdrawn."""
        self.key = RSAKey.generate_key(2048, {"kid": f"key-{time.monotonic_ns()}", "use": "sig"}, private=True)

    def token(self, nonce: str) -> str:
        now = int(time.time())
        person = {name: value for name, value in self.person.items() if name not in self.lies.get("untold", ())}
        claims = {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce, **person,
            **self.lies.get("claims", {}),
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.lies.get("alg", "RS256"), "kid": self.key.kid}
        if header["alg"] in ("none", "HS256"):  # with no signature, and with the public key as the secret
            text = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
            digest = hmac.digest(self.key.as_pem(private=False), text.encode(), "sha256")
            return f"{text}.{_base64(digest) if header['alg'] == 'HS256' else ''}"
        key = RSAKey.generate_key(2048) if self.lies.get("forged") else self.key
        return jwt.encode(header, claims, key)


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        url, server = urlsplit(self.path), self.server
        server.asked.append(url.path)
        if server.lies.get("away"):
            self._answer(500, {})
        elif url.path == "/.well-known/openid-configuration":
            self._answer(200, {
                "issuer": server.lies.get("issuer", server.issuer),
                "authorization_endpoint": f"{server.issuer}/authorize", "token_endpoint": f"{server.issuer}/token",
                "jwks_uri": f"{server.issuer}/keys", "userinfo_endpoint": f"{server.issuer}/userinfo",
                "end_session_endpoint": f"{server.issuer}/leave", **server.lies.get("description", {}),
            })  # fmt: skip
        elif url.path == "/keys":
            other = {"kty": "unknown", "kid": "of a later kind"}
            self._answer(200, {"keys": [other, server.key.as_dict(private=False)]})
        elif url.path == "/authorize":
            given = dict(parse_qsl(url.query))
            code = f"code-{time.monotonic_ns()}"
            server.codes[code] = given
            back = {"code": code, "state": given["state"], "iss": server.issuer}
            self._redirect(f"{given['redirect_uri']}?{urlencode(back)}")
        elif url.path == "/userinfo" and self.headers["Authorization"] == "Bearer access-token":
            self._answer(200, {**server.person, **server.lies.get("userinfo", {})})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body, server = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.server
        server.asked.append(self.path)
        if self.path == "/control":
            order = json.loads(body)
            server.lies, server.person = order.get("lies", {}), {**server.person, **order.get("person", {})}
            if order.get("rotate"):
                server.rotate()
            asked, server.asked = server.asked, []
            self._answer(200, {"asked": asked})
        elif self.path == "/token":
            self._give_token({name: values[0] for name, values in parse_qs(body).items()})
        else:
            self._answer(404, {})

    def _give_token(self, given: dict[str, str]) -> None:
        """Once for a code, to the client with its secret, with the verifier of the challenge."""
        begun = self.server.codes.get(given.get("code", ""), {})
        if not self.server.lies.get("codes twice"):
            self.server.codes.pop(given.get("code", ""), None)
        digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = _base64(digest)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        right = (
            begun.get("code_challenge") == challenge
            and begun.get("code_challenge_method") == "S256"
            and begun.get("redirect_uri") == given.get("redirect_uri")
            and self.headers["Authorization"] == f"Basic {basic}"
        )
        if not right:
            self._answer(400, {"error": "invalid_grant"})
            return
        token = self.server.token(begun["nonce"])
        self._answer(200, {"access_token": "access-token", "token_type": "Bearer", "id_token": token})

    def _redirect(self, address: str) -> None:
        self.send_response(302)
        self.send_header("Location", address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class RunningProvider:
    """The process, for tests."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.netloc = urlsplit(issuer).netloc

    def control(self, **order: Any) -> list[str]:
        """Set its lies (none without `lies`) and its person; returns the paths that it was asked for since the last
        order."""
        connection = http.client.HTTPConnection(self.netloc, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/control", json.dumps(order))
            asked: list[str] = json.loads(connection.getresponse().read())["asked"]
            return asked
        finally:
            connection.close()

    def back(self, address: str) -> str:
        """Where the page of the login, at this address, sends the browser."""
        connection = http.client.HTTPConnection(self.netloc, timeout=TIMEOUT_S)
        try:
            connection.request("GET", address.removeprefix(self.issuer))
            return str(connection.getresponse().headers["Location"])
        finally:
            connection.close()


@contextmanager
def login_provider() -> Iterator[RunningProvider]:
    """A provider that answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.login_provider"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield RunningProvider(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    running = Provider()
    print(running.issuer, flush=True)
    running.serve_forever()
