"""The page of a run in a real browser: its state at each step, what its visits were given, forks, keys, downloads, and
a run of 5,000 visits."""

# ruff: noqa: F811 - parameters are the fixtures that are imported

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.console_scene import Scene
from tests.browser.test_console import (  # noqa: F401 fixtures
    Open,
    act,
    arrives,
    browser,
    driver,
    open_page,
    picture,
    redis,
    scene,
)
from tests.processes import write_agent

WIDE = """
name: wide
version: sleipnir/1
start: list
nodes:
  list: {type: function, call: "steps.py:items", next: each}
  each: {type: map, for_each: "{{items}}", as: item, node: work, collect: results, max_parallel: 100, next: done}
  work: {type: function, call: "steps.py:work"}
  done: {type: end, output: "ok"}
"""
STEPS = """
def items(state):
    return {"items": list(range(5000))}


def work(state):
    return {"result": 1}
"""
OPENS_MS = 2_000


def test_a_person_walks_through_the_steps_of_a_run_and_forks_one(scene: Scene, open_page: Open) -> None:
    run = scene.runs["booked"]
    page = open_page(f"/runs/{run}", user="operator")
    page.locator("#step").fill("2")
    arrives(page, f"{scene.url}/runs/{run}?tab=state&step=2")
    expect(page.get_by_role("group", name="What changed in kind")).to_contain_text("invoice")
    expect(page.locator(".sleipnir .unreached", has_text="approve")).to_be_visible()
    picture(page, "run-state")
    page.keyboard.press("ArrowLeft")
    arrives(page, f"{scene.url}/runs/{run}?tab=state&step=1")
    page.keyboard.press("ArrowRight")
    arrives(page, f"{scene.url}/runs/{run}?tab=state&step=2")
    act(page, "Fork from this step")
    expect(page.locator("#run-facts")).to_contain_text("after step 2")
    fork = page.url.rpartition("/")[2]
    assert scene.client.run(fork).info().forked_at == 2
    scene.client.run(fork).cancel()


def test_a_failed_run_goes_on_with_what_was_mended(scene: Scene, open_page: Open) -> None:
    agent = write_agent(scene.folder / "tariffs", TARIFFS, steps_py=WITHOUT_TARIFF)
    run = scene.client.submit(agent, tags={"customer": "acme"})
    assert run.wait(60).status == "failed"
    write_agent(agent, TARIFFS, steps_py=WITHOUT_TARIFF.replace("raise KeyError(state['name'])", "return {'sum': 2}"))
    page = open_page("/runs", user="operator")
    page.get_by_role("searchbox").fill("tag:customer=acme agent:tariffs")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=run.id).click()
    expect(page.locator("main")).to_contain_text("KeyError")
    action = page.locator("details.act", has=page.locator("summary", has_text="Fork from here"))
    action.locator("summary").click()
    action.get_by_label("as they are now").check()
    action.get_by_role("button", name="Fork from here").click()
    expect(page.locator("main")).to_contain_text("Completed", timeout=60_000)
    fork = scene.client.run(page.url.rpartition("/")[2])
    assert (fork.info().forked_from, fork.output) == (run.id, "2")


TARIFFS = """
name: tariffs
version: sleipnir/1
start: read
nodes:
  read: {type: function, call: "steps.py:read", next: price}
  price: {type: function, call: "steps.py:price", next: done}
  done: {type: end, output: "{{sum}}"}
"""
WITHOUT_TARIFF = """
def read(state):
    return {"name": "acme"}


def price(state):
    raise KeyError(state['name'])
"""


def test_a_step_is_chosen_and_a_visit_forked_without_javascript(scene: Scene, open_page: Open) -> None:
    run = scene.runs["booked"]
    page = open_page(f"/runs/{run}?visit=2", user="operator", java_script_enabled=False)
    page.get_by_role("link", name="Input and prompt").click()
    expect(page.get_by_role("group", name="number", exact=True)).to_have_text("2026-4471")
    act(page, "Fork from here")
    expect(page.locator("#run-facts")).to_contain_text("after step 1")
    scene.client.run(page.url.rpartition("/")[2]).cancel()
    page.goto(f"{scene.url}/runs/{run}")
    page.get_by_role("link", name="Earlier").click()
    expect(page).to_have_url(re.compile(r"tab=state&step=\d+$"))


def test_all_of_a_run_is_downloaded_by_operators(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs/@booked?tab=download", user="operator")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert scene.runs["booked"] in download.value.path().read_text(encoding="utf-8").splitlines()[0]
    viewer = open_page("/runs/@booked?tab=download", user="viewer")
    expect(viewer.get_by_role("link", name="Trace")).to_be_visible()
    expect(viewer.get_by_role("link", name="Export")).to_have_count(0)
    viewer.get_by_role("link", name="Log", exact=True).click()
    expect(viewer.get_by_text("Log lines are not stored in Redis")).to_be_visible()


def test_a_hidden_page_holds_no_connection_and_goes_on_when_it_is_seen(scene: Scene, open_page: Open) -> None:
    run = scene.submit_invoice("hidden")
    page = open_page(f"/runs/{run}")
    page.evaluate(
        """() => { Object.defineProperty(document, "hidden", { value: true, configurable: true });
                   document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    scene.client.run(run).answer("approve")
    scene.client.run(run).wait(60)
    expect(page.locator("#run-state")).to_contain_text("Waits for a person")
    page.evaluate(
        """() => { Object.defineProperty(document, "hidden", { value: false, configurable: true });
                   document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    expect(page.locator("#run-state")).to_contain_text("Completed", timeout=30_000)


def test_a_run_of_5000_visits_opens_soon_in_groups_and_pages(scene: Scene, open_page: Open) -> None:
    run = scene.client.submit(write_agent(scene.folder / "wide", WIDE, steps_py=STEPS))
    run.wait(600)
    page = open_page(f"/runs/{run.id}")
    times = []
    for _ in range(3):
        page.goto(f"{scene.url}/runs/{run.id}")
        times.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart"))
    print(f"a run of 5,000 visits opens in {[round(each) for each in times]} ms")
    assert min(times) <= OPENS_MS
    expect(page.locator(".sleipnir .node", has_text="done ×5,000")).to_be_visible()
    expect(page.locator(".tl li", has_text="rows, open")).to_have_count(1)
    assert page.locator(".tl rect").count() < 2_000
    page.locator(".tl li", has_text="rows, open").locator("a").click()
    expect(page.locator(".tl li.item")).to_have_count(101)
    page.goto(f"{scene.url}/runs/{run.id}")
    page.locator("#run-timeline").get_by_role("link", name="Earlier").click()
    expect(page.locator("#run-timeline")).to_contain_text("of 5,003")
    page.goto(f"{scene.url}/runs/{run.id}?tab=events")
    expect(page.locator(".events li")).to_have_count(500)
    page.locator("#run-events").get_by_role("link", name="Earlier").click()
    expect(page.locator(".events li")).to_have_count(500)


def test_an_open_list_of_events_gets_what_is_new_and_keeps_its_rows(scene: Scene, open_page: Open) -> None:
    run = scene.client.run(scene.submit_invoice("listed"))
    page = open_page(f"/runs/{run.id}?tab=events")
    rows = page.locator("#events-list li")
    expect(rows.last).to_contain_text("classify")
    page.evaluate("document.querySelector('#events-list').firstElementChild.isMarked = true")
    run.answer("approve")
    run.wait(60)
    expect(rows).to_have_count(len(run.history()))
    expect(rows.last).to_contain_text("done")
    assert page.evaluate("document.querySelector('#events-list').firstElementChild.isMarked")
    page.evaluate("document.querySelector('#events-list').dataset.most = 2; htmx.trigger('#live', 'seen')")
    expect(rows).to_have_count(2)


def test_a_page_goes_on_whose_visit_is_among_the_newest_no_more(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs/@asking")
    url = f"{scene.url}/runs/{scene.runs['asking']}?visit=999"
    assert page.request.get(url).status == 404
    assert page.request.get(url, headers={"HX-Request": "true"}).status == 200
