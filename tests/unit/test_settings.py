"""Settings: what is read from the environment, what is refused and how, and what children are given."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.settings import Settings


def test_values_of_the_environment_get_the_types_of_their_settings() -> None:
    read = Settings.from_env(
        {
            "SLEIPNIR_HOME": "/h",
            "SLEIPNIR_PARTITIONS": " 4 ",
            "SLEIPNIR_STREAM": "off",
            "SLEIPNIR_STRICT": "True",
            "SLEIPNIR_LOG_LEVEL": "debug",
            "SLEIPNIR_METRICS_PORT": "0",
            "SLEIPNIR_MODEL": "",
            "PATH": "/bin",
        }
    )
    assert (read.home, read.partitions, read.stream, read.strict) == (Path("/h"), 4, False, True)
    assert (read.log_level, read.metrics_port, read.model) == ("debug", 0, None)


@pytest.mark.parametrize("name", [name for name in Settings.names() if name.endswith("_s")])
def test_every_setting_of_seconds_takes_a_unit(name: str) -> None:
    """Finding U16 of the second review: one of them did not."""
    variable = f"SLEIPNIR_{name.upper()}"
    assert getattr(Settings.from_env({variable: "5m"}), name) == 300.0
    assert getattr(Settings.from_env({variable: "1.5"}), name) == 1.5


@pytest.mark.parametrize(
    ("variable", "text", "why"),
    [
        ("SLEIPNIR_PARTITIONS", "many", "must be a whole number"),
        ("SLEIPNIR_PARTITIONS", "9" * 5000, "must be a whole number"),
        ("SLEIPNIR_PARTITIONS", "4097", "must be from 1 to 4,096"),
        ("SLEIPNIR_MAX_JOURNAL_STEPS", "0", "must be 1 or more"),
        ("SLEIPNIR_STREAM", "perhaps", "must be 1 or 0"),
        ("SLEIPNIR_LEASE_S", "inf", "must be a number of seconds, or a duration such as 500ms, 30s, 5m or 2h"),
        ("SLEIPNIR_LEASE_S", "5 min", "must be a number of seconds, or a duration such as 500ms, 30s, 5m or 2h"),
        ("SLEIPNIR_LEASE_S", "0", "must be more than 0, and at most 315,360,000 seconds"),
        ("SLEIPNIR_DRAIN_S", "-1", "must be 0 or more, and at most 315,360,000 seconds"),
        ("SLEIPNIR_LOG_FORMAT", "xml", "must be one of auto, json, console"),
    ],
)
def test_a_value_that_is_none_is_refused_by_the_name_of_its_variable(variable: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.from_env({variable: text})
    assert str(refused.value) == f"{variable}='{text[:200]}': {why}"


def test_a_name_that_no_setting_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean SLEIPNIR_LEASE_S"):
        Settings.from_env({"SLEIPNIR_LEESE_S": "45"})
    with pytest.raises(ConfigError, match="SLEIPNIR_GIVEN"):
        Settings.from_env({"SLEIPNIR_GIVEN": "x"})


def test_a_child_reads_the_same_settings() -> None:
    mine = Settings(home=Path("/h"), strict=True, replay=Path("/tape"), lease_s=2.5, key_prefix="x")
    assert Settings.from_env(mine.to_env()) == mine


def test_a_child_process_gets_explicitly_set_defaults() -> None:
    """Its environment may say otherwise."""
    mine = Settings.from_env({"SLEIPNIR_LOG_LEVEL": "debug"}, log_level="info")
    assert mine.to_env() == {"SLEIPNIR_LOG_LEVEL": "info"}
    assert Settings(lease_s=2.0).replaced(lease_s=15.0).to_env() == {"SLEIPNIR_LEASE_S": "15.0"}


def test_settings_do_not_change() -> None:
    mine = Settings()
    with pytest.raises(FrozenInstanceError):
        mine.home = Path("/")  # type: ignore[misc]
    assert mine.replaced(strict=True) != mine


def test_a_log_shows_what_is_not_at_its_default_and_no_address() -> None:
    mine = Settings(redis_url="redis://:secret@store/0", heartbeat_s=5.0, lease_s=2.5, home=Path("/h"))
    assert mine.to_log() == {"home": "/h", "lease_s": 2.5}
