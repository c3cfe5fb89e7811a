"""Webhooks and hooks in a real browser: an admin adds them, keeps the secret that is shown once, sees what is
delivered, sends it again, and removes them.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.browser.test_incidents import THEMES, is_accessible
from tests.processes import RedisServer
from tests.receiver import Receiver, receiver, status
from tests.waiting import wait_until


@pytest.fixture
def target() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def sender(scene: Scene) -> Iterator[None]:
    """A process that sends webhooks to this machine."""
    env = {"SLEIPNIR_WEBHOOK_NETWORKS": "127.0.0.0/8", "SLEIPNIR_WEBHOOK_TIMEOUT_S": "2"}
    scene.stack.start("sender", [sys.executable, "-m", "sleipnir.webhook_sender"], scene.stack.environment() | env)
    yield
    scene.stack.kill("sender")


def act(page: Page, label: str, **fields: str) -> None:
    action = page.locator("details.act", has=page.locator("summary", has_text=label))
    action.locator("summary").click()
    for name, value in fields.items():
        action.locator(f"[name={name}]").fill(value)
    action.get_by_role("button", name=label).click()


def fits(page: Page, name: str) -> None:
    """It is accessible in both themes, and as narrow as a phone; two pictures."""
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            is_accessible(page)
            picture(page, f"{name}-{theme}-{width}" if (theme, width) != ("light", 1440) else name)
    page.emulate_media(color_scheme="light")


@pytest.mark.usefixtures("sender")
def test_an_admin_adds_a_webhook_and_sends_a_delivery_again(scene: Scene, open_page: Open, target: Receiver) -> None:
    page = open_page("/webhooks")
    expect(page.get_by_text("There are no webhooks.")).to_be_visible()
    page.get_by_role("link", name="New webhook").first.click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Address").fill(target.url + "/?" + "x" * 40)
    page.get_by_label("Only of this agent").fill("nightly-report")
    page.get_by_role("button", name="Add webhook").click()
    expect(page.locator("#trouble")).to_contain_text("It was not added.")
    expect(page.get_by_label("Name", exact=True)).to_have_value("orders")
    page.get_by_label("A run has ended").check()
    fits(page, "new-webhook")
    target.answer = status(500)
    page.get_by_role("button", name="Add webhook").click()
    secret = page.get_by_label("The secret").inner_text()
    assert secret.startswith("whsec_")
    run = scene.client.submit(scene.folder / "nightly-report", HOSTILE)
    assert run.wait(120).status == "completed"
    page.goto(f"{scene.url}/webhooks/orders")
    assert secret not in page.content()
    expect(page.locator("#deliveries")).to_contain_text(run.id, timeout=60_000)
    expect(page.locator("#deliveries")).to_contain_text("500", timeout=60_000)
    expect(page.locator("#state")).to_contain_text("Fails", timeout=30_000)
    target.answer = status(204)
    expect(page.locator("#deliveries")).to_contain_text("Delivered", timeout=120_000)
    page.get_by_text("The body of the first one").click()
    expect(page.get_by_label("The body of the first delivery")).to_contain_text(run.id)
    fits(page, "webhook")
    before = len(target.got)
    page.get_by_role("button", name=re.compile("Send again ?: msg_")).click()
    wait_until(lambda: len(target.got) > before, "it is sent again", 60)
    assert target.got[-1].body == target.got[0].body
    page.goto(f"{scene.url}/webhooks/orders")
    act(page, "Pause", reason="it moves " + HOSTILE)
    expect(page.locator("#state")).to_contain_text("Paused")
    act(page, "Resume")
    expect(page.locator("#state")).to_contain_text("Active")
    page.goto(f"{scene.url}/webhooks")
    expect(page.get_by_role("row", name=re.compile("orders"))).to_contain_text("Active")
    fits(page, "webhooks")
    page.get_by_role("link", name="orders", exact=True).click()
    act(page, "Remove")
    expect(page.get_by_text("There are no webhooks.")).to_be_visible()
    assert scene.client.webhooks.all() == []
    viewer = open_page("/webhooks", user="operator")
    expect(viewer.get_by_role("heading", name="You may not do this")).to_be_visible()


def test_an_admin_adds_a_hook_that_starts_runs(scene: Scene, open_page: Open) -> None:
    page = open_page("/incoming")
    page.get_by_role("link", name="New hook").first.click()
    page.get_by_label("Name", exact=True).fill("issues")
    page.get_by_label("How a request proves who has made it").select_option("token")
    page.get_by_label("Starts a run of this agent").fill("nightly-report")
    page.get_by_role("button", name="Add hook").click()
    expect(page.locator("#trouble")).to_contain_text("say how a request is known")
    page.get_by_label("Or by this field of the body").fill("issue.id")
    page.get_by_label("Inputs").fill("title = {{body.issue.title}} " + HOSTILE)
    fits(page, "new-hook")
    page.get_by_role("button", name="Add hook").click()
    secret = page.get_by_label("The secret").inner_text()
    fits(page, "hook")
    shown = page.get_by_label("A request to the hook").inner_text()
    assert "authorization: Bearer $SECRET" in shown and '{"issue": {"id": "..."}}' in shown

    def ask(given: str) -> Any:
        body = json.dumps({"issue": {"id": 7, "title": "broken"}}).encode()
        headers = {"Authorization": f"Bearer {given}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{scene.url}/hooks/issues", body, headers, method="POST")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    assert scene.client.run(ask(secret)["id"]).wait(120).status == "completed"
    page.goto(f"{scene.url}/incoming/issues")
    assert secret not in page.content()
    expect(page.get_by_role("group", name="Inputs")).to_contain_text("<script>")
    act(page, "New secret", overlap_s="many")
    expect(page.locator("#trouble")).to_contain_text("overlap_s is a number")
    page.goto(f"{scene.url}/incoming/issues")
    act(page, "New secret", overlap_s="60")
    assert page.get_by_label("The secret").inner_text() not in ("", secret)
    page.goto(f"{scene.url}/incoming")
    expect(page.get_by_role("row", name=re.compile("issues"))).to_contain_text("starts a run of nightly-report")
    fits(page, "hooks")
    page.get_by_role("link", name="issues", exact=True).click()
    act(page, "Remove")
    expect(page.get_by_text("There are no hooks.")).to_be_visible()
    assert scene.client.hooks.all() == []


@pytest.mark.parametrize(("path", "button"), [("/new-webhook", "Add webhook"), ("/new-hook", "Add hook")])
def test_what_is_typed_stays_while_redis_is_away(
    scene: Scene, redis: RedisServer, open_page: Open, path: str, button: str
) -> None:
    page, other = open_page(path), open_page("/menu")
    page.locator("[name=name]").fill("kept")
    for required in page.locator("input[required]").all():
        required.fill("https://example.com/kept" if required.get_attribute("name") == "url" else "kept")
    redis.kill()
    try:
        page.get_by_role("button", name=button).click()
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        expect(page.locator("[name=name]")).to_have_value("kept")
        other.goto(scene.url + path)
        expect(other.get_by_role("heading", name="Redis does not answer")).to_be_visible(timeout=60_000)
    finally:
        redis.start()
    expect(other.get_by_role("button", name=button)).to_be_visible(timeout=60_000)
    page.get_by_role("button", name=button).click()
    expect(page.locator("#trouble")).to_contain_text("It was not added.", timeout=60_000)
    expect(page.locator("[name=name]")).to_have_value("kept")


def test_webhooks_and_hooks_come_back_with_redis(scene: Scene, redis: RedisServer, open_page: Open) -> None:
    scene.client.webhooks.add("away", "https://example.com/away", on=["run_ended"])
    scene.client.hooks.add("away", agent="nightly-report")
    live = [open_page(path) for path in ("/webhooks", "/webhooks/away")]
    asked = {path: open_page("/menu") for path in ("/incoming", "/incoming/away")}
    redis.kill()
    try:
        for page in live:
            expect(page.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        expect(live[0].get_by_role("link", name="away", exact=True)).to_be_visible()
        for path, page in asked.items():
            page.goto(scene.url + path)
            expect(page.get_by_role("heading", name="Redis does not answer")).to_be_visible(timeout=60_000)
    finally:
        redis.start()
    for page in live:
        expect(page.locator("#trouble")).to_be_empty(timeout=60_000)
    for page, heading in zip(asked.values(), ("Hooks", "away"), strict=True):
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible(timeout=60_000)
    scene.client.webhooks.remove("away")
    scene.client.hooks.remove("away")


def test_the_body_of_a_delivery_covers_nothing_on_a_phone(scene: Scene, open_page: Open) -> None:
    scene.client.webhooks.add("narrow", "https://example.com/narrow", on=["run_ended"])
    page = open_page("/webhooks/narrow", viewport={"width": 390, "height": 844})
    page.get_by_text("The body of the first one").click()
    page.get_by_text("curl to send one again").click(timeout=5_000)
    expect(page.get_by_text("webhook-deliveries/ID/redeliver")).to_be_visible()
    scene.client.webhooks.remove("narrow")
