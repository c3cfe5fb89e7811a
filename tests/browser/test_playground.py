"""The page of a run while its models write, and the playground, in a real browser with a real worker that calls a model
server of the test.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sleipnir.testing import ModelServer
from tests.browser.console_scene import HOSTILE, Scene
from tests.browser.model_scene import models_of
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
from tests.waiting import wait_until

MODEL_S = 60_000
"""The first call of a worker imports the model library."""


@pytest.fixture(scope="module")
def models(scene: Scene) -> Iterator[ModelServer]:
    with models_of(scene) as server:
        yield server


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def test_a_person_talks_with_an_agent_and_sees_its_words_come(
    scene: Scene, models: ModelServer, open_page: Open
) -> None:
    page = open_page("/agents/bell-helper", user="operator")
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_text("Nobody has talked with this agent.")).to_be_visible()
    page.get_by_role("link", name="New chat").first.click()
    expect(page.get_by_role("button", name="Which bells are cracked?")).to_be_visible()
    send(page, "Tell me slowly of bells")
    expect(page.locator("#written pre")).to_contain_text("The bell of the north tower", timeout=MODEL_S)
    expect(page.locator(".sleipnir .running")).to_be_visible()
    assert page.get_by_label("Message").input_value() == "", "what was sent is no draft"
    page.get_by_label("Message").fill("half typed")
    picture(page, "playground")
    expect(page.locator(".bubble.assistant", has_text="must be cast anew").last).to_be_visible(timeout=MODEL_S)
    expect(page.locator("#written")).to_be_hidden(timeout=MODEL_S)
    expect(page.locator("#said .bubble")).to_have_count(2)
    assert page.get_by_label("Message").input_value() == "half typed"
    send(page, "Is that all?")
    expect(page.locator("#said .bubble.assistant").nth(1)).to_contain_text(HOSTILE, timeout=MODEL_S)
    assert page.evaluate("window.hacked") is None
    page.goto(f"{scene.url}/playground/bell-helper")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_message_is_sent_and_a_question_answered_without_javascript(
    scene: Scene, models: ModelServer, open_page: Open
) -> None:
    page = open_page("/playground/bell-desk/plain", user="operator", java_script_enabled=False)
    send(page, "who rings")
    expect(page.locator(".bubble.user")).to_have_text(re.compile("who rings"))
    run = scene.client.thread("bell-desk", "plain")
    assert run is not None
    wait_until(scene.client.run(run.run).gates, "it asks", 60)
    page.reload()
    expect(page.locator(".bubble.asks")).to_contain_text("Send this letter?")
    page.get_by_role("button", name="send", exact=True).click()
    expect(page).to_have_url(f"{scene.url}/playground/bell-desk/plain")
    scene.client.run(run.run).wait(60)
    page.reload()
    expect(page.locator(".bubble.assistant:not([hidden])")).to_contain_text("sent: You said")
    send(page, " ")
    expect(page.get_by_role("alert")).to_contain_text("there is no message")


def test_a_run_shows_what_its_model_writes_then_what_it_was_given_and_the_runs_below_it(
    scene: Scene, models: ModelServer, open_page: Open
) -> None:
    run = scene.client.submit(scene.folder / "bell-desk", "slowly please")
    page = open_page(f"/runs/{run.id}")
    expect(page.locator("#written pre")).to_contain_text("The bell of the north tower", timeout=MODEL_S)
    expect(page.locator("#visit-facts")).to_contain_text("Lease")
    picture(page, "run-writes")
    wait_until(run.gates, "it asks", 90)
    expect(page.locator("#written")).to_be_hidden(timeout=MODEL_S)
    expect(page.locator("#visit-output")).to_contain_text("must be cast anew")
    page.get_by_role("link", name="Input and prompt").click()
    expect(page.get_by_role("group", name="prompt", exact=True)).to_have_text("Answer slowly please")
    run.answer("send")
    run.wait(60)
    page.goto(f"{scene.url}/runs/{run.id}")
    [child] = scene.client.runs(10, parent=run.id)
    expect(page.locator(f'.tl li.item a[href="/runs/{child.id}"]')).to_contain_text("nightly-report")
    page.get_by_role("link", name="Children").click()
    page.get_by_role("link", name=child.id).click()
    expect(page.locator("#run-facts")).to_contain_text(run.id)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 320])
def test_every_page_is_accessible_and_fits(
    scene: Scene, models: ModelServer, open_page: Open, theme: Any, width: int
) -> None:
    run = scene.client.submit(scene.folder / "bell-desk", "fits", thread=f"fits-{theme}-{width}")
    wait_until(run.gates, "it asks", 90)
    page = open_page("/runs", viewport={"width": width, "height": 844}, color_scheme=theme)
    session = page.context.new_cdp_session(page)
    for path in (
        "/playground/bell-helper", "/playground/bell-helper/none", "/playground/bell-desk",
        f"/playground/bell-desk/fits-{theme}-{width}", f"/runs/{run.id}", f"/runs/{run.id}?part=input&visit=1",
    ):  # fmt: skip
        page.goto(scene.url + path)
        expect(page.locator("h1")).to_have_count(1)
        session.send("Runtime.evaluate", {"expression": AXE})
        found = session.send(
            "Runtime.evaluate", {"expression": VIOLATIONS, "awaitPromise": True, "returnByValue": True}
        )
        assert found["result"]["value"] == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} scrolls sideways"
        assert page.evaluate("window.hacked") is None, path
