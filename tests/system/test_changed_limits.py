"""Limits that people change at run time: from the command line, over HTTP and on the page of the fleet, for workers
that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import UsageError
from sleipnir.testing import ModelServer
from tests.console import console_of
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_tool_limits import GRAPH, TOOLS, log, put_off, replies

PAGE = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    limits = tmp_path / "limits.yaml"
    limits.write_text("tools:\n  slow: {max_parallel: 1}\nmodels:\n  'a:*': {requests_per_minute: 600}\n")
    prefix = f"changed-{tmp_path.name}"
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, limits=limits) as running:
        yield running


def test_workers_that_run_follow_a_limit_that_is_changed(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "busy", GRAPH, tools_py=TOOLS.replace("PLACE", str(tmp_path)))
    with ModelServer(replies) as model, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker("models", "llm", env=model.env(), ready=False)
        stack.start_worker("tools", concurrency=4, ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name)
        run = client.submit(agent, "go")
        wait_until(lambda: log(tmp_path).count("begins") == 1 and put_off(run), "one call runs, the other one waits")
        done = stack.sleipnir("limits", "set", "tool:slow", "--concurrency", "2", "--reason", "a second card")
        assert done.returncode == 0 and "a second card" in done.stderr and "limits.yaml: parallel 1" in done.stderr
        wait_until(lambda: log(tmp_path).count("begins") == 2, "the other one runs beside it")
        assert log(tmp_path).count("ends") == 0
        (tmp_path / "go").touch()
        assert run.wait(60).status == "completed"
        assert stack.sleipnir("limits", "reset", "tool:slow").returncode == 0
        assert [use.change for use in client.limits()] == [None, None]
        entries = [(each.what, each.on, each.before, each.after) for each in client.access.audit(what="limit")]
        one, two = {"max_parallel": 1}, {"max_parallel": 2}
        assert entries == [
            ("limit changed", "limit tool:slow", one, two), ("limit reset", "limit tool:slow", two, one),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "b:*", "--rate", "5"), "no limit 'b:*'; there are: 'a:*', 'tool:slow'"),
        (("reset", "b:*"), "there are: 'a:*', 'tool:slow'"),
        (("set", "a:*"), "give a bound"),
        (("set", "a:*", "--rate", "0"), "0"),
        (("set", "tool:slow", "--tokens", "5"), "calls of tools have no tokens"),
    ],
)
def test_what_cannot_be_set_is_refused(stack: Stack, words: tuple[str, ...], why: str) -> None:
    done = stack.sleipnir("limits", *words)
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr
    with stack.client() as client:
        assert list(client.access.audit()) == []


def test_a_limit_is_changed_over_http_and_on_the_page(stack: Stack) -> None:
    with stack.client() as client:
        client.access.add_user("ann", None, {"*": "operator"})
        token = client.access.create_token("ann").text
    with console_of(stack) as console, Client(f"http://127.0.0.1:{console.port}", token=token) as client:
        use = client.set_limit("a:*", requests_per_minute=30, reason="the provider asked")
        assert (use.limit.requests_per_minute, use.change.reason) == (30, "the provider asked")  # type: ignore[union-attr]
        assert use.change is not None and use.change.by.startswith("ann/")
        [shown] = [each for each in client.limits() if each.limit.pattern == "a:*"]
        assert shown.written is not None and shown.written.requests_per_minute == 600
        with pytest.raises(UsageError, match="there are"):
            client.set_limit("b:*", max_parallel=1)
        with pytest.raises(UsageError):
            client.set_limit("a:*", max_parallel=0)
        assert client.reset_limit("a:*").change is None
        assert client.reset_limit("a:*").change is None
