"""What a client over HTTP has of each method, which errors refusals are, and where a token goes. Starts no process."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir import Client
from sleipnir.client.batch import Batch
from sleipnir.client.gate_inbox import GateInbox
from sleipnir.client.gate_links import GateLinks
from sleipnir.client.hooks import Hooks
from sleipnir.client.http.batches import HttpBatch, RowRequest
from sleipnir.client.http.client import client_class
from sleipnir.client.http.connections import ServerAddress
from sleipnir.client.http.gates import HttpGateInbox, HttpGateLinks
from sleipnir.client.http.problems import RefusedResponse
from sleipnir.client.http.runs import HttpRun
from sleipnir.client.http.schedules import HttpSchedule
from sleipnir.client.http.unserved import UNSERVED
from sleipnir.client.http.webhooks import HttpHooks, HttpWebhooks
from sleipnir.client.run import Run
from sleipnir.client.schedule import Schedule
from sleipnir.client.webhooks import Webhooks
from sleipnir.errors import (
    AccessDenied,
    AnswerRefused,
    ConfigError,
    GateAnswered,
    GateClaimed,
    GateError,
    GraphError,
    NotServed,
    RunNotFound,
    ServerFailed,
    SessionBusy,
    SleipnirError,
    StoreUnavailable,
    ThreadBusy,
    TooManyQueued,
    UsageError,
)
from sleipnir.settings import Settings
from sleipnir_console.problems import TYPE_BASE, TYPES, HttpProblem

URL = "http://127.0.0.1:9"
MADE_OF_OTHERS = {
    "Client": {"stream"},
    "Run": {"answer", "answer_all", "error", "result", "status"},
    "Batch": {"run_id", "wait", "watch"},
    "Schedule": set[str](),
    "GateInbox": {"walk"},
    "GateLinks": set[str](),
    "Webhooks": set[str](),
    "Hooks": set[str](),
}
"""Methods that call others alone."""


def public(of: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(of)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


@pytest.mark.parametrize(
    ("direct", "over_http"),
    [
        (Client, client_class(Client)),
        (Run, HttpRun),
        (Batch, HttpBatch),
        (Schedule, HttpSchedule),
        (GateInbox, HttpGateInbox),
        (GateLinks, HttpGateLinks),
        (Webhooks, HttpWebhooks),
        (Hooks, HttpHooks),
    ],
    ids=lambda of: of.__name__,
)
def test_each_public_method_is_served_or_listed_with_its_reason(direct: type, over_http: type) -> None:
    """A new method needs a route, or a row in UNSERVED: inherited as it is, it would ask for a Redis."""
    name = direct.__name__
    own = {member for member in public(direct) if getattr(over_http, member) is not getattr(direct, member)}
    assert public(direct) - own == MADE_OF_OTHERS[name]
    listed = {place.partition(".")[2] for place in UNSERVED if place.startswith(f"{name}.")}
    assert listed <= public(direct) | {"store"}, "no row for what there is not"


def test_a_url_makes_a_client_of_the_same_class() -> None:
    with Client(URL) as client:
        assert isinstance(client, Client)
        assert repr(client) == f"Client('{URL}')"
    with pytest.raises(TypeError, match="URL of an HTTP API"):
        Client("redis://localhost")
    with pytest.raises(TypeError, match="are for the URL"):
        Client(Settings(), token="slp_x")


@pytest.mark.parametrize("place", sorted(place for place in UNSERVED if place.startswith("Client.")))
def test_what_has_no_route_says_so(place: str) -> None:
    member = place.partition(".")[2]
    with (
        Client(URL) as client,
        pytest.raises(NotServed, match=f"{place} does not work over HTTP: .*SLEIPNIR_REDIS_URL"),
    ):
        getattr(client, member)("x")


@pytest.mark.parametrize(
    "given", [{"cwd": Path("/tmp")}, {"namespace": "other"}], ids=["a directory of this machine", "a namespace"]
)
def test_a_parameter_that_the_api_lacks_is_refused_before_anything_is_sent(given: Any) -> None:
    with Client(URL) as client, pytest.raises(NotServed, match="submit with"):
        client.submit("agent", "x", **given)


@pytest.mark.parametrize("agent", [Path("folder"), "./folder", "."])
def test_an_agent_of_this_machine_is_refused(agent: Any) -> None:
    with Client(URL) as client, pytest.raises(NotServed, match="the server has its own agents"):
        client.submit(agent, "x")


@pytest.mark.parametrize(
    "url",
    ["http://", "http://user:password@host", "https://host/?x=1", "http://host:notaport", "http://host:99999"],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Client(url)
    assert "password@" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("http://localhost:8470", "http://localhost:8470", ""),
        ("https://runs.example.com/sleipnir/", "https://runs.example.com:443", "/sleipnir"),
        ("http://[::1]:80", "http://[::1]:80", ""),
    ],
)
def test_an_address_is_read(url: str, origin: str, path: str) -> None:
    address = ServerAddress.of(url)
    assert (address.origin, address.path) == (origin, path)


def test_a_token_goes_to_other_machines_by_tls_alone() -> None:
    with pytest.raises(ConfigError, match="not sent in clear text"):
        Client("http://runs.example.com", token="slp_secret")
    Client("https://runs.example.com", token="slp_secret").close()
    Client("http://127.0.0.1:1", token="slp_secret").close()


def test_a_token_comes_from_the_environment_or_a_file_and_is_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("slp_of_file\n")
    monkeypatch.setenv("SLEIPNIR_TOKEN_FILE", str(file))
    with Client(URL) as client:
        assert client.server._headers["Authorization"] == "Bearer slp_of_file"  # type: ignore[attr-defined]
    monkeypatch.setenv("SLEIPNIR_TOKEN", "slp_of_env")
    with Client(URL) as client:
        assert client.server._headers["Authorization"] == "Bearer slp_of_env"  # type: ignore[attr-defined]
    settings = Settings.from_env()
    assert "slp_of_env" not in repr(settings) + str(settings.to_env()) + str(settings.to_log())
    monkeypatch.delenv("SLEIPNIR_TOKEN")
    file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        Client(URL)


def problem(type_: str, **more: Any) -> SleipnirError:
    kind = TYPES[type_]
    body = json.dumps(HttpProblem(type_, "why", more).document()).encode()
    return RefusedResponse(kind.status, body, RunNotFound).error()


ERRORS = {
    "bad-request": UsageError, "invalid-request": UsageError, "refused": UsageError, "unauthenticated": AccessDenied,
    "forbidden": AccessDenied, "csrf": AccessDenied, "too-many-attempts": UsageError, "cross-origin": AccessDenied,
    "not-found": RunNotFound, "method-not-allowed": UsageError, "no-question": GateError,
    "unsupported-media-type": UsageError, "too-large": UsageError, "too-slow": StoreUnavailable,
    "internal": ServerFailed, "store-unavailable": StoreUnavailable, "too-many-streams": StoreUnavailable,
    "too-many-requests": StoreUnavailable, "run-failed": ServerFailed, "stopping": StoreUnavailable,
}  # fmt: skip


@pytest.mark.parametrize("type_", sorted(ERRORS))
def test_a_type_of_problem_is_a_class_with_the_same_message(type_: str) -> None:
    error = problem(type_)
    assert (type(error), str(error)) == (ERRORS[type_], "why")


def test_types_with_members_are_the_errors_that_have_them() -> None:
    """And no type of the API is left out of these tests."""
    busy = [problem("busy", what=what) for what in ("session", "thread", "queue")]
    assert [type(each) for each in busy] == [SessionBusy, ThreadBusy, TooManyQueued]
    refused = problem("may-not-answer", why="people", assignees=["ann"], role="approver")
    assert isinstance(refused, AnswerRefused)
    assert (refused.why, refused.assignees, refused.role) == ("people", ("ann",), "approver")
    answered = problem("already-answered", answered_by="bob", answered_at_ms=7)
    assert isinstance(answered, GateAnswered)
    assert (answered.by, answered.at_ms) == ("bob", 7)
    claimed = problem("claimed", claimed_by="bob", claimed_at_ms=7, until_ms=9)
    assert isinstance(claimed, GateClaimed)
    assert (claimed.person, claimed.at_ms, claimed.until_ms) == ("bob", 7, 9)
    wrong = problem("invalid-agent", problems=[{"level": "error", "message": "m", "file": "g.yaml", "line": 3}])
    assert isinstance(wrong, GraphError)
    assert [str(each) for each in wrong.problems] == ["g.yaml:3: m"]
    assert str(problem("unreadable-record")) == "why"
    others = {"busy", "claimed", "may-not-answer", "already-answered", "invalid-agent", "unreadable-record"}
    assert set(TYPES) == set(ERRORS) | others
    assert all(TYPE_BASE + name for name in TYPES)


@pytest.mark.parametrize(("status", "class_"), [(404, ServerFailed), (401, AccessDenied), (502, StoreUnavailable)])
def test_what_is_no_answer_of_the_api_is_no_problem_of_it(status: int, class_: type[SleipnirError]) -> None:
    error = RefusedResponse(status, b"<html>nginx</html>", RunNotFound).error()
    assert type(error) is class_
    assert "nginx" in str(error)


def test_rows_of_a_file_that_are_refused_here_keep_their_numbers() -> None:
    from sleipnir.batches.rows import BadRow, Row

    bad = BadRow("rows:1", "no")
    told: list[BadRow] = []
    media, body = RowRequest(told.append).chunks([bad, {"prompt": "a"}, Row("rows:3", "3", "b", {"n": 1})])
    assert (media, list(body)) == (
        "application/x-ndjson", [b"null\n", b'{"prompt": "a"}\n', b'{"prompt": "b", "n": 1}\n']
    )  # fmt: skip
    assert told == [bad]
    media, body = RowRequest(None).chunks([Row("r:2", "1", "a,b", {"n": "1"}, as_text=True), bad])
    assert (media, list(body)) == ("text/csv", [b"prompt,n\n", b'"a,b",1\n', b",,\n"])
    with pytest.raises(UsageError, match="no row"):
        RowRequest(None).chunks([])
