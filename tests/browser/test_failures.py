"""The overview and failures in a real browser: from what needs a person to what failed alike, a note on what was done
about it, and a job that retries its runs.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.console_scene import Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)


def test_the_tables_of_a_narrow_overview_fit(open_page: Open) -> None:
    page = open_page("/", viewport={"width": 390, "height": 844})
    expect(page.locator("#queues tbody tr").first).to_be_visible()
    wider = "found => found.filter(each => each.scrollWidth > each.clientWidth).map(each => each.ariaLabel)"
    assert page.locator("main .tw").evaluate_all(wider) == []
    picture(page, "overview-390")


def test_the_overview_leads_to_what_needs_a_person(scene: Scene, open_page: Open) -> None:
    page = open_page("/", user="operator")
    expect(page.locator("#figs")).to_contain_text("Visits a second")
    expect(page.locator("#needs")).to_contain_text("ConnectionRefusedError")
    picture(page, "overview")
    page.locator("#needs li", has_text="ConnectionRefusedError").get_by_role("link").click()
    expect(page.locator("#group-facts")).to_contain_text("3")


@pytest.mark.parametrize("javascript", [True, False])
def test_a_group_of_failures_is_discarded_with_a_note_and_reopened(
    scene: Scene, open_page: Open, javascript: bool
) -> None:
    page = open_page("/failures?agent=price-watch", user="operator", java_script_enabled=javascript)
    page.locator("tbody a[data-row]").first.click()
    expect(page.locator("#group-facts")).to_contain_text("3")
    page.locator("summary", has_text="Discard").click()
    page.get_by_label("What was done").fill("the shop <b>was</b> closed")
    if javascript:
        picture(page, "failures")
    page.locator("form.card").get_by_role("button", name="Discard").click()
    expect(page.locator("#group-note")).to_contain_text("the shop <b>was</b> closed")
    group = page.url
    page.goto(f"{scene.url}/")
    expect(page.locator("#needs")).not_to_contain_text("ConnectionRefusedError")
    page.goto(group)
    page.locator("summary", has_text="Reopen").click()
    page.locator("form.card").get_by_role("button", name="Reopen").click()
    expect(page.locator("#group-note")).to_have_count(0)


def test_the_runs_of_a_group_are_counted_before_a_job_asks_them(scene: Scene, open_page: Open) -> None:
    page = open_page("/failures?agent=price-watch", user="operator")
    page.locator("tbody a[data-row]").first.click()
    page.get_by_role("link", name="Retry 3 runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 3 runs?")


def test_a_viewer_steers_no_failures(scene: Scene, open_page: Open) -> None:
    page = open_page("/failures?agent=price-watch", user="viewer")
    page.locator("tbody a[data-row]").first.click()
    expect(page.locator("#group-facts")).to_be_visible()
    expect(page.get_by_role("link", name="Retry")).to_have_count(0)
    expect(page.locator("details.act")).to_have_count(0)
