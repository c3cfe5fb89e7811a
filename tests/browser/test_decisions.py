"""The inbox and decisions in a real browser: by keyboard, by two people, without JavaScript, with hostile texts,
and while Redis is away.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    AXE,
    VIOLATIONS,
    Open,
    arrives,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.processes import RedisServer
from tests.waiting import wait_until


def path_of(scene: Scene, run: str) -> str:
    [gate] = scene.client.run(run).gates()
    return f"/decisions/{gate.run}/{gate.seq}.{gate.attempt}"


def is_over(scene: Scene, run: str, output: str) -> None:
    wait_until(lambda: scene.client.run(run).info().is_final, f"{run} has ended", 60)
    assert output in (scene.client.run(run).output or "")


def violations(page: Page) -> Any:
    """What axe finds in the page."""
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": AXE})
    found = session.send("Runtime.evaluate", {"expression": VIOLATIONS, "awaitPromise": True, "returnByValue": True})
    return found["result"]["value"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_is_accessible_and_fits(scene: Scene, open_page: Open, theme: Any, width: int) -> None:
    [gate] = scene.client.run(scene.runs["asking"]).gates()
    scene.client.gate_inbox.comment(gate, f"{HOSTILE}\n{'unbroken' * 60}")
    asking, refund = path_of(scene, scene.runs["asking"]), path_of(scene, scene.runs["refund"])
    page = open_page("/runs", viewport={"width": width, "height": 844}, color_scheme=theme)
    for path in ("/inbox/role", "/inbox/all", "/inbox/snoozed", asking, refund, f"/decisions/{scene.runs['booked']}/3"):
        page.goto(scene.url + path)
        expect(page.locator("h1")).to_have_count(1)
        assert violations(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} scrolls sideways"
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main script, main img, main iframe, main style").count() == 0, path


def test_hostile_questions_are_shown_as_text(scene: Scene, open_page: Open) -> None:
    page = open_page(path_of(scene, scene.runs["asking"]))
    expect(page.locator(".md")).to_contain_text(HOSTILE)
    expect(page.locator(".md h2")).to_have_text("Book invoice 2026-4471 for 1249 EUR?")
    assert page.locator('a[href^="javascript"]').count() == 0
    page.goto(scene.url + path_of(scene, scene.runs["refund"]))
    expect(page.locator(".decide dd", has_text="<script>").first).to_be_visible()


def test_a_person_decides_by_keyboard_alone(scene: Scene, open_page: Open) -> None:
    approved, rejected = scene.submit_invoice("first"), scene.submit_invoice("second")
    page = open_page("/runs")
    page.wait_for_load_state()
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page).to_have_url(f"{scene.url}/inbox/role")
    page.wait_for_load_state()
    expect(page).to_have_title(re.compile(r"^\(\d+\) Inbox · Sleipnir$"))

    def go_to(run: str) -> None:
        name = path_of(scene, run).removeprefix("/decisions/")
        for _ in range(20):
            page.keyboard.press("j")
            if page.evaluate("document.activeElement.dataset.gate") == name:
                break
        expect(page.locator(f'#preview a[href="/decisions/{name}"]')).to_be_visible()

    go_to(rejected)
    picture(page, "inbox")
    with page.expect_navigation():
        page.keyboard.press("r")
    is_over(scene, rejected, "not booked")
    page.wait_for_load_state()
    go_to(approved)
    page.keyboard.press("Enter")
    arrives(page, scene.url + path_of(scene, approved))
    page.keyboard.press("c")
    expect(page.locator("#decision-hold")).to_contain_text("You hold this for 1")
    page.wait_for_load_state()
    expect(page.locator(".way-on.first .p")).to_contain_text("book")
    picture(page, "decision")
    page.keyboard.press("m")
    page.keyboard.type("checked")
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.locator("#decision-banner")).to_contain_text("admin", timeout=30_000)
    is_over(scene, approved, "booked")
    [step] = [step for step in scene.client.run(approved).history() if step.answer is not None]
    assert (step.answer, step.reason, step.by.split("@")[0]) == ("approve", "checked", "admin")


def test_of_two_browsers_one_decides_and_the_other_sees_it_without_loading(
    scene: Scene,
    open_page: Open,
) -> None:
    run = scene.submit_invoice("two")
    path = path_of(scene, run)
    one, other = open_page(path, user="approver"), open_page(path, user="operator")
    one.get_by_role("button", name="Claim").click()
    expect(other.locator("#decision-banner")).to_contain_text("approver holds this question", timeout=30_000)
    other.get_by_label("Comment").fill("half typed")
    other.locator(".way-on", has_text="reject").click()
    expect(other.get_by_role("alert")).to_contain_text("approver has claimed question")
    assert other.get_by_label("Comment").input_value() == "half typed"
    other.goto(scene.url + path)
    other.get_by_label("Comment").fill("still typing")
    one.locator(".way-on", has_text="approve").first.click()
    expect(other.locator("#decision-banner")).to_contain_text("approver", timeout=30_000)
    expect(other.locator("#decision-banner [data-closed]")).to_be_attached(timeout=30_000)
    assert other.get_by_label("Comment").input_value() == "still typing"
    expect(other.locator(".way-on", has_text="reject")).to_be_disabled()
    is_over(scene, run, "booked")


def refund(scene: Scene) -> str:
    run = scene.client.submit(scene.folder / "refund-desk", tags={"customer": "form"})
    wait_until(run.gates, "it asks", 60)
    return run.id


def test_a_form_shows_what_a_person_changes_and_keeps_it(scene: Scene, open_page: Open) -> None:
    run = refund(scene)
    page = open_page(path_of(scene, run))
    amount = page.get_by_role("textbox", name="Amount")
    expect(amount).to_have_value("1249")
    amount.fill("2000")
    expect(page.locator("#changes .add")).to_have_text("Amount: 2000")
    expect(page.locator("#changes .del")).to_have_text("Amount: 1249")
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_role("alert")).to_contain_text("does not match the schema")
    expect(amount).to_have_value("2000")
    amount.fill("a lot")
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_text("'a lot' is no number")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(amount).to_have_value("1249")
    amount.fill("980")
    page.reload()
    expect(amount).to_have_value("980")
    picture(page, "decision-form")
    page.get_by_role("button", name="Send the answer").click()
    is_over(scene, run, "refunded 980")


def test_without_javascript_a_person_reads_and_answers(scene: Scene, open_page: Open) -> None:
    run, typed = scene.submit_invoice("plain"), refund(scene)
    page = open_page("/inbox/role", user="approver", java_script_enabled=False)
    page.locator(f'.list a[href="{path_of(scene, run)}"]').click()
    expect(page.locator(".md")).to_contain_text("Please check")
    page.locator(".way-on", has_text="reject").click()
    is_over(scene, run, "not booked")
    page.goto(scene.url + path_of(scene, typed))
    page.get_by_role("textbox", name="Amount").fill("12.5")
    page.get_by_label("Currency").select_option(label="SEK")
    page.get_by_label("Tell the customer").uncheck()
    page.get_by_role("button", name="Send the answer").click()
    is_over(scene, typed, "refunded 12.5")


def test_several_questions_of_one_node_are_answered_together(scene: Scene, open_page: Open) -> None:
    runs = [scene.submit_invoice("many") for _ in range(3)]
    page = open_page("/inbox/all", user="approver")
    for run in runs:
        page.locator(f'input[value="{path_of(scene, run).removeprefix("/decisions/")}"]').check()
    expect(page.locator("#selection-text")).to_have_text("3 selected, of one node.")
    page.get_by_role("button", name="Open one, answer 3").click()
    expect(page.get_by_label("Answered together")).to_contain_text("3 questions of this node")
    page.locator(".way-on", has_text="approve").first.click()
    expect(page.locator(".sub")).to_have_text("3 of 3 answers were taken")
    for run in runs:
        is_over(scene, run, "booked")


def test_a_question_is_assigned_and_snoozed(scene: Scene, open_page: Open) -> None:
    run = scene.submit_invoice("shared")
    path = path_of(scene, run)
    page, other = open_page(path, user="approver"), open_page("/inbox/mine", user="operator")

    def row(of: Page) -> Any:
        return of.locator(f'.list a[href="{path}"]')

    page.locator("summary", has_text="Assign").click()
    page.get_by_label("Person").fill("operator")
    page.get_by_role("button", name="Assign").click()
    expect(page.locator("#decision-facts")).to_contain_text("assigned to operator")
    other.reload()
    expect(row(other)).to_be_visible()
    page.locator("summary", has_text="Snooze").click()
    page.get_by_role("button", name="For an hour").click()
    page.goto(f"{scene.url}/inbox/role")
    expect(row(page)).to_have_count(0)
    page.goto(f"{scene.url}/inbox/snoozed")
    expect(row(page)).to_be_visible()
    other.reload()
    expect(row(other)).to_be_visible()


@pytest.mark.parametrize("javascript", [True, False])
def test_a_person_comments_and_another_one_answers(scene: Scene, open_page: Open, javascript: bool) -> None:
    run = scene.submit_invoice("discussed")
    path, said = path_of(scene, run), f"The supplier says yes. {HOSTILE}"
    page, other = open_page(path, user="operator", java_script_enabled=javascript), open_page(path, user="approver")
    page.locator("#comment").fill(said)
    page.get_by_role("button", name="Comment without an answer").click()
    comments = page.get_by_role("region", name="Comments")
    expect(comments.get_by_role("listitem")).to_have_count(1)
    expect(comments).to_contain_text(said)
    expect(page.locator("#comment")).to_have_value("")
    expect(other.get_by_role("region", name="Comments")).to_contain_text(said)
    page.get_by_role("button", name="Comment without an answer").click()
    expect(page.get_by_role("alert")).to_contain_text("the comment is empty")
    expect(page.locator(".way-on").first).to_be_visible()
    if javascript:
        assert violations(page) == []
    other.locator(".way-on", has_text="approve").first.click()
    is_over(scene, run, "booked")
    kinds = [(step.kind, step.reason) for step in scene.client.run(run).history() if step.by]
    assert kinds[0] == ("commented", said)


def test_who_may_not_answer_is_told_why(scene: Scene, open_page: Open) -> None:
    page = open_page(path_of(scene, scene.runs["asking"]), user="viewer")
    expect(page.get_by_text("You cannot answer this.")).to_be_visible()
    expect(page.locator(".way-on")).to_have_count(0)


def test_what_is_typed_outlives_an_outage_of_redis(
    scene: Scene,
    redis: RedisServer,
    open_page: Open,
) -> None:
    run = scene.submit_invoice("outage")
    page = open_page(path_of(scene, run))
    page.get_by_label("Comment").fill("typed before")
    redis.kill()
    try:
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        page.get_by_label("Comment").fill("typed meanwhile")
        page.locator(".way-on", has_text="approve").first.click()
        expect(page.get_by_role("heading", name="Redis does not answer")).to_be_visible(timeout=60_000)
    finally:
        redis.start()
    wait_until(lambda: scene.client.run(run).gates(), "Redis is back", 60)
    page.goto(scene.url + path_of(scene, run))
    expect(page.get_by_label("Comment")).to_have_value("typed meanwhile")
    page.locator(".way-on", has_text="approve").first.click()
    is_over(scene, run, "booked")
