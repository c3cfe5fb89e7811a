"""Batches and comparisons in a real browser: from a file to its results, canary rows, failed rows, forks, two batches
and two runs side by side, with and without JavaScript.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    act,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.waiting import wait_until

ROWS = b'id,prompt\nr1,contract one\nr2,"contract two, unreadable"\nr1,contract three\nr4,contract four\n'
FILE: FilePayload = {"name": "rows.csv", "mimeType": "text/csv", "buffer": ROWS}


def comes(page: Page, selector: str, text: str, javascript: bool = True) -> None:
    """Wait until a part of the page has this text; without JavaScript the page is loaded again."""
    if not javascript:
        part = page.locator(selector, has_text=text)
        wait_until(lambda: part.count() or not page.reload(), f"{text!r} is there", 60)
    expect(page.locator(selector)).to_contain_text(text, timeout=60_000)


@pytest.mark.parametrize("javascript", [True, False])
def test_an_operator_submits_a_batch_from_a_file(scene: Scene, open_page: Open, javascript: bool) -> None:
    page = open_page("/batches", user="operator", java_script_enabled=javascript)
    page.get_by_role("link", name="New batch").click()
    page.get_by_label("Agent", exact=True).fill("contract-diff")
    page.get_by_label("Name", exact=True).fill("from a file")
    page.get_by_label("Column that identifies rows").fill("id")
    page.get_by_role("button", name="Submit the batch").click()
    expect(page.get_by_role("alert")).to_contain_text("choose a file with rows")
    assert page.get_by_label("Name", exact=True).input_value() == "from a file"
    page.get_by_label("File of rows").set_input_files(FILE)
    page.get_by_role("button", name="Submit the batch").click()
    expect(page.get_by_role("status").filter(has_text="left out")).to_contain_text("1 row was left out.")
    expect(page.get_by_role("cell", name=re.compile("its key 'r1' is that of a row before it"))).to_be_visible()
    page.get_by_role("link", name="Open the batch").click()
    comes(page, "#progress", "3 of 3 rows are over", javascript)
    comes(page, "#progress", "Failed 1", javascript)
    page.get_by_role("link", name="Failed 1").first.click()
    expect(page.get_by_role("group", name="Rows", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="r2", exact=True).first.click()
    expect(page.locator("#run-state")).to_contain_text("Failed")


def test_pasted_rows_are_a_batch_too(scene: Scene, open_page: Open) -> None:
    page = open_page("/new-batch?agent=contract-diff", user="operator")
    page.get_by_label("Rows, pasted").fill('{"prompt": "contract a"}\n{"prompt": "contract b"}')
    page.get_by_label("Canary rows").fill("many")
    page.get_by_role("button", name="Submit the batch").click()
    expect(page.get_by_role("alert")).to_contain_text("canary is a number, not 'many'")
    page.get_by_label("Canary rows").fill("")
    page.get_by_role("button", name="Submit the batch").click()
    comes(page, "#progress", "2 of 2 rows are over")


def test_an_operator_sees_which_rows_failed_and_why_and_redoes_them(scene: Scene, open_page: Open) -> None:
    page = open_page("/batches", user="operator")
    picture(page, "batches")
    page.get_by_role("link", name="contracts <b>november</b>").click()
    expect(page.locator("#progress")).to_contain_text("160 of 160 rows are over")
    picture(page, "batch")
    expect(page.locator("#groups")).to_contain_text(HOSTILE[:20])
    lines = page.locator(".rowsgrid a")
    expect(lines).to_have_count(3)
    expect(lines.first).to_have_attribute("aria-label", re.compile(r"^Rows 1 to 62\. .*failed in 4"))
    box = page.locator(".rowsgrid").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 7.5 / 62, box["y"] + 4)  # the eighth cell
    expect(page).to_have_url(f"{scene.url}/batches/{scene.batches['graded']}?row=8#rows")
    rows = page.get_by_role("group", name="Rows", exact=True).locator("tbody tr")
    expect(rows.first).to_contain_text("C-2026-0007")
    expect(rows.first).to_contain_text("Failed")
    page.get_by_role("link", name="Failed 11").first.click()
    expect(rows).to_have_count(11)
    page.locator("#groups").get_by_role("link", name="8", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(8)
    page.go_back()
    act(page, "Redo 11 failed")
    expect(page).to_have_url(f"{scene.url}/batches/{scene.batches['graded']}")
    comes(page, "#progress", "160 of 160 rows are over")
    with page.expect_download() as download:
        page.locator("details.act", has_text="Download").locator("summary").click()
        page.get_by_role("link", name="Results, a row in each line").click()
    assert len(download.value.path().read_text().splitlines()) == 160


@pytest.mark.parametrize("javascript", [True, False])
def test_an_operator_answers_for_canary_rows_and_steers(scene: Scene, open_page: Open, javascript: bool) -> None:
    rows = [{"prompt": f"contract {number}"} for number in range(12)]
    batch = scene.client.batch(scene.folder / "contract-diff", rows, name=f"canary {javascript}", canary=3)
    wait_until(lambda: batch.info().state == "canary", "its canary rows are over", 60)
    page = open_page("/batches?view=due", user="operator", java_script_enabled=javascript)
    page.get_by_role("link", name=f"canary {javascript}").click()
    expect(page.locator("#batch-banner")).to_contain_text("3 rows are over, 0 of them failed. Continue with 9 more?")
    page.get_by_label("Rows under way at most, as a number").fill("2")
    if javascript:
        assert page.locator("[data-slides]").input_value() == "2"
    page.get_by_role("button", name="Set parallel").click()
    expect(page.get_by_label("Rows under way at most, as a number")).to_have_value("2")
    assert batch.info().plan.parallel == 2
    page.get_by_role("button", name="Continue with 9 rows").click()
    comes(page, "#progress", "12 of 12 rows are over", javascript)
    expect(page.locator("#batch-banner .banner")).to_have_count(0)


def test_an_operator_pauses_resumes_and_cancels_a_batch(scene: Scene, open_page: Open) -> None:
    rows = [{"prompt": f"invoice {number}"} for number in range(3)]
    batch = scene.client.batch(scene.folder / "invoice-intake", rows, name="held", parallel=1)
    wait_until(lambda: batch.info().active == 1, "a row is under way", 60)
    page = open_page(f"/batches/{batch.id}", user="operator")
    act(page, "Pause")
    comes(page, "#progress", "Paused")
    act(page, "Resume")
    comes(page, "#progress", "Running")
    act(page, "Cancel batch")
    comes(page, "#progress", "Cancelled 3")
    viewer = open_page(f"/batches/{batch.id}", user="viewer")
    expect(viewer.locator("#progress")).to_contain_text("Cancelled")
    expect(viewer.get_by_role("button", name="Set parallel")).to_have_count(0)
    assert viewer.get_by_text("Fork", exact=True).count() == 0


def test_a_batch_is_forked_and_compared_with_its_source(scene: Scene, open_page: Open) -> None:
    page = open_page("/batches/@again", user="operator")
    act(page, "Fork", name="forked", before="grade")
    comes(page, "#progress", "7 of 7 rows are over")
    expect(page.locator("#facts")).to_contain_text(scene.batches["again"])
    page.get_by_label("Id or name").fill(scene.batches["graded"])
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("compared with contracts <b>november</b>")
    expect(page.locator("tbody tr", has_text="C-2026-0007")).to_contain_text("≠ Status, output")
    picture(page, "batch-comparison")
    page.get_by_role("link", name="More").click()
    expect(page.locator("tbody tr", has_text="C-2026-0000")).to_contain_text("+ Only in the second")


@pytest.mark.parametrize("javascript", [True, False])
def test_two_runs_are_compared(scene: Scene, open_page: Open, javascript: bool) -> None:
    page = open_page("/runs/@booked", user="viewer", java_script_enabled=javascript)
    action = page.locator("details.act", has=page.locator("summary", has_text="Compare"))
    action.locator("summary").click()
    action.get_by_label("With the run of this id, or its beginning").fill(scene.runs["rejected"])
    action.get_by_role("button", name="Compare").click()
    booked, rejected = scene.runs["booked"], scene.runs["rejected"]
    expect(page).to_have_url(f"{scene.url}/runs/{booked}/compare/{rejected}")
    expect(page.get_by_role("status").filter(has_text="differ")).to_contain_text("Output, state, path differ.")
    if javascript:
        picture(page, "run-comparison")
    path = page.get_by_role("group", name="Path")
    expect(path.locator(".del")).to_have_text(["Only in the first: book"])
    expect(path.locator(".add")).to_have_text(["Only in the second: report"])
    page.get_by_role("link", name="Exchange").click()
    expect(page.get_by_role("group", name="Path").locator(".del")).to_have_text(["Only in the first: report"])
    page.goto(f"{scene.url}/runs/{booked}/compare/zzzzzzzzzzzz")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("no run 'zzzzzzzzzzzz'")).to_be_visible()


def test_the_list_of_batches_goes_on_after_one(scene: Scene, open_page: Open) -> None:
    newest, second, *_ = scene.client.batches(10, namespace="*")
    page = open_page(f"/batches?after={newest.id}")
    expect(page.locator(f"#row-{newest.id}")).to_have_count(0)
    expect(page.locator(f"#row-{second.id}")).to_be_visible()
    page.get_by_role("link", name="Newest").click()
    expect(page.locator(f"#row-{newest.id}")).to_be_visible()
    assert page.goto(f"{scene.url}/batches?after=gone").status == 404  # type: ignore[union-attr]
