"""Flower as a person uses it: log in, search for a run, look at its visits, open one.

FLOWER_SCREENSHOT=docs/images/flower-visits.png writes the picture of the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Error, Page, expect, sync_playwright

from sleipnir.client.client import Run
from tests.browser.browsers import browser_path
from tests.flower import PASSWORD, USER, Flower, start_flower
from tests.processes import RedisServer, Stack, write_agent

GRAPH = """
name: invoices
start: read
nodes:
  read: {type: script, script: scripts/read.sh, next: classify}
  classify: {type: function, call: "steps.py:classify", next: book}
  book: {type: script, script: scripts/book.sh, next: done, fallback: report}
  report: {type: function, call: "steps.py:report", next: done}
  done: {type: end, output: "{{letter}}"}
"""
READ = """echo '{"text": "Invoice 2041", "amount": 12.5}'\n"""
BOOK = "echo 'account 4711 is closed' >&2\nexit 3\n"
STEPS = """
def classify(state):
    return {"kind": "invoice"}


def report(state):
    return {"letter": "not booked"}
"""
NODES = {"read": "SUCCESS", "classify": "SUCCESS", "book": "FAILURE", "report": "SUCCESS"}


@dataclass(frozen=True)
class Shown:
    flower: Flower
    page: Page
    run: Run


@pytest.fixture(scope="module")
def shown(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A run that has ended, and a browser that has logged in."""
    folder = tmp_path_factory.mktemp("browser")
    with Stack(redis_server, folder / "home", key_prefix="browser", lease_s=15) as stack, sync_playwright() as driver:
        stack.start_scheduler()
        stack.start_worker("scripts", "scripts")
        stack.start_worker("functions", "functions", pool="prefork")
        flower = start_flower(stack)
        agent = write_agent(folder / "invoices", GRAPH, steps_py=STEPS, scripts__read_sh=READ, scripts__book_sh=BOOK)
        with stack.client() as client:
            runs = [client.submit(agent) for _ in range(2)]
            for run in runs:
                assert run.wait(60).status == "completed", run.info().error
        flower.ended("name:invoices", 2 * len(NODES))
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        context = browser.new_context(
            http_credentials={"username": USER, "password": PASSWORD}, viewport={"width": 1800, "height": 560}
        )
        yield Shown(flower, context.new_page(), runs[0])
        browser.close()


def test_a_search_for_a_run_lists_its_visits_and_a_click_opens_one(shown: Shown) -> None:
    page, run = shown.page, shown.run.id
    page.goto(f"{shown.flower.url}/tasks")
    page.get_by_role("searchbox").fill(f"args:run={run}")
    rows = page.locator("#tasks-table tbody tr")
    expect(rows).to_have_count(len(NODES))
    for number, (node, state) in enumerate(NODES.items(), 1):
        row = rows.filter(has_text=f"{run}:{node}:{number}:1")
        expect(row).to_contain_text(f"invoices.{node}")
        expect(row).to_contain_text(state)
        expect(row).to_contain_text(f"run={run} node={node} visit={number} attempt=1 agent=invoices")
    if picture := os.environ.get("FLOWER_SCREENSHOT"):
        page.screenshot(path=Path(picture))

    page.get_by_role("link", name=f"{run}:book:3:1").click()
    expect(page).to_have_url(f"{shown.flower.url}/task/{quote(f'{run}:book:3:1')}")
    details = page.locator("#task-page")
    for text in ("FAILURE", "invoices.book", "account 4711 is closed", "scripts", run):
        expect(details).to_contain_text(text)
    expect(page.get_by_role("button", name="Revoke")).to_have_count(0)


def test_without_the_password_the_browser_asks_for_it(shown: Shown) -> None:
    browser = shown.page.context.browser
    assert browser is not None
    with browser.new_context() as context, pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
        context.new_page().goto(f"{shown.flower.url}/tasks")  # there is nobody to answer
