"""Threads in a real browser: from the list to a thread, its turns, its conversation, and its end.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.console_scene import Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    browser,
    driver,
    open_page,
    redis,
    scene,
)
from tests.browser.test_webhook_pages import act, fits
from tests.processes import RedisServer


def test_a_thread_leads_to_its_turns_and_to_its_conversation(scene: Scene, open_page: Open) -> None:
    page = open_page("/threads?agent=invoice-intake&limit=1", user="operator")
    thread = scene.client.thread("invoice-intake", "monday")
    assert thread is not None
    expect(page.get_by_role("row", name=re.compile("monday"))).to_contain_text("Completed")
    page.get_by_role("link", name="monday").click()
    expect(page.locator("#turns tbody tr")).to_have_count(2)
    expect(page.locator("#turns tbody tr").first).to_contain_text(thread.run)
    fits(page, "thread")
    page.get_by_role("link", name="Playground").click()
    expect(page).to_have_url(f"{scene.url}/playground/invoice-intake/monday")
    page.goto(f"{scene.url}/threads/invoice-intake/monday")
    page.locator("#turns").get_by_role("link", name=thread.run).click()
    expect(page).to_have_url(f"{scene.url}/runs/{thread.run}")
    page.goto(f"{scene.url}/threads")
    fits(page, "threads")
    page.get_by_placeholder("Agent").fill("nobody")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("has no threads.")).to_be_visible()
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_text("There are no sessions.")).to_be_visible()


def test_threads_have_pages_and_are_removed(scene: Scene, open_page: Open) -> None:
    names = [f"page-{number}" for number in range(3)]
    for name in names:
        scene.client.submit(scene.folder / "nightly-report", thread=name).wait(120)
    page, seen = open_page("/threads?agent=nightly-report&limit=2", user="operator"), []
    seen += page.locator("tbody [data-row]").all_inner_texts()
    page.get_by_role("link", name="More", exact=True).last.click()
    expect(page.get_by_role("link", name="First", exact=True)).to_be_visible()
    seen += page.locator("tbody [data-row]").all_inner_texts()
    assert seen == names[::-1]
    page.goto(f"{scene.url}/threads/nightly-report/page-0")
    act(page, "Remove")
    expect(page).to_have_url(f"{scene.url}/threads")
    assert scene.client.thread("nightly-report", "page-0") is None
    viewer = open_page("/threads/nightly-report/page-1", user="viewer")
    expect(viewer.get_by_role("heading", name="page-1")).to_be_visible()
    expect(viewer.locator("details.act")).to_have_count(0)


def test_threads_come_back_with_redis(scene: Scene, redis: RedisServer, open_page: Open) -> None:
    page, other = open_page("/threads"), open_page("/threads/invoice-intake/monday")
    redis.kill()
    try:
        for each in (page, other):
            expect(each.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        expect(page.get_by_role("link", name="monday")).to_be_visible()
    finally:
        redis.start()
    for each in (page, other):
        expect(each.locator("#trouble")).to_be_empty(timeout=60_000)
