"""TLS for tests: an authority of our own, a certificate for this machine, and TLS before a server that has none."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CHUNK = 1 << 16


@dataclass(frozen=True)
class Certificates:
    """Files: who signed, and what the server shows."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A new authority, and a certificate for localhost and 127.0.0.1 that it has signed."""
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = _named("Test authority"), _named("localhost")
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = _unsigned(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(True, None), True)
    files.authority.write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    signed = _unsigned(name, ca_name, key).add_extension(names, False).sign(ca_key, hashes.SHA256())
    files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


class TlsFront:
    """Takes TLS connections on `port` of this machine and passes them on to the unix socket `target`."""

    def __init__(self, target: str, files: Certificates) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tls", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # at its end it cancels what is open
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._pass_on, sock=self._listening, ssl=self._context):
            await self._over.wait()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until one side is gone; then the other one is told."""
    try:
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        sink.close()
