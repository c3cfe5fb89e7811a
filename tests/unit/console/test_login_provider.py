"""Logging in through OpenID Connect: the settings, what groups may do, names, and what a browser keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.access.credentials import new_login, of_cookie
from sleipnir.access.provided_users import GroupRole, group_roles, provided_name, roles_of
from sleipnir.errors import ConfigError, UsageError
from sleipnir.settings import Settings
from sleipnir_console.login_provider.begun_login import LIFE_MS, BegunLogin
from sleipnir_console.login_provider.provider_settings import ProviderSettings

SECRET = "a-secret-of-the-client"


def settings_of(folder: Path, **changes: Any) -> Settings:
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    given = {
        "oidc_issuer": "https://id.example.com/realms/acme", "oidc_client": "sleipnir", "oidc_secret": file,
        "oidc_roles": "ops=operator@default", "console_url": "https://sleipnir.example.com/",
    }  # fmt: skip
    return Settings(**{**given, **changes})


def test_the_settings_of_a_provider(tmp_path: Path) -> None:
    found = ProviderSettings.of(settings_of(tmp_path))
    assert found is not None and found.secret == SECRET and SECRET not in repr(found)
    assert found.callback == "https://sleipnir.example.com/login/oidc/callback"
    assert (found.name, found.login_ms) == ("id.example.com", 28_800_000)
    assert ProviderSettings.of(Settings()) is None
    assert SECRET not in str(settings_of(tmp_path).to_log())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oidc_issuer": "", "oidc_secret": None}, "SLEIPNIR_OIDC_CLIENT needs SLEIPNIR_OIDC_ISSUER"),
        ({"oidc_client": ""}, "needs SLEIPNIR_OIDC_CLIENT"),
        ({"oidc_secret": None}, "needs SLEIPNIR_OIDC_SECRET"),
        ({"oidc_roles": ""}, "needs SLEIPNIR_OIDC_ROLES"),
        ({"console_url": ""}, "needs SLEIPNIR_CONSOLE_URL"),
        ({"oidc_issuer": "http://id.example.com"}, "an address with https://"),
        ({"console_url": "http://sleipnir.example.com"}, "an address with https://"),
        ({"console_url": "https://[sleipnir"}, "an address with https://"),
        ({"oidc_roles": "ops=king@default"}, "there is no role 'king'"),
        ({"oidc_roles": "ops"}, "is not GROUP=ROLE@NAMESPACE"),
        ({"oidc_roles": "ops=viewer"}, "is not GROUP=ROLE@NAMESPACE"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ProviderSettings.of(settings_of(tmp_path, **changes))
    assert words in str(error.value)


@pytest.mark.parametrize(("mode", "content", "words"), [
    (0o640, SECRET, "others can read or change"), (0o600, "", "empty or damaged"), (0o600, "a\nb", "empty or damaged"),
])  # fmt: skip
def test_a_secret_is_closed_to_others_and_one_line(tmp_path: Path, mode: int, content: str, words: str) -> None:
    settings = settings_of(tmp_path)
    (tmp_path / "secret").write_text(content)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError) as error:
        ProviderSettings.of(settings)
    assert words in str(error.value)
    (tmp_path / "secret").unlink()
    with pytest.raises(ConfigError, match="cannot read the secret"):
        ProviderSettings.of(settings)


def test_of_several_groups_the_highest_role_counts() -> None:
    granted = group_roles("cn=ops,ou=it=operator@default; /acme/leads=viewer@default;leads=admin@*;")
    assert granted[0] == GroupRole("cn=ops,ou=it", "operator", "default")
    assert roles_of(["/acme/leads", "cn=ops,ou=it", "unknown"], granted) == {"default": "operator"}
    assert roles_of(["/acme/leads", "leads"], granted) == {"default": "viewer", "*": "admin"}
    assert roles_of([], granted) == {}


def test_a_name_of_a_provider_is_that_of_no_other_user() -> None:
    assert provided_name("ann@acme.example") == "oidc:ann@acme.example"
    for name in ("", "an/n", "-ann", "a" * 60, None, 7, "oidc:ann"):
        with pytest.raises(UsageError):
            provided_name(name)
    made, cookie = new_login("oidc:ann")
    given = of_cookie(cookie)
    assert given is not None and (given.of, given.hash) == ("oidc:ann", made.hash)


def test_what_was_begun_is_known_again_for_a_while() -> None:
    begun = BegunLogin.new(1_000, "/runs?status=failed&text=ä")
    assert BegunLogin.of(begun.cookie, 1_000 + LIFE_MS) == begun
    assert BegunLogin.of(begun.cookie, 1_001 + LIFE_MS) is None
    assert BegunLogin.of(begun.cookie, 999) is None  # begun in the future
    for text in ("", "x", begun.cookie + "\n", begun.cookie.replace(".", ":"), f"1000.{'a' * 43}._w==", "1000..AA=="):
        assert BegunLogin.of(text, 1_000) is None
    assert len({begun.state, begun.nonce, begun.verifier, begun.proof}) == 4
    assert begun.is_state(begun.state) and not begun.is_state(BegunLogin.new(1_000, "/").state)
    assert not begun.is_state("ä\udc80")
    assert begun.secret not in repr(begun)
