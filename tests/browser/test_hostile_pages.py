"""Hostile texts in every place where people and programs can put them, and every page: nothing of it runs, or is more
than text."""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.console_scene import HOSTILE, RIGHT_TO_LEFT, Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    PAGES,
    Open,
    browser,
    driver,
    open_page,
    path_of,
    redis,
    scene,
)
from tests.processes import write_agent
from tests.waiting import wait_until

NAME = '<img src=x onerror="window.hacked=1">'
"""A name of an agent, which is that of its folder."""
GRAPH = """
name: hostile
version: sleipnir/1
description: DESCRIPTION
start: write
variables: [{name: file, description: DESCRIPTION, default: DESCRIPTION}]
nodes:
  write: {type: function, call: "steps.py:write", next: ask}
  ask: {type: input, question: "{{question}}", state_updates: {letter: "{{input}}"}, next: done}
  done: {type: end, output: "{{letter}}"}
""".replace("DESCRIPTION", "'" + HOSTILE.replace("'", "''") + "'")
STEPS = f"""
def write(state):
    text = {HOSTILE!r} + {RIGHT_TO_LEFT!r}
    return {{"question": text + " x" * 50_000, "file": "../" + text + ".svg", "big": (text + "y" * 100) * 50_000}}
"""
MOST_PAGE = 2_000_000
"""Characters of a page, whatever its values are."""


@pytest.fixture(scope="module")
def planted(scene: Scene) -> str:
    """A run with hostile texts everywhere; its id, when it asks."""
    agent = write_agent(scene.folder / NAME, GRAPH, steps_py=STEPS)
    run = scene.client.submit(agent, HOSTILE + RIGHT_TO_LEFT, tags={"of": HOSTILE}, thread="one")
    failing = scene.client.submit(
        scene.folder / "price-watch", HOSTILE, tags={"of": RIGHT_TO_LEFT.replace("\u202e", "")}
    )
    batch = scene.client.batch(scene.folder / "nightly-report", [{"prompt": HOSTILE}], name=HOSTILE[:60])
    failing.wait(60)
    wait_until(run.gates, "it asks", 60)
    wait_until(lambda: batch.info().is_over, "the batch is over", 60)
    return run.id


def test_hostile_texts_are_text_on_every_page(scene: Scene, planted: str, open_page: Open) -> None:
    [gate] = scene.client.run(planted).gates()
    agent = quote(NAME)
    own = (
        f"/runs/{planted}", f"/runs/{planted}?tab=state", f"/runs/{planted}?tab=events", f"/runs/{planted}?visit=1",
        f"/runs/{planted}?visit=1&part=input", f"/runs?agent={agent}", f"/agents/{agent}",
        f"/agents/{agent}?tab=source",
        f"/agents/{agent}?tab=start", f"/agents/{agent}?tab=versions", f"/playground/{agent}",
        f"/playground/{agent}/one", "/inbox/all", "/inbox/role", f"/decisions/{gate.run}/{gate.seq}.{gate.attempt}",
        f"/runs?text={quote(HOSTILE)}", f"/runs?tag={quote('of=' + HOSTILE)}",
    )  # fmt: skip
    page = open_page("/runs")
    for path in (*PAGES, *own):
        response = page.goto(scene.url + path_of(scene, path))
        assert response is not None
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';"), path
        assert "unsafe" not in policy, path
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main script, main img, main iframe, main style, main [style]").count() == 0, path
        attributes = page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
        )
        assert attributes == [], path
        assert page.locator('a[href^="javascript" i]').count() == 0, path
        assert len(page.content()) < MOST_PAGE, path
    page.goto(f"{scene.url}/agents")
    expect(page.get_by_role("link", name=NAME)).to_be_visible()
    page.get_by_role("link", name=NAME).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
