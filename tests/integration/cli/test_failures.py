"""A Redis that is down, as each command reports it."""

import pytest

from sleipnir.cli import main


@pytest.mark.parametrize(
    "command",
    [["ps"], ["gates"], ["show", "abcdef"], ["run", "hello", "x"], ["submit", "hello", "x"], ["wait", "abcdef"]],
)
def test_a_redis_that_is_down_is_named_without_its_password(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEIPNIR_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    assert main(command) == 1
    shown = capsys.readouterr().err
    assert "error: " in shown and "127.0.0.1:1/0" in shown and "sleipnir doctor" in shown
    assert "hunter2" not in shown and "Traceback" not in shown
