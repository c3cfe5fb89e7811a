"""The incident switch in a real browser: a person pauses, sees what waits and why, and lets it go on in parts.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    AXE,
    VIOLATIONS,
    Open,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.processes import RedisServer
from tests.waiting import wait_until

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def scope(page: Page, name: str) -> Locator:
    return page.locator("section.scope", has=page.get_by_role("heading", name=name))


def is_accessible(page: Page) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": AXE})
    found = session.send("Runtime.evaluate", {"expression": VIOLATIONS, "awaitPromise": True, "returnByValue": True})
    assert found["result"]["value"] == []


def test_a_namespace_is_paused_and_goes_on_in_parts(scene: Scene, open_page: Open) -> None:
    page, other = open_page("/incident", user="operator"), open_page("/runs", user="viewer", color_scheme="dark")
    here = scope(page, "Namespace default")
    here.get_by_label("Reason, shown with each run that waits").fill(" ")
    here.get_by_role("button", name="Pause this namespace").click()
    expect(page.locator("#trouble")).to_contain_text("Say why")
    here.get_by_label("Reason, shown with each run that waits").fill("wrong prices " + HOSTILE)
    here.get_by_role("button", name="Pause this namespace").click()
    try:
        expect(page.locator("#holds")).to_contain_text("Namespace default is paused")
        expect(here).to_contain_text("wrong prices <script>")
        expect(other.locator("#holds")).to_contain_text("wrong prices", timeout=30_000)
        run = scene.client.submit(scene.folder / "price-watch")
        booked = scene.client.submit(scene.folder / "nightly-report")
        wait_until(lambda: [v.reason.code for v in run.info().visits] == ["paused"], "it waits", 60)
        other.goto(f"{scene.url}/runs/{run.id}")
        expect(other.locator("main")).to_contain_text("wrong prices")
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            is_accessible(page)
        page.emulate_media(color_scheme="light")
        here.get_by_label("Agents whose runs go on").fill("nightly-report")
        here.get_by_role("button", name="Resume these agents").click()
        expect(here).to_contain_text("agent nightly-report")
        assert booked.wait(120).status == "completed"
        assert not run.info().is_final
        expect(other.locator("#holds")).to_contain_text("part of it goes on", timeout=30_000)
        here.get_by_label("Runs a second that go on").fill("many")
        here.get_by_role("button", name="Resume at this rate").click()
        expect(page.locator("#trouble")).to_contain_text("rate is a number")
        here.get_by_label("Runs a second that go on").fill("2")
        picture(page, "incident")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        picture(page, "incident-390")
        page.set_viewport_size({"width": 1440, "height": 900})
        here.get_by_role("button", name="Resume at this rate").click()
        expect(here).to_contain_text("2 runs a second")
        assert run.wait(120).status == "failed"
    finally:
        page.goto(f"{scene.url}/incident")
        here.get_by_role("button", name="Resume everything").click()
        wait_until(lambda: not scene.client.holds(), "the hold has ended", 60)
    expect(page.locator("#holds")).to_be_empty(timeout=30_000)
    expect(other.locator("#holds")).to_be_empty(timeout=30_000)
    [paused, *_] = [each for each in scene.client.access.audit() if each.what == "namespace paused"]
    assert (paused.by.split("@")[0], paused.reason) == ("operator", "wrong prices " + HOSTILE)


def test_the_deployment_is_for_operators_of_all_namespaces(scene: Scene, open_page: Open) -> None:
    page = open_page("/incident", user="admin", java_script_enabled=False)
    everything = scope(page, "The deployment")
    everything.get_by_label("Reason, shown with each run that waits").fill("the erp is down")
    everything.get_by_role("button", name="Pause everything").click()
    try:
        expect(page.locator("#holds")).to_contain_text("Everything is paused")
        assert scene.client.held() is not None
    finally:
        everything.get_by_role("button", name="Resume everything").click()
        expect(page.locator("#holds")).to_be_empty()
    assert scene.client.holds() == []
    viewer = open_page("/incident", user="viewer")
    expect(viewer.get_by_text("An operator can pause it.")).to_be_visible()
    assert viewer.get_by_role("button", name="Pause").count() == 0


@pytest.mark.parametrize("path", ["/incident"])
def test_what_is_typed_stays_while_redis_is_away(
    scene: Scene,
    redis: RedisServer,
    open_page: Open,
    path: str,
) -> None:
    page, other = open_page(path), open_page("/fleet")
    reason = scope(page, "Namespace default").get_by_label("Reason, shown with each run that waits")
    reason.fill("wrong prices")
    redis.kill()
    try:
        scope(page, "Namespace default").get_by_role("button", name="Pause this namespace").click()
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        expect(reason).to_have_value("wrong prices")
        other.goto(scene.url + path)
        expect(other.get_by_role("heading", name="Redis does not answer")).to_be_visible(timeout=60_000)
    finally:
        redis.start()
    expect(page.locator("#trouble")).to_be_empty(timeout=60_000)
    expect(reason).to_have_value("wrong prices")
    expect(other.get_by_role("heading", name="Incident switch")).to_be_visible(timeout=60_000)
    assert scene.client.holds() == []
