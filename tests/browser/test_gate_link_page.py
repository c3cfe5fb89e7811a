"""The page of a signed link in a real browser, as wide as a phone: without a login, answered, opened again, expired."""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from sleipnir.client.client import Client
from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.test_console import browser, driver, redis, scene  # noqa: F401 fixtures
from tests.browser.test_decisions import is_over, refund, violations

PHONE = {"width": 390, "height": 844}


def link_to(scene: Scene, run: str, person: str = "approver", *, ago_s: int = 0) -> str:
    """The address of a link on this server, made so long ago for ten minutes."""
    with Client(replace(scene.stack.settings, console_url=scene.url)) as client:
        [gate] = client.run(run).gates()
        with pytest.MonkeyPatch.context() as patched:
            now_ms = client.now_ms() - ago_s * 1000
            patched.setattr(client.store, "now_ms", lambda: now_ms)
            return client.gate_links.make(gate, person, for_s=600).url


def phone(browser: Browser, url: str, *, javascript: bool = True) -> Page:
    """A page of a browser that nobody has logged in."""
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True, java_script_enabled=javascript)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    return page


def fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "it scrolls sideways"
    assert page.evaluate("window.hacked") is None


def test_a_link_is_opened_without_a_login_and_answered_once(scene: Scene, browser: Browser) -> None:
    run = scene.submit_invoice("by link")
    url = link_to(scene, run)
    page, other = phone(browser, url), phone(browser, url)
    expect(page.locator(".md")).to_contain_text(HOSTILE)
    assert page.locator(".rail, nav").count() == 0, "it leads to no other page"
    for action in ("Claim", "Assign", "Snooze", "Comment without an answer"):
        assert page.get_by_text(action, exact=True).count() == 0
    assert violations(page) == []
    fits(page)
    expect(page.locator(".jump")).to_be_in_viewport()
    page.locator(".jump").tap()
    first = page.locator(".way-on", has_text="approve").first
    expect(first).to_be_in_viewport()
    box = first.bounding_box()
    assert box is not None and box["height"] >= 40, "large enough for a finger"
    other.locator("#comment").fill("typed before")
    page.locator("#comment").fill("on the road")
    first.tap()
    expect(page.locator("#decision-banner")).to_contain_text("approver@127.0.0.1 (link) answered approve")
    expect(page.get_by_text("You may close this page.")).to_be_visible()
    assert page.url == url and violations(page) == []
    fits(page)
    is_over(scene, run, "booked")
    [step] = [step for step in scene.client.run(run).history() if step.answer is not None]
    assert (step.by, step.reason) == ("approver@127.0.0.1 (link)", "on the road")

    expect(other.locator("#decision-banner")).to_contain_text("answered approve", timeout=30_000)
    expect(other.locator(".way-on").first).to_be_disabled()
    expect(other.locator("#comment")).to_have_value("typed before")
    again = phone(browser, url)
    expect(again.locator("#decision-banner")).to_contain_text("answered approve")
    assert again.locator("form.answer").count() == 0
    page.goto(f"{scene.url}/runs/{run}")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_an_answer_that_comes_second_is_not_taken_and_says_so(scene: Scene, browser: Browser) -> None:
    run = scene.submit_invoice("late by link")
    page = phone(browser, link_to(scene, run), javascript=False)
    scene.client.run(run).answer("reject")
    page.locator("#comment").fill("please book it")
    page.locator(".way-on", has_text="approve").first.tap()
    expect(page.get_by_text("Your answer was not taken.")).to_be_visible()
    expect(page.get_by_label("Your comment")).to_have_text("please book it")
    is_over(scene, run, "not booked")


def test_a_form_is_filled_in_on_a_phone(scene: Scene, browser: Browser) -> None:
    run = refund(scene)
    page = phone(browser, link_to(scene, run))
    page.get_by_role("textbox", name="Amount").fill("a lot")
    page.get_by_role("button", name="Send the answer").tap()
    expect(page.get_by_text("'a lot' is no number")).to_be_visible()
    assert violations(page) == []
    fits(page)
    page.get_by_role("textbox", name="Amount").fill("12")
    page.get_by_role("button", name="Send the answer").tap()
    expect(page.locator("#decision-banner")).to_contain_text("(link) answered")
    is_over(scene, run, "refunded 12")


def test_links_that_open_nothing_say_why(scene: Scene, browser: Browser) -> None:
    run = scene.runs["asking"]
    expired = phone(browser, link_to(scene, run, ago_s=3600))
    expect(expired.locator("main")).to_contain_text("This link has expired.")
    expect(expired.locator("main")).to_contain_text(scene.client.by)
    assert violations(expired) == []
    fits(expired)
    broken = phone(browser, link_to(scene, run)[:-3] + "abc")
    expect(broken.locator("main")).to_contain_text("damaged")
    viewer = phone(browser, link_to(scene, run, "viewer"))
    expect(viewer.get_by_text("You cannot answer this.")).to_be_visible()
    assert viewer.locator(".way-on").count() == 0
    assert urlsplit(viewer.url).path.startswith("/d/")
    assert scene.client.run(run).status == "waiting"
