"""Limits that people change at run time: from the command line, over HTTP and on the page of the fleet, for workers
that run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import UsageError
from sleipnir.testing import ModelServer
from tests.console import Answer, console_of
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


def test_the_command_the_api_and_the_page_say_the_same(stack: Stack) -> None:
    """What was changed by any of them, what limits.yaml says, which call that is, and why one is refused."""
    with stack.client() as client:
        client.access.add_user("ann", None, {"*": "operator"})
        token = client.access.create_token("ann").text

    with console_of(stack) as console:
        bearer = {"Authorization": f"Bearer {token}"}

        def post(path: str, body: Any) -> Answer:
            return console.request("POST", path, body, bearer)

        def form(**fields: str) -> Answer:
            return console.request(
                "POST", "/fleet/limits/set", None, bearer | PAGE, raw=urlencode(fields).encode(), base=""
            )

        def page() -> str:
            return " ".join(unescape(console.request("GET", "/fleet", None, bearer, base="").body.decode()).split())

        def agree(by: str, **bounds: int) -> None:
            shown = {each["pattern"]: each for each in json.loads(stack.sleipnir("limits", "--json").stdout)}["a:*"]
            [told] = [
                each
                for each in console.request("GET", "/limits", None, bearer).data
                if each["limit"]["pattern"] == "a:*"
            ]
            assert {name: shown[name] for name in told["limit"]} == told["limit"]
            assert (shown["change"], shown["written"]) == (told["change"], told["written"])
            assert {name: shown["change"][name] for name in bounds} == bounds and shown["change"]["by"].startswith(by)
            table, html = stack.sleipnir("limits"), page()
            assert f"by {shown['change']['by']}: too many; limits.yaml: rpm 600" in table.stderr
            assert html.count(f"changed by <bdi>{shown['change']['by']}</bdi>") == len(bounds)
            assert ": <bdi>too many</bdi>; limits.yaml: 600" in html

        assert stack.sleipnir("limits", "set", "a:*", "--rate", "50", "--reason", "too many").returncode == 0
        agree("", requests_per_minute=50)
        body = {"pattern": "a:*", "requests_per_minute": 40, "max_parallel": 3, "reason": "too many"}
        assert post("/limits/set", body).status == 200
        agree("ann/", requests_per_minute=40, max_parallel=3)
        assert '--json \'{"max_parallel": 3, "pattern": "a:*", "requests_per_minute": 40}\'' in page()
        sent = form(pattern="a:*", bound="requests_per_minute", value="30", reason="too many")
        assert sent.status == 303
        agree("ann/", requests_per_minute=30, max_parallel=3)

        with stack.client() as client:
            entries = list(client.access.audit(what="limit changed"))
        assert [(entry.before, entry.after, entry.reason) for entry in entries] == [
            ({"requests_per_minute": 600}, {"requests_per_minute": 50}, "too many"),
            ({"requests_per_minute": 50}, {"requests_per_minute": 40, "max_parallel": 3}, "too many"),
            (
                {"requests_per_minute": 40, "max_parallel": 3}, {"requests_per_minute": 30, "max_parallel": 3},
                "too many",
            ),
        ]  # fmt: skip

        why = "no limit 'b:*'; there are: 'a:*', 'tool:slow'"
        assert why in stack.sleipnir("limits", "set", "b:*", "--rate", "5").stderr
        assert post("/limits/set", {"pattern": "b:*", "requests_per_minute": 5}).data["detail"] == why
        refused = form(pattern="b:*", bound="requests_per_minute", value="5")
        assert refused.status == 422 and why in unescape(refused.body.decode())
