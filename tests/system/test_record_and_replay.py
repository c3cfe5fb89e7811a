"""`sleipnir run --record` and `--replay`: an agent with tools, when they are refused, and what a stack is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.local.home import Home, StackState
from sleipnir.local.stack import stack
from sleipnir.settings import Settings
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir.testing.tape import Tape
from tests.processes import write_agent
from tests.system.test_command_line import ASK, BAD_SH, Shell

WEATHER = """
name: weather
start: ask
nodes:
  ask:
    {type: llm, model: "openai:gpt-test", prompt: "weather: {{initial_prompt}}", tools: [forecast],
     output_schema: {type: object, properties: {days: {type: integer}}, required: [days]}, next: told, fallback: wrong}
  told: {type: end, output: "{{text}} for {{days}} days"}
  wrong: {type: script, script: wrong.sh}
"""
FORECAST = '''
from pathlib import Path


def forecast(city: str, days: int):
    """What the weather will be."""
    with Path({file!r}).open("a") as done:
        done.write(city + str(days) + " ")
    return {{"city": city, "text": "rain" * days}}
'''
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    write_agent(made.agents / "ask", ASK, bad_sh=BAD_SH)
    return made


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A folder that holds a recording."""
    Tape.record(tmp_path / "tape").keep(REQUEST, {"id": "x"})
    return tmp_path / "tape"


@pytest.mark.conformance("M03", "O01")
def test_a_run_with_tools_is_replayed_without_a_model_and_without_a_key(shell: Shell, tmp_path: Path) -> None:
    done, tape = tmp_path / "done", str(tmp_path / "new")
    write_agent(shell.agents / "weather", WEATHER, tools_py=FORECAST.format(file=str(done)), wrong_sh="exit 1\n")
    replies = [
        Reply("I shall ask.", calls=[Call("forecast", {"city": "Oslo", "days": 1})]),
        Reply(calls=[Call("forecast", {"city": "Bergen", "days": 2})]),
        "It will rain, for two days.",
        '{"text": "rain", "days": 2}',  # of the extractor
    ]
    with ModelServer(replies) as model:
        recorded = shell("run", "weather", "Norway", "--record", tape, env=model.env(key="sk-secret-of-the-record"))
    assert (recorded.returncode, recorded.stdout) == (0, "rain for 2 days\n"), recorded.stderr
    assert (done.read_text(), len(model.requests)) == ("Oslo1 Bergen2 ", 4)
    kept = [file.read_text() for file in Path(tape).glob("*.json")]
    assert len(kept) == 4
    assert not [text for text in kept if "sk-secret" in text or model.url in text]

    keyless = {name: value for name, value in shell.env.items() if not name.endswith(("_API_KEY", "_API_BASE"))}
    shell.env = keyless
    replayed = shell("run", "weather", "Norway", "--replay", tape)
    assert (replayed.returncode, replayed.stdout) == (0, "rain for 2 days\n"), replayed.stderr
    assert done.read_text() == "Oslo1 Bergen2 " * 2, "tools are run again"

    other = shell("run", "weather", "Sweden", "--replay", tape)
    assert other.returncode == 1, other.stdout
    assert "has no answer to this request; the nearest of 4 recorded requests (" in other.stderr
    assert "differs: message 1 (role user), at character " in other.stderr
    assert done.read_text() == "Oslo1 Bergen2 " * 2, "nothing was called"


def test_what_cannot_be_recorded_or_replayed_is_refused_before_anything_is_started(shell: Shell, tape: Path) -> None:
    elsewhere = str(tape.parent / "none")
    for words, env, message in (
        (("--record", str(tape)), {}, "holds a recording already"),
        (("--replay", elsewhere), {}, "there are no recorded model answers in"),
        (("--record", elsewhere, "--replay", str(tape)), {}, "SLEIPNIR_RECORD is set too"),
        (("--record", elsewhere), {"SLEIPNIR_REDIS_URL": "redis://127.0.0.1:1/0"}, "need the private stack"),
    ):
        refused = shell("run", "ask", *words, env=env)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert not shell.home.exists()


def test_a_run_that_has_not_ended_keeps_its_home_from_being_recorded(shell: Shell, tape: Path) -> None:
    waiting = shell("run", "ask", "--json")
    assert waiting.returncode == 3
    run_id = json.loads(waiting.stdout)["id"]
    refused = shell("run", "ask", "--replay", str(tape))
    assert refused.returncode == 2
    assert f"runs in this home have not ended ({run_id})" in refused.stderr
    done = shell("--home", str(tape.parent / "other"), "run", "ask", "--replay", str(tape), "--answer", "sure=yes")
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_a_stack_that_runs_already_must_do_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    home.socket.touch()

    def join(**settings: Path) -> None:
        with stack(Settings(home=tmp_path, **settings)):
            pass

    def running(tape: str | None) -> None:
        StackState(os.getpid(), workers=True, while_used=False, tape=tape).write(home)

    running(None)
    join()
    with pytest.raises(ConfigError, match=r"asks the models and keeps nothing\. Stop that one first"):
        join(record=tmp_path / "a")
    running(f"record {tmp_path / 'a'}")
    join()
    join(record=tmp_path / "a")
    for other in ({"record": tmp_path / "b"}, {"replay": tmp_path / "a"}):
        with pytest.raises(ConfigError, match=f"cannot {next(iter(other))} .*, and it was started to record .*/a"):
            join(**other)
