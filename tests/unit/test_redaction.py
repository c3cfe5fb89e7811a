"""The one rule for names of secrets, and the one redactor."""

from __future__ import annotations

import pytest

from sleipnir.redaction import is_secret_name, passwords_in, redacted, without_secret_variables

SECRET = [
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "OPENAI_API_KEY", "OPENAI_API_KEY_2", "TOKEN",
    "GITHUB_PAT", "REDIS_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "db_passwd", "SSH_PASSPHRASE", "CLIENT_SECRET", "SECRET",
    "GOOGLE_APPLICATION_CREDENTIALS", "TLS_PRIVATE_KEY", "api_key", "apikey", "authorization", "token", "key",
    "SIGNING_KEY", "DJANGO_SECRET_KEY", "VAULT_TOKEN_ID", "API_KEYS",
]  # fmt: skip
PLAIN = [
    "PATH", "HOME", "PWD", "OLDPWD", "MONKEY", "KEYBOARD", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "tokens_in", "keys",
    "key_prefix", "SSH_AUTH_SOCK", "PROJECT_ID", "COMPAT", "SLEIPNIR_SECRETS", "SLEIPNIR_SECRET_NAMES", "SLEIPNIR_KEY",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    """Finding S12."""
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_names_of_other_things(name: str) -> None:
    """Finding S12."""
    assert not is_secret_name(name)


def test_what_workers_of_scripts_are_given_holds_no_secret() -> None:
    """Finding S12."""
    assert without_secret_variables(dict.fromkeys([*SECRET, *PLAIN], "x")) == dict.fromkeys(PLAIN, "x")


def test_every_text_is_redacted_and_longer_secrets_go_first() -> None:
    """Finding S12."""
    value = {"a-secret-key": ["x secret-key y", 1, None, {"secret-key": True}], "t": ("secret", "a-secret-key")}
    assert redacted(value, ["secret", "a-secret-key", "secret-key", "short"]) == {
        "[redacted]": ["x [redacted] y", 1, None, {"[redacted]": True}],
        "t": ("[redacted]", "[redacted]"),
    }
    assert redacted("short", ["short"]) == "short"


def test_passwords_of_addresses_are_secrets() -> None:
    """Finding S12."""
    env = {"A": "redis://user:p%40ss/w#rd@host:6379/0", "B": "https://host/path@x", "C": "unix:///x", "D": "a@b"}
    assert set(passwords_in(env)) == {"p%40ss/w#rd", "p@ss/w#rd"}
