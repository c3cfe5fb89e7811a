"""Jobs in a real browser: select runs, or all that fit, see what would happen, let it happen, or undo it.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console_scene import Scene
from tests.browser.test_batches import comes
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.waiting import wait_until


def select(page: Page, *runs: str) -> None:
    for run in runs:
        page.get_by_label(f"Select run {run}").check()


@pytest.mark.parametrize("javascript", [True, False])
def test_selected_runs_are_cancelled_by_a_job(scene: Scene, open_page: Open, javascript: bool) -> None:
    customer = f"many-{javascript}".lower()
    runs = [scene.submit_invoice(customer) for _ in range(3)]
    page = open_page(f"/runs?tag=customer%3D{customer}", user="operator", java_script_enabled=javascript)
    select(page, *runs[:2])
    if javascript:
        expect(page.locator("#picked")).to_have_text("2 runs selected.")
        picture(page, "runs-selection")
    page.locator("#selection").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 2 runs?")
    expect(page.locator("main")).to_contain_text("2 runs of 2 selected are not over, and are asked.")
    page.get_by_label("Why").fill("wrong file")
    page.get_by_label("Runs a second at most").fill("fast")
    page.get_by_role("button", name="Cancel 2 runs").click()
    expect(page.get_by_role("alert")).to_contain_text("rate is a number, not 'fast'")
    assert page.get_by_label("Why").input_value() == "wrong file"
    page.get_by_label("Runs a second at most").fill("50")
    page.get_by_role("button", name="Cancel 2 runs").click()
    expect(page).to_have_url(re.compile("/jobs/"))
    expect(page.locator("#facts")).to_contain_text("wrong file")
    if javascript:
        picture(page, "job")
    comes(page, "#progress", "Done", javascript)
    wait_until(lambda: scene.client.run(runs[0]).info().status == "cancelled", "the run is cancelled", 60)
    assert scene.client.run(runs[2]).info().status == "waiting"
    scene.client.run(runs[2]).cancel()


def test_all_runs_that_fit_are_paused_and_resumed(scene: Scene, open_page: Open) -> None:
    runs = [scene.submit_invoice("all-of-them") for _ in range(3)]
    page = open_page("/runs?tag=customer%3Dall-of-them", user="operator")
    page.get_by_label("Select all 3 that fit").check()
    page.locator("#selection").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause 3 runs?")
    expect(page.locator(".fchip")).to_contain_text("customer=all-of-them")
    page.get_by_label("Why").fill("month end")
    page.get_by_role("button", name="Pause 3 runs").click()
    comes(page, "#progress", "Done")
    expect(page.locator("#progress")).to_contain_text("Asked 3")
    wait_until(lambda: all(scene.client.run(run).info().status == "paused" for run in runs), "all are paused", 60)
    page.get_by_role("link", name="Those that fit now").click()
    expect(page.locator("#fitting")).to_contain_text("0 fit")  # they are paused, and wait no more
    page.goto(f"{scene.url}/runs?tag=customer%3Dall-of-them")
    page.locator("#pick-page").check()
    expect(page.locator("#picked")).to_have_text("3 runs selected.")
    page.locator("#selection").get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume 3 runs").click()
    comes(page, "#progress", "Done")
    for run in runs:
        scene.client.run(run).cancel()


def test_a_job_is_undone_before_it_begins(scene: Scene, open_page: Open) -> None:
    run = scene.submit_invoice("undone")
    page = open_page("/runs?tag=customer%3Dundone", user="operator")
    select(page, run)
    page.locator("#selection").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel 1 run", exact=True).click()
    expect(page.locator("#progress")).to_contain_text("begins in")
    page.get_by_role("button", name="Undo").click()
    comes(page, "#progress", "Stopped")
    expect(page.locator("#progress")).to_contain_text("by operator")
    expect(page.locator("#progress")).to_contain_text("Asked 0")
    page.goto(f"{scene.url}/jobs")
    expect(page.locator("tbody tr").first).to_contain_text("Stopped")
    assert scene.client.run(run).info().status == "waiting"
    scene.client.run(run).cancel()


def test_what_cannot_be_asked_is_said(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs?status=completed", user="operator")
    page.locator("#selection").get_by_role("button", name="Retry").click()
    expect(page.get_by_role("alert")).to_contain_text("select runs first, or all that fit")
    page.goto(f"{scene.url}/new-job?action=retry&run={scene.runs['booked']}")
    expect(page.get_by_text("None of the 1 selected runs is failed.")).to_be_visible()
    viewer = open_page("/runs", user="viewer")
    expect(viewer.locator("tbody tr").first).to_be_visible()
    assert viewer.locator("#selection, [data-pick]").count() == 0
