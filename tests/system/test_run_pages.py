"""What a notebook shows of a run: HTML of hostile values, of runs in every state, and without Redis."""

from __future__ import annotations

import asyncio
import base64
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from sleipnir import AsyncClient, Client
from sleipnir.client.run_page import MOST_CHARS, MOST_KEYS
from sleipnir.settings import Settings
from tests.processes import RedisServer, Stack, write_agent

HOSTILE = (
    "</td></table><script>alert(1)</script><img src=x onerror=alert(2)> $\\href{javascript:alert(3)}{x}$ \" ' & \u202e"
)
GRAPH = """
name: "a <b>name</b>"
version: sleipnir/1
start: work
nodes:
  work: {type: function, call: "steps.py:work", next: ask}
  ask: {type: input, question: "<script>alert(4)</script>?", state_updates: {answer: "{{input}}"}, next: done}
  done: {type: end, output: "{{answer}}"}
"""
STEPS = """
def work(state):
    if state["initial_prompt"] == "fail":
        raise ValueError("<script>alert(5)</script>")
    return {"found": [1, {"two": None}]}
"""
ELEMENTS = {"div", "b", "img", "table", "tr", "td"}
ATTRIBUTES = {"class", "style", "alt", "src"}


class Page(HTMLParser):
    """The elements, rows and pictures of a page. It is an error if it has others than a page may have."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.pictures: list[str] = []
        html.encode()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert tag in ELEMENTS
        assert set(named) <= ATTRIBUTES
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        elif tag == "img":
            kind, _, data = (named["src"] or "").partition(",")
            assert kind == "data:image/svg+xml;base64"
            self.pictures.append(base64.b64decode(data).decode())

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    @property
    def values(self) -> dict[str, str]:
        return {name: value for name, value in self.rows}


def elements_of(picture: str) -> set[str]:
    return {element.tag.partition("}")[2] for element in ElementTree.fromstring(picture).iter()}


def test_hostile_values_of_a_run_are_text_in_a_notebook(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)
    with Client(stack.settings) as client:
        run = client.submit(agent, HOSTILE, state={"<i>key</i>": {"<b>": HOSTILE}})
        gates = []
        for event in run.events():
            if event.type == "gate_opened":
                gates = run.gates()
                page = Page(run._repr_html_())
                run.answer(HOSTILE)
        ended = Page(run._repr_html_())
    assert [gate.node for gate in gates] == ["ask"]
    assert page.values["question"] == "ask: <script>alert(4)</script>?"
    assert page.values["status"] == "waiting"
    assert page.values["initial_prompt"].startswith('"</td></table><script>alert(1)</script><img src=x onerror=')
    assert page.values["initial_prompt"].endswith('\\u202e"')
    assert page.values["<i>key</i>"].startswith('{"<b>": "</td></table><script>')
    assert page.values["found"] == '[1, {"two": null}]'
    assert "waiting: 1" in page.pictures[0]
    assert ended.values["status"] == "completed"
    assert ended.values["output"].startswith("</td></table><script>")
    assert "done: " in ended.pictures[0]
    assert elements_of(ended.pictures[0]) <= {"svg", "title", "desc", "style", "rect", "g", "path", "text", "circle"}


def test_a_failed_run_shows_its_error_and_an_unfinished_one_where_it_is(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)
    with Client(stack.settings) as client:
        run = client.submit(agent, "fail")
        run.wait(60)
        page = Page(run._repr_html_())
    assert page.values["status"].startswith("failed")
    assert "<script>alert(5)</script>" in page.values["error"]
    assert "failed: 1" in page.pictures[0]


def test_the_size_of_a_page_is_bounded(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "large", GRAPH, steps_py=STEPS)
    large = {f"key{number:03}": "x" * 20_000 for number in range(60)}
    with Client(stack.settings) as client:
        run = client.submit(agent, "p", state=large)
        page = Page(run._repr_html_())
    shown = [value for name, value in page.rows if name.startswith("key")]
    assert 0 < len(shown) <= MOST_KEYS
    assert {len(value) for value in shown} == {MOST_CHARS + 1}
    assert "more keys" in page.values["…"]


def test_a_run_is_shown_from_an_event_loop(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)

    async def shown() -> str:
        async with AsyncClient(stack.settings) as client:
            run = await client.submit(agent, "fail")
            await run.wait(60)
            return run._repr_html_()

    assert Page(asyncio.run(shown())).values["status"].startswith("failed")


def test_without_redis_a_page_shows_what_happened(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)
    server = RedisServer()
    settings = Settings(**server.addresses, home=tmp_path / "home", partitions=2)
    try:
        with Client(settings) as client:
            run = client.submit(agent, "p")
            assert Page(run._repr_html_()).values["status"] == "submitted"
            server.kill()
            page = Page(run._repr_html_())
    finally:
        server.stop()
    assert page.rows == []
    assert run.id in page.texts[0]
    assert "StoreUnavailable: " in page.texts[1]


def test_a_run_in_an_event_loop_without_redis_shows_what_happened(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)
    server = RedisServer()
    settings = Settings(**server.addresses, home=tmp_path / "home", partitions=2)

    async def shown() -> str:
        async with AsyncClient(settings) as client:
            run = await client.submit(agent, "p")
            server.kill()
            return run._repr_html_()

    try:
        page = Page(asyncio.run(shown()))
    finally:
        server.stop()
    assert "StoreUnavailable: " in page.texts[1]


def test_a_run_whose_bundle_is_gone_shows_everything_but_its_picture(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "hostile", GRAPH, steps_py=STEPS)
    server = RedisServer()
    try:
        with Client(Settings(**server.addresses, home=tmp_path / "home", partitions=2)) as client:
            run = client.submit(agent, "p", state={"mine": 1})
            for digest in client.store.bundles.unused_since(2**53):
                client.store.bundles.drop(digest, 2**53)
            page = Page(run._repr_html_())
    finally:
        server.stop()
    assert page.pictures == []
    assert "BundleError: " in page.texts[1]
    assert page.values["mine"] == "1"
