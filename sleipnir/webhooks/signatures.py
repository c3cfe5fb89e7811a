"""Signatures of webhooks, in both directions, as the Standard Webhooks specification says: HMAC-SHA256 of the id, the
time and the body, with dots between.

No secret is stored: it is derived (HKDF) from a key of the deployment, which is in a file, and the token of the
webhook.
So a copy of Redis signs nothing. A new key is put before the old one in the file: what was made with the old one goes
on.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sleipnir.errors import ConfigError

TOLERANCE_S: Final = 300
"""How far the time of a signature may be from ours."""
SECRET: Final = "whsec_"
ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,200}")

_KEY: Final = re.compile(r"[0-9a-fA-F]{64,128}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class SigningKeys:
    """The keys of a deployment by id, the first one for new webhooks."""

    by_id: Mapping[str, bytes] = field(repr=False)

    @property
    def newest(self) -> str:
        """The id of the key for new webhooks."""
        return next(iter(self.by_id))

    def secret(self, key: str, what: str) -> bytes | None:
        """The secret of `what`, derived from the key of that id; None: this process does not have the key."""
        found = self.by_id.get(key)
        return None if found is None else _derived(found, f"sleipnir {what}")

    @classmethod
    def of_file(cls, file: Path) -> SigningKeys:
        """Lines of 64 or more hexadecimal digits, the newest key first. Raises ConfigError."""
        try:
            if is_open_to_others(file):
                raise ConfigError(f"others can read or change the key of webhooks: run `chmod 600 {file}`")
            lines = [line.strip() for line in file.read_text(encoding="ascii").splitlines() if line.strip()]
        except FileNotFoundError:
            raise ConfigError(
                f"there is no key of webhooks at {file}. Make one, the same for all processes that need it: "
                f"(umask 077; openssl rand -hex 32 > {file})"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot read the key of webhooks at {file}: {error.strerror}") from None
        except UnicodeError:
            lines = [""]
        if not lines or not all(_KEY.fullmatch(line) for line in lines):
            raise ConfigError(f"the key of webhooks at {file} is damaged: each line is 64 or more hexadecimal digits")
        keys = [bytes.fromhex(line[: len(line) // 2 * 2]) for line in lines]
        return cls({_derived(key, "sleipnir key id").hex()[:8]: key for key in keys})

    @classmethod
    def of_file_or_new(cls, file: Path) -> SigningKeys:
        """The same, after making the file if there is none. Raises ConfigError."""
        if not file.exists():
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".webhook-key-") as new:  # 0600
                    new.write(secrets.token_hex(32) + "\n")
                    new.flush()
                    os.link(new.name, file)
            except FileExistsError:
                pass  # another process has just made it
            except OSError as error:
                raise ConfigError(f"cannot make a key of webhooks at {file}: {error.strerror}") from None
        return cls.of_file(file)


def is_open_to_others(file: Path) -> bool:
    """Whether users that should not can read or change a file of keys. One of root that we read by our group is how
    Kubernetes mounts secrets, and systemd credentials."""
    found = file.stat()
    is_mounted = found.st_uid == 0 != os.geteuid()
    return bool(found.st_mode & (_OTHERS & ~stat.S_IRGRP if is_mounted else _OTHERS))


def secret_text(secret: bytes) -> str:
    """The form in which a secret is shown, as other programs take it."""
    return SECRET + base64.b64encode(secret).decode()


def signature(secret: bytes, id_: str, at_s: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    digest = hmac.digest(secret, f"{id_}.{at_s}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(digest).decode()


def headers(secret: bytes, id_: str, now_ms: int, body: bytes) -> dict[str, str]:
    """The headers that sign a request."""
    at_s = now_ms // 1000
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(at_s),
        "webhook-signature": signature(secret, id_, at_s, body),
    }


def _derived(key: bytes, what: str) -> bytes:
    """HKDF (RFC 5869) with SHA-256 and one block."""
    extracted = hmac.digest(b"sleipnir webhooks", key, "sha256")
    return hmac.digest(extracted, what.encode() + b"\x01", "sha256")
