"""The placeholders in the texts of config.yaml agents (spec 3.4)."""

from __future__ import annotations

import platform
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sleipnir.agents.placeholders import interpolated, special_variables

NOON = datetime(2026, 3, 1, 12, 0, 5, 120_999, tzinfo=UTC)


def special(env: dict[str, str] | None = None, now: datetime = NOON) -> dict[str, str]:
    return special_variables(env or {}, "/work", now)


@pytest.mark.conformance("C03")
def test_every_special_variable_has_a_value() -> None:
    found = special({"SHELL": "/usr/bin/zsh", "LANG": "de_AT.UTF-8"})
    assert found.keys() == {
        "__os__", "__os_distro__", "__os_family__", "__arch__", "__shell__", "__locale__", "__now__", "__cwd__",
    }  # fmt: skip
    assert found["__os__"] in ("linux", "macos", "windows")
    assert found["__os_distro__"].endswith(f"({found['__os__']})") or found["__os_distro__"] == found["__os__"]
    assert found["__os_family__"] in ("unix", "windows")
    assert (found["__shell__"], found["__locale__"], found["__cwd__"]) == ("zsh", "de-AT", "/work")
    assert found["__now__"] == "2026-03-01T12:00:05.120Z"


@pytest.mark.conformance("C03")
@pytest.mark.parametrize(
    ("system", "machine", "told"),
    [
        ("Linux", "x86_64", ("linux", "unix", "x86_64")),
        ("Darwin", "arm64", ("macos", "unix", "aarch64")),
        ("Windows", "AMD64", ("windows", "windows", "x86_64")),
    ],
)
def test_systems_and_machines_are_called_what_loki_calls_them(
    system: str, machine: str, told: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = special()
    assert (found["__os__"], found["__os_family__"], found["__arch__"]) == told


@pytest.mark.parametrize(
    ("release", "told"),
    [
        ({"NAME": "Ubuntu", "VERSION_ID": "22.04"}, "Ubuntu 22.04 (linux)"),
        ({"NAME": "Arch Linux"}, "Arch Linux (linux)"),
        (None, "linux"),
    ],
)
def test_the_distribution_is_the_system_where_none_is_known(
    release: dict[str, str] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freedesktop_os_release() -> dict[str, str]:
        if release is None:
            raise OSError
        return release

    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", freedesktop_os_release)
    assert special()["__os_distro__"] == told


@pytest.mark.parametrize(
    ("env", "locale"),
    [
        ({}, "en-US"),
        ({"LANG": "C.UTF-8"}, "en-US"),
        ({"LANG": "fr_FR", "LC_ALL": ""}, "fr-FR"),
        ({"LANG": "fr_FR", "LC_MESSAGES": "nl_BE@euro"}, "nl-BE"),
        ({"LANG": "fr_FR", "LC_MESSAGES": "nl_BE", "LC_ALL": "pt_BR.UTF-8"}, "pt-BR"),
    ],
)
def test_the_locale_is_the_language_of_messages(env: dict[str, str], locale: str) -> None:
    assert special(env)["__locale__"] == locale


@pytest.mark.parametrize(
    ("env", "shell"),
    [({}, "bash"), ({"SHELL": "/bin/fish"}, "fish"), ({"SHELL": "/bin/fish", "LOKI_SHELL": "C:/nu.exe"}, "nu")],
)
def test_the_shell_is_the_default_one(env: dict[str, str], shell: str) -> None:
    assert special(env)["__shell__"] == shell


def test_the_time_has_milliseconds_and_its_zone() -> None:
    assert special(now=NOON.astimezone(timezone(timedelta(hours=2))))["__now__"] == "2026-03-01T14:00:05.120+02:00"


@pytest.mark.conformance("C03", "C05")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{city}} on {{__os__}}", "Oslo on linux"),
        ("{{ city }} {{unknown}} {{__unknown__}} {city}", "{{ city }} {{unknown}} {{__unknown__}} {city}"),
        ("{{my-city}}", "Bergen"),
        ("{{where}}", "linux"),  # the value of a variable may name a special one
        ("{{again}}", "{{city}}"),  # and no other variable
        ("{{{city}}}", "{Oslo}"),
        ("{{KEY}}", "{{KEY}}"),  # a secret is nothing for a model
    ],
)
def test_placeholders(text: str, result: str) -> None:
    variables = {"city": "Oslo", "my-city": "Bergen", "where": "{{__os__}}", "again": "{{city}}"}
    assert interpolated(text, variables, {"__os__": "linux"}) == result
    assert interpolated("{{__os__}} {{x}}", {}, {"__os__": "linux"}) == "linux {{x}}"
