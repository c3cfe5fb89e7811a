"""The secrets of a worker: where they come from, how they are named, and how they are kept out of texts.

Rules (spec/graph-agents.md 10.1). A secret is a variable of the environment or a line NAME=VALUE of the secrets file:
SLEIPNIR_SECRETS, else `secrets.env` in Loki's configuration directory. The environment takes precedence. Other users
must not be able to read the file. `{{NAME}}` in a value of config.yaml stands for the secret. An agent variable comes
from the submitter of a run: it may name secrets of the secrets file, and variables of the environment that the operator
lists in SLEIPNIR_SECRET_NAMES. Secrets are never logged or stored. They are sent only to the provider, or those of
agent variables to a tool or script; displayed texts go through `clean`.
"""

from __future__ import annotations

import functools
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sleipnir.errors import ConfigError
from sleipnir.redaction import is_secret_name, passwords_in, redacted
from sleipnir_workers.machine.host import Host

FILE = "secrets.env"
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_.-]+)\s*\}\}")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Keyring:
    """`env` is the environment over the secrets file; `named` is the part that an agent variable may name. Never log or
    pickle one."""

    env: Mapping[str, str] = field(repr=False)
    _hidden: frozenset[str] = field(repr=False)
    named: Mapping[str, str] = field(default_factory=dict, repr=False)

    def clean(self, text: str, others: Iterable[str] = ()) -> str:
        """`text` without any secret of this worker, and without `others`."""
        cleaned: str = redacted(text, self._hidden.union(others))
        return cleaned


def keyring_of(host: Host) -> Keyring:
    """The secrets of this worker. Raises ConfigError for a secrets file that cannot be used."""
    filed = _secrets_file(host)
    hidden = _hidden_in(host)
    allowed = {name: host.env[name] for name in host.settings.names_of_secrets if name in host.env}
    return Keyring({**filed, **host.env}, frozenset(hidden.union(filed.values())), {**filed, **allowed})


def hidden_in(host: Host) -> Keyring:
    """The secrets of the environment only, for use when the secrets file cannot be used."""
    return Keyring(host.env, _hidden_in(host))


def _hidden_in(host: Host) -> frozenset[str]:
    secrets = (value for name, value in host.env.items() if is_secret_name(name))
    return frozenset([*secrets, *passwords_in(host.env)])


def _secrets_file(host: Host) -> Mapping[str, str]:
    configured = host.settings.secrets
    path = configured or host.config_dir / FILE
    try:
        status = path.stat()
    except FileNotFoundError:
        if configured is None:
            return {}
        raise ConfigError(f"the secrets file {path} (SLEIPNIR_SECRETS) does not exist") from None
    except OSError as error:
        raise ConfigError(f"the secrets file {path} cannot be read: {error.strerror}") from None
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"the secrets file {path} is open to others (mode {mode:04o}); chmod 600 {path}")
    return _read(path, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int) -> Mapping[str, str]:
    """NAME=VALUE lines; blank lines and lines that start with # are skipped, one pair of quotes is stripped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the secrets file {path} cannot be read: {reason}") from None
    secrets: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(f"{path}:{number}: a line of a secrets file is NAME=VALUE")  # the line may hold a secret
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        secrets[name] = value
    return secrets
