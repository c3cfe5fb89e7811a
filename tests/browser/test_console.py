"""The console in a real browser, against a real deployment: a person's path through each page, the keyboard, both
themes, accessibility, hostile content, pages without JavaScript, Redis away.

CONSOLE_SCREENSHOTS=docs/images writes the pictures of the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.browser.browsers import browser_path
from tests.browser.console_scene import HOSTILE, PASSWORD, Scene, scene_of
from tests.processes import RedisServer

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = """axe.run().then(found => found.violations.map(
    each => each.id + ": " + each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(" | ")))"""
PAGES = (
    "/login", "/menu", "/", "/failures", "/failures?last=1h&agent=nobody", "/failures?text=account", "/runs",
    "/runs?status=failed&agent=price-watch", "/runs?tag=customer%3Dnobody",
    "/runs/@asking", "/runs/@failed", "/runs/@booked", "/runs/@paused", "/runs/@big?tab=state",
    "/runs/@booked?tab=events", "/runs/@booked?tab=children", "/runs/@booked?tab=state&step=2", "/runs/@booked?tab=log",
    "/runs/@booked?tab=download", "/runs/@booked?visit=2&part=input", "/runs/@asking?part=log",
    "/runs/zzzzzzzzzzzz", "/schedules", "/schedules/report",
    "/schedules/month-end", "/new-schedule", "/agents", "/agents/invoice-intake", "/agents/invoice-intake?tab=source",
    "/agents/invoice-intake?tab=findings", "/agents/invoice-intake?tab=start", "/agents/invoice-intake?tab=versions",
    "/agents/invoice-intake?tab=versions&first=now&second=now", "/playground/invoice-intake",
    "/playground/invoice-intake/none", "/fleet", "/incident", "/webhooks", "/webhooks/none", "/new-webhook",
    "/incoming", "/new-hook", "/threads", "/threads?agent=nobody", "/threads?kind=sessions",
    "/threads/invoice-intake/monday", "/threads/invoice-intake/none", "/audit", "/audit?by=nobody",
    "/batches", "/batches?q=nothing", "/batches/@graded", "/batches/@graded?state=failed", "/batches/@canary",
    "/batches/@canary?state=failed", "/batches/zzzzzzzzzzzz", "/new-batch", "/batches/@graded/compare/@again",
    "/batches/@graded/compare/@again?start=160", "/runs/@failed/compare/@booked", "/runs/@failed/compare/@big",
    "/jobs", "/jobs/@stopped", "/new-job?action=fork&run=@failed", "/new-job?action=cancel&all=true",
    "/new-job?action=retry&run=@booked", "/new-job?action=retry",
    "/users", "/users/approver", "/new-user", "/me",
)  # fmt: skip
"""All kinds of pages; `@name` is a run, a batch or a job of the scene."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def scene(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene_of(redis, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture(scope="module")
def driver() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(driver: Playwright) -> Iterator[Browser]:
    found = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
    yield found
    found.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(scene: Scene, browser: Browser) -> Iterator[Open]:
    """Opens pages as a user: whatever the browser complains of fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def opened(path: str, user: str | None = "admin", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if "Content Security" in line.text else None)
        if user is not None:
            log_in(page, scene, user)
        page.goto(scene.url + path_of(scene, path))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def log_in(page: Page, scene: Scene, user: str) -> None:
    page.goto(f"{scene.url}/login")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{scene.url}/")


def path_of(scene: Scene, path: str) -> str:
    for name, id in (scene.runs | scene.batches | scene.jobs).items():
        path = path.replace(f"@{name}", id)
    return path


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("CONSOLE_SCREENSHOTS"):
        # Hiding the caret would add a style to the page, which its policy forbids.
        page.screenshot(path=Path(folder) / f"console-{name}.png", caret="initial")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_is_accessible_and_fits(scene: Scene, open_page: Open, theme: Any, width: int) -> None:
    page = open_page("/runs", viewport={"width": width, "height": 844}, color_scheme=theme)
    session = page.context.new_cdp_session(page)
    for path in PAGES:
        page.goto(scene.url + path_of(scene, path))
        expect(page.locator("h1")).to_have_count(1)
        assert page.title().endswith(" · Sleipnir"), path
        session.send("Runtime.evaluate", {"expression": AXE})  # the policy of the page would not let it in
        found = session.send(
            "Runtime.evaluate", {"expression": VIOLATIONS, "awaitPromise": True, "returnByValue": True}
        )
        assert found["result"]["value"] == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} scrolls sideways"


def test_hostile_content_is_shown_as_text(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs?agent=price-watch&agent=invoice-intake")
    expect(page.get_by_text("customer=<b>bold</b> & co").first).to_be_visible()
    for path in PAGES:
        page.goto(scene.url + path_of(scene, path))
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main script, main img, main iframe, main style").count() == 0, path
    page.goto(f"{scene.url}/runs/{scene.runs['failed']}")
    expect(page.locator("pre.bad")).to_contain_text(HOSTILE)
    page.goto(f"{scene.url}/runs?text={HOSTILE}")
    expect(page.locator(".fchip").first).to_contain_text("<script>")


def test_a_value_of_ten_megabytes_is_cut_and_can_be_downloaded(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs/@big?tab=state")
    expect(page.get_by_text("The beginning of 9.5 MiB.").first).to_be_visible()
    assert len(page.content()) < 100_000
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the state").first.click()
    assert download.value.path().stat().st_size > 10_000_000


def arrives(page: Page, url: str) -> None:
    """Wait until the page of this address is there with its scripts, which take the keys."""
    expect(page).to_have_url(url)
    page.wait_for_load_state()


def test_a_person_finds_the_failed_run_of_a_customer_and_sees_why(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs")
    picture(page, "runs")
    page.get_by_role("link", name="Failed 14").first.click()
    arrives(page, f"{scene.url}/runs?status=failed")
    expect(page.locator("tbody tr")).to_have_count(14)  # with 11 rows of a batch
    page.keyboard.press("/")
    page.keyboard.type("tag:region=emea")
    page.keyboard.press("Enter")
    arrives(page, f"{scene.url}/runs?status=failed&tag=region%3Demea")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Runs")
    expect(page.locator(".banner.s-failed")).to_contain_text("account 4711 is closed")
    page.locator(".graph a", has_text="done").click()
    expect(page.get_by_text("The run has not reached this node.")).to_be_visible()
    page.wait_for_load_state()
    page.keyboard.press("g")
    page.keyboard.press("r")
    arrives(page, f"{scene.url}/runs")
    page.locator("#q").fill(scene.runs["booked"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{scene.url}/runs/{scene.runs['booked']}")
    expect(page.locator(".tl li")).to_have_count(5)


def test_a_page_follows_its_run_without_moving_what_is_read(scene: Scene, open_page: Open) -> None:
    run = scene.submit_invoice("follow")
    runs, page = open_page("/runs"), open_page(f"/runs/{run}")
    picture(page, "run")
    page.locator("details.act", has_text="Fork").locator("summary").click()
    page.get_by_label("Before the last visit").fill("half typed")
    scene.client.run(run).answer("approve")
    expect(page.locator("#run-state")).to_contain_text("Completed", timeout=30_000)
    expect(page.locator(".sleipnir .done", has_text="book")).to_be_visible()
    assert page.get_by_label("Before the last visit").input_value() == "half typed"
    expect(page).to_have_title(f"Completed: {run}, invoice-intake · Sleipnir")
    expect(runs.locator(f"#s-{run}")).to_contain_text("Completed", timeout=30_000)
    another = scene.submit_invoice("another")
    expect(runs.locator("#new-runs")).to_have_text("1 new run", timeout=30_000)
    assert runs.locator(f"#row-{another}").count() == 0, "rows come when they are asked for"
    runs.locator("#new-runs").click()
    expect(runs.locator(f"#row-{another}")).to_be_visible()


def act(page: Page, label: str, **fields: str) -> None:
    """Open an action of the page's head, fill in its form, and send it."""
    action = page.locator("details.act", has=page.locator("summary", has_text=label))
    action.locator("summary").click()
    expect(action.locator("pre")).to_contain_text("curl -X ")
    for name, text in fields.items():
        action.locator(f"[name={name}]").fill(text)
    action.get_by_role("button", name=label).click()


@pytest.mark.parametrize("javascript", [True, False])
def test_an_operator_starts_a_run_of_an_agent(scene: Scene, open_page: Open, javascript: bool) -> None:
    page = open_page("/agents", user="operator", java_script_enabled=javascript)
    page.get_by_role("link", name="invoice-intake").click()
    expect(page.locator(".sleipnir .node", has_text="approve")).to_be_visible()
    if javascript:
        picture(page, "agent")
    page.get_by_role("link", name="Start a run").first.click()
    page.get_by_label("Prompt").fill("invoice 4711")
    page.get_by_label("Tags").fill("customer=globex")
    page.get_by_label("Initial state").fill('{"number": }')
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert")).to_contain_text("the initial state is not JSON")
    assert page.get_by_label("Prompt").input_value() == "invoice 4711"
    page.get_by_label("Initial state").fill('{"number": "1"}')
    page.get_by_role("button", name="Start the run").click()
    expect(page.locator("#run-state")).to_be_visible()
    run = page.url.rpartition("/")[2]
    assert scene.client.run(run).info().tags == {"customer": "globex"}
    scene.client.run(run).cancel()


@pytest.mark.parametrize("javascript", [True, False])
def test_an_operator_adds_a_schedule_and_steers_it(scene: Scene, open_page: Open, javascript: bool) -> None:
    name = f"nightly-{javascript}".lower()
    page = open_page("/schedules", user="operator", java_script_enabled=javascript)
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Agent").fill("nightly-report")
    page.get_by_label("Prompt").fill("half a page of text")
    page.get_by_label("Expression, interval or time").fill("0 7 * *")
    page.get_by_role("button", name="Add schedule").click()
    expect(page.get_by_role("alert")).to_contain_text("It was not added.")
    assert page.get_by_label("Prompt").input_value() == "half a page of text"
    page.get_by_label("Expression, interval or time").fill("0 7 * * 1-5")
    page.get_by_role("button", name="Add schedule").click()
    expect(page).to_have_url(f"{scene.url}/schedules/{name}")
    expect(page.locator("#next li")).to_have_count(5)
    act(page, "Pause", reason="audit week")
    expect(page.locator("#state")).to_contain_text("audit week")
    act(page, "Resume")
    expect(page.locator("#state")).to_contain_text("Active")
    act(page, "Run now")
    expect(page.locator("#run-state")).to_be_visible()
    page.goto(f"{scene.url}/schedules/{name}")
    expect(page.locator("#log tbody tr")).to_have_count(1)
    if javascript:
        picture(page, "schedule")
    act(page, "Remove", reason="not needed")
    expect(page).to_have_url(f"{scene.url}/schedules")
    assert page.get_by_role("link", name=name).count() == 0


@pytest.mark.parametrize("javascript", [True, False])
def test_an_admin_adds_a_user_whose_token_is_shown_once(scene: Scene, open_page: Open, javascript: bool) -> None:
    name = f"ann-{javascript}".lower()
    page = open_page("/users", java_script_enabled=javascript)
    page.get_by_role("link", name="New user").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password").fill("short")
    page.get_by_role("button", name="Add user").click()
    expect(page.get_by_role("alert")).to_contain_text("Nobody was added.")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Add user").click()
    expect(page).to_have_url(f"{scene.url}/users/{name}")
    action = page.locator("details.act", has=page.locator("summary", has_text="Change a role"))
    action.locator("summary").click()
    action.locator("[name=role]").select_option("operator")
    action.get_by_role("button", name="Change a role").click()
    expect(page.locator("main table").first).to_contain_text("operator")
    own = open_page("/me", user=name, java_script_enabled=javascript)
    own.get_by_label("What it is for").fill("deploy script")
    own.get_by_role("button", name="Make token").click()
    token = own.get_by_label("The token").inner_text()
    assert scene.client.access.of_token(token).user == name
    own.goto(f"{scene.url}/me")
    expect(own.get_by_text("deploy script")).to_be_visible()
    assert token not in own.content()
    own.get_by_role("button", name="Revoke").click()
    expect(own.get_by_text("deploy script")).to_have_count(0)
    page.goto(f"{scene.url}/audit?on=user+{name}")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    expect(page.get_by_role("cell", name="user added")).to_be_visible()
    assert PASSWORD not in page.content()


def test_the_fleet_is_shown(scene: Scene, open_page: Open) -> None:
    page = open_page("/fleet", user="operator")
    expect(page.get_by_role("group", name="Workers").get_by_role("cell", name="functions", exact=True)).to_be_visible()
    picture(page, "fleet")
    page.get_by_role("link", name="Incident switch").click()
    expect(page.get_by_role("heading", name="Incident switch")).to_be_visible()


def test_an_operator_changes_a_limit_and_resets_it(scene: Scene, open_page: Open) -> None:
    page = open_page("/fleet", user="operator")
    row = page.get_by_role("group", name="Limits").locator("tr", has_text="requests a minute")

    def send(label: str, **fields: str) -> None:
        action = row.locator("details.act", has=page.locator("summary", has_text=label))
        action.locator("summary").click()
        for name, text in fields.items():
            action.locator(f"[name={name}]").fill(text)
        action.get_by_role("button", name=label, exact=True).click()

    send("Set", value="300", reason="the provider asked")
    expect(row).to_contain_text("the provider asked; limits.yaml: 600")
    expect(row).to_contain_text("0 / 300")
    [use] = scene.client.limits()
    assert use.change is not None and use.change.bounds == {"requests_per_minute": 300}
    parallel = page.get_by_role("group", name="Limits").locator("tr", has_text="parallel calls")
    expect(parallel).to_contain_text("0 / 8")
    send("Reset", reason="it is over")
    expect(row).to_contain_text("0 / 600")
    assert scene.client.limits()[0].change is None
    viewer = open_page("/fleet", user="viewer")
    expect(viewer.get_by_text("mistral:*").first).to_be_visible()
    assert viewer.get_by_role("group", name="Limits").locator("details").count() == 0


@pytest.mark.parametrize("javascript", [True, False])
def test_an_operator_pauses_resumes_and_cancels(scene: Scene, open_page: Open, javascript: bool) -> None:
    run = scene.submit_invoice("steered")
    page = open_page(f"/runs/{run}", user="operator", java_script_enabled=javascript)

    def steer(label: str, state: str, reason: str = "") -> None:
        action = page.locator("details.act", has=page.locator("summary", has_text=label))
        action.locator("summary").click()
        expect(action.locator("pre")).to_contain_text(f"curl -X POST {scene.url}/api/v1/runs/{run}/")
        if reason:
            action.locator("input.in").fill(reason)
        action.get_by_role("button", name=label).click()
        for _ in range(60):
            if state in page.locator("#run-state").inner_text():
                break
            page.wait_for_timeout(250)
            if not javascript:
                page.reload()
        expect(page.locator("#run-state")).to_contain_text(state)

    steer("Pause", "Paused", "month end")
    expect(page.locator("#run-state")).to_contain_text("month end")
    page.goto(f"{scene.url}/runs/{run}")
    steer("Resume", "Waits for a person")
    page.goto(f"{scene.url}/runs/{run}")
    steer("Cancel run", "Cancelled")


def test_a_viewer_has_no_buttons(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs/@asking", user="viewer")
    expect(page.locator("#run-state")).to_be_visible()
    expect(page.locator("details.act")).to_have_text([re.compile("Compare")])  # which changes nothing


def test_the_theme_is_kept(scene: Scene, open_page: Open) -> None:
    page = open_page("/runs")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.querySelector('main')).backgroundColor") == "rgb(18, 22, 29)"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_page_says_that_redis_is_away_and_goes_on_by_itself(
    scene: Scene, redis: RedisServer, open_page: Open
) -> None:
    page, other = open_page("/runs"), open_page("/runs/@asking")
    redis.kill()
    try:
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer", timeout=60_000)
        expect(page.locator("tbody tr").first).to_be_visible()
        other.goto(f"{scene.url}/runs")
        expect(other.get_by_role("heading", name="Redis does not answer")).to_be_visible(timeout=60_000)
    finally:
        redis.start()
    expect(page.locator("#trouble")).to_be_empty(timeout=60_000)
    expect(other.get_by_role("heading", name="Runs")).to_be_visible(timeout=60_000)
    scene.submit_invoice("after")  # other tests use the deployment too: it works again
