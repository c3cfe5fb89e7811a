"""Failpoints by themselves; tests/system/test_failpoints.py dies at them."""

from __future__ import annotations

import pytest

from sleipnir import failpoints
from sleipnir.errors import ConfigError
from sleipnir.store.scripts import LuaScript


def test_without_the_variable_nothing_is_wrapped() -> None:
    def function() -> None: ...

    assert not failpoints.ACTIVE
    assert failpoints.around("point")(function) is function
    assert not hasattr(LuaScript.__call__, "__wrapped__")


def test_a_failpoint_acts_once_at_the_time_it_names() -> None:
    point = failpoints.parse("own.after=raise@3")["own.after"]
    point.pass_by()
    point.pass_by()
    with pytest.raises(ConnectionError, match=r"failpoint own\.after"):
        point.pass_by()
    point.pass_by()


@pytest.mark.parametrize("text", ["claim=kill", "claim.during=kill", "claim.before=explode", "claim.before=kill@0"])
def test_a_name_that_is_no_failpoint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a failpoint"):
        failpoints.parse(text)
