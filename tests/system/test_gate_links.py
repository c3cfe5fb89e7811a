"""Signed links: one question, one person, no login; and all the ways in which one opens nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode, urlsplit

import pytest

from sleipnir.access.records import EVERY
from sleipnir.client.client import Client
from sleipnir.client.run import Run
from sleipnir.errors import UsageError
from sleipnir.runs.views import GateInfo
from tests.console import Answer, Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKS = """
name: asks
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: "Pay **it**?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: done}
"""
FOR_BOB = ASKS.replace("name: asks", "name: forbob").replace("type: approval,", "type: approval, assignees: [bob],")


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("links")
    write_agent(home / "agents" / "asks", ASKS)
    write_agent(home / "agents" / "forbob", FOR_BOB)
    settings = {"log_level": "info", "log_format": "json", "console_url": "https://runs.example"}
    with Stack(redis_server, home, key_prefix="gatelinks", agents_dir=home / "agents", **settings) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as found:
        for name, roles in {
            "ann": {"default": "approver"},
            "bob": {"default": "approver"},
            "vic": {"default": "viewer"},
            "far": {"theirs": "admin"},
            "root": {EVERY: "admin"},
        }.items():
            found.access.add_user(name, None, roles)
        yield found


@pytest.fixture(scope="module")
def console(stack: Stack, client: Client) -> Iterator[Console]:
    stack.start_scheduler()
    with console_of(stack) as running:
        yield running


def asking(client: Client, agent: str = "asks") -> Run:
    run = client.submit(agent, "x")
    wait_until(run.gates, "it asks")
    return run


def path_of(client: Client, run: Run, person: str = "ann") -> str:
    [gate] = run.gates()
    made = client.gate_links.make(gate, person)
    assert made.url.startswith("https://runs.example/d/")
    return urlsplit(made.url).path


def look(console: Console, path: str) -> Answer:
    return console.request("GET", path, base="")


def send(console: Console, path: str, **fields: str) -> Answer:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return console.request("POST", f"{path}/answer", None, form, raw=urlencode(fields).encode(), base="")


def test_a_link_shows_its_question_and_takes_the_answer_of_its_person(
    console: Console, client: Client, stack: Stack
) -> None:
    run = asking(client)
    path = path_of(client, run)
    page = look(console, path)
    text = page.body.decode()
    assert page.status == 200 and "Pay <strong>it</strong>?" in text
    assert page.headers["Referrer-Policy"] == "strict-origin" and page.headers["Cache-Control"] == "no-store"
    assert 'class="rail"' not in text and "/inbox" not in text and "/claim" not in text
    assert f'action="{path}/answer"' in text
    other = asking(client)
    [gate] = other.gates()
    sent = send(console, path, way="yes", comment="seen", also=f"{other.id}/{gate.seq}.{gate.attempt}", next="/inbox")
    assert (sent.status, sent.headers["Location"]) == (303, path)
    assert run.wait(30).status == "completed"
    [step] = [step for step in run.history() if step.answer is not None]
    assert step.by is not None and step.by.startswith("ann@127.0.0.1 (link)") and step.answer == "yes"
    assert other.status == "waiting", "a link is for its question alone"
    after = look(console, path)
    assert after.status == 200 and "answered" in after.body.decode().lower()
    token = path.removeprefix("/d/")
    log = stack.log(console.name)
    assert '"path": "/d/[token]"' in log and token not in log


@pytest.mark.parametrize("login", [None, "root"])
def test_a_link_opens_nothing_else(console: Console, client: Client, login: str | None) -> None:
    """Neither alone, nor beside the login of an admin, whose rights do not count for the page of the link."""
    run = asking(client, "forbob")
    path = path_of(client, run)
    headers = {} if login is None else {"Authorization": f"Bearer {client.access.create_token(login).text}"}
    text = console.request("GET", path, None, headers, base="").body.decode()
    assert "You cannot answer this" in text and "bob" in text
    refused = send(console, path, way="yes")
    assert refused.status == 403 and run.status == "waiting"
    token = path.removeprefix("/d/")
    for credentials in ({"Authorization": f"Bearer {token}"}, {"Cookie": f"sleipnir_login=ann:{token}"}):
        assert console.request("GET", f"/runs/{run.id}", None, credentials).status == 401
    assert console.request("POST", f"{path}/claim", None, base="").status in (404, 405)
    bobs = path_of(client, run, "bob")
    assert send(console, bobs, way="no").status == 303
    assert run.wait(30).status == "completed"


def test_links_that_open_nothing_say_whom_to_ask(console: Console, client: Client, stack: Stack) -> None:
    run = asking(client)
    [gate] = run.gates()
    path = path_of(client, run)
    damaged = look(console, path[:-3] + "abc")
    assert damaged.status == 404 and b"damaged" in damaged.body and b"admin" in damaged.body
    assert look(console, "/d/x").status == 404

    viewer = path_of(client, run, "vic")
    assert look(console, viewer).status == 200
    assert send(console, viewer, way="yes").status == 403

    client.access.set_disabled("ann", True)
    gone = look(console, path)
    assert gone.status == 403 and client.by.encode() in gone.body
    assert send(console, path, way="yes").status == 403
    with pytest.raises(UsageError, match="is disabled"):
        client.gate_links.make(gate, "ann")
    client.access.set_disabled("ann", False)
    assert look(console, path).status == 200
    for nobody in ("far", "who"):
        with pytest.raises(UsageError, match="no user"):
            client.gate_links.make(gate, nobody)
    assert run.status == "waiting"

    key = stack.settings.webhook_key_file
    old = key.read_text()
    key.write_text("ab" * 32 + "\n" + old)
    assert look(console, path).status == 200, "a new key before the old one"
    key.write_text("ab" * 32 + "\n")
    assert look(console, path).status == 404, "the old key is gone"
    assert look(console, path_of(client, run)).status == 200
    key.write_text(old)


def test_a_link_expires(console: Console, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asking(client)
    [gate] = run.gates()
    now_ms = client.now_ms()
    with monkeypatch.context() as patched:
        patched.setattr(client.store, "now_ms", lambda: now_ms - 3_600_000)
        made = client.gate_links.make(gate, "ann", for_s=60)
    expired = look(console, urlsplit(made.url).path)
    assert expired.status == 410 and b"expired" in expired.body and client.by.encode() in expired.body
    assert send(console, urlsplit(made.url).path, way="yes").status == 410
    assert run.status == "waiting"


def test_admins_make_links_over_http_and_on_the_command_line(console: Console, client: Client, stack: Stack) -> None:
    run = asking(client)
    [gate] = run.gates()
    token = client.access.create_token("root").text
    made = console.request(
        "POST", f"/gates/{run.id}/{gate.seq}/link", {"person": "ann"}, {"Authorization": f"Bearer {token}"}
    )
    assert made.status == 201 and made.data["person"] == "ann"
    assert look(console, urlsplit(made.data["url"]).path).status == 200
    printed = stack.sleipnir("link", run.id, "--person", "ann", "--reason", "on the road")
    assert printed.returncode == 0
    assert look(console, urlsplit(printed.stdout.strip()).path).status == 200
    entries = [entry for entry in client.access.audit() if entry.on == f"run {run.id}/{gate.seq}"]
    assert [(entry.what, entry.reason) for entry in entries][-1] == ("link made", "on the road")
    assert "/d/" not in str(entries)


def test_the_same_link_asked_for_again_is_one_change(console: Console, client: Client, stack: Stack) -> None:
    run = asking(client)
    [gate] = run.gates()
    headers = {"Authorization": f"Bearer {client.access.create_token('root').text}"}

    def urls(*asked: dict[str, object]) -> list[str]:
        path = f"/gates/{run.id}/{gate.seq}/link"
        return [console.request("POST", path, body, headers).data["url"] for body in asked]

    ann = {"person": "ann", "reason": "on the road"}
    first, again = urls(ann, ann)
    assert first == again
    others = urls({"person": "bob"}, {**ann, "for_s": 3600}, {**ann, "reason": "another"})
    assert len({first, *others}) == 4
    with Client(
        f"http://127.0.0.1:{console.port}", token=headers["Authorization"].removeprefix("Bearer ")
    ) as over_http:
        assert over_http.gate_links.make(gate, "ann", reason="on the road").url == first
        with pytest.raises(UsageError, match="is no user"):
            over_http.gate_links.make(gate, "who")
    entries = [entry for entry in client.access.audit() if entry.on == f"run {run.id}/{gate.seq}"]
    assert [(entry.after["person"], entry.reason) for entry in entries] == [
        ("ann", "on the road"), ("bob", None), ("ann", "on the road"), ("ann", "another"),
    ]  # fmt: skip
    now_ms, links = client.now_ms(), client.gate_links
    with pytest.MonkeyPatch.context() as patched:
        made = [links.make(gate, "ann").until_ms]
        for minutes in (9, 11):
            patched.setattr(client.store, "now_ms", lambda later=minutes: now_ms + later * 60_000)
            made.append(links.make(gate, "ann").until_ms)
    assert made[0] == made[1] < made[2], "later it is a new link, which lasts longer"
    with ThreadPoolExecutor(8) as pool:
        at_once = set(pool.map(lambda _: stack_link(stack, gate), range(8)))
    assert len(at_once) == 1
    entries = [entry for entry in client.access.audit() if entry.on == f"run {run.id}/{gate.seq}"]
    assert len(entries) == 7


def stack_link(stack: Stack, gate: GateInfo) -> str:
    with stack.client() as other:
        return other.gate_links.make(gate, "bob", for_s=7200).url
