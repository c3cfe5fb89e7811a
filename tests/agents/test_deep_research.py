"""The deep-research agent, run to its ends on its example sources, on a page, and on sources that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sleipnir.testing import Call, Reply, Rule
from tests.shipped import Lab

BEN, TSAR, FORUM = "example/big-ben.md", "example/tsar-bell.md", "example/forum.txt"


def found(*evidence: tuple[str, str]) -> str:
    listed = [{"source": source, "quote": quote, "says": "Something."} for source, quote in evidence]
    return json.dumps({"answer": "It is so.", "evidence": listed})


PLAN = json.dumps({"title": "Why bells crack", "questions": ["How did Big Ben crack?", "Does fire crack bells?"]})
VETTING = json.dumps(
    {
        "vetting": [
            {"number": 1, "trust": "high", "why": "A careful account."},
            {"number": 2, "trust": "none", "why": "Hearsay."},
            {"number": 3, "trust": "medium", "why": ""},
        ]
    }
)
HAMMER = "The hammer had been more than twice as **heavy** ... The bell was turned by an eighth"
FIRE = "Water was poured on the hot metal, and eleven cracks opened"
RESEARCH = [
    Rule(PLAN, match=r"^Topic: [^\n]*\n\nThe sources:\n- example/bell-metal.md: Bell metal\n"),
    Rule(Reply(calls=[Call("search", {"query": "Big Ben hammer crack"})]), match="Question: How did"),
    Rule(Reply(calls=[Call("search", {"query": "fire cracks Moscow"})]), match="Question: Does fire"),
    Rule(
        found((BEN, HAMMER), (FORUM, "big bells only crack because of thunder"), (BEN, "It was struck by lightning.")),
        match=r'^\[\{"source":"example/big-ben\.md"',
    ),
    Rule(found((TSAR, FIRE), ("no-such.md", FIRE)), match=r'^\[\{"source":"example/tsar-bell\.md"'),
]
BAD, GOOD = (
    "Too heavy a hammer cracks a bell, and so does cold water [7].",
    "A hammer [1] or cold water [3] may crack it.",
)


def test_a_report_cites_only_quotations_of_trusted_sources(lab: Lab, tmp_path: Path) -> None:
    ended = lab.run(
        "deep-research", "Why do large bells crack?", rules=RESEARCH, says=[VETTING, BAD, GOOD],
        answers=[("approve", "accept")], here=tmp_path, sources="example",
    )  # fmt: skip
    assert ended.output == (
        f"# Why bells crack\n\n{GOOD}\n\n## Sources\n\n"
        "- [1] Two bells at Westminster, example/big-ben.md (trust: high; quotations checked)\n"
        "- [3] The bell that never rang, example/tsar-bell.md (trust: medium; quotations checked)"
    )
    first, second = (request.prompt for request in ended.requests[-2:])
    assert "forum" not in first, "what is not to be trusted is not used"
    assert "lightning" not in first, "what does not stand in its source is not used"
    assert "Mend that and write all of it again:\n- [7] is no source\n" in second


def test_a_person_has_the_report_written_again_and_a_failure_does_not_lose_it(lab: Lab, tmp_path: Path) -> None:
    uncited = GOOD + "\n\n" + "Whoever wants to know more should ask a founder of bells about it."
    failed = Reply(status=400, error="overloaded")
    answers = [("approve", "say who to ask"), ("approve", "in French"), ("approve", "discard")]
    ended = lab.run(
        "deep-research", "", rules=RESEARCH, says=[failed, GOOD, uncited, uncited, uncited, failed], here=tmp_path,
        answers=[("ask_topic", "Why do large bells crack?"), *answers], sources="example",
    )  # fmt: skip
    assert "(not vetted; quotations checked)" in ended.questions[1]
    assert "The reader says: say who to ask\nWrite all of it again" in ended.requests[-4].prompt
    assert 'still not right: this paragraph cites nothing: "Whoever wants' in ended.questions[2]
    assert "(It was not changed. LLM node failed: " in ended.questions[3]
    assert "Whoever wants" in ended.questions[3]
    assert ended.output.startswith("The report was discarded. Its questions were: ")


def test_questions_without_evidence_are_gaps_and_without_any_there_is_no_report(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\nNothing about it.\n")
    rules = [
        Rule(Reply(status=400, error="no"), match="Question: Does fire"),
        Rule(found(("notes.md", "All bells crack.")), match="Question: How did"),
    ]
    ended = lab.run("deep-research", "Why?", rules=rules, says=[PLAN], here=tmp_path)
    assert ended.output.startswith("The sources say nothing on this that could be checked.")
    assert "- How did Big Ben crack?\n- Does fire crack bells? (it could not be researched: " in ended.output


@pytest.fixture
def site() -> Iterator[str]:
    """The address of a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/bells" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"<script>no()</script><h1>Bells</h1><p>Frost &amp; fire crack&shy; bells.</p>")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pages_are_sources_and_those_that_are_not_there_are_named(lab: Lab, tmp_path: Path, site: str) -> None:
    address = f"{site}/bells"
    one = json.dumps({"title": "Bells", "questions": ["What cracks bells?"]})
    rules = [
        Rule(Reply(calls=[Call("read", {"source": address})]), match="Question: What"),
        Rule(found((address, "“Frost & fire crack bells.”"), ("https://elsewhere.example", "Q")), tool_results=True),
    ]
    says = [one, Reply(status=400), "Frost cracks bells [1], others say [2]."]
    ended = lab.run(
        "deep-research", "What?", rules=rules, says=says, answers=[("approve", "accept")], here=tmp_path,
        sources=f"{address}, {site}/none, missing",
    )  # fmt: skip
    [result] = ended.requests[2].tool_results
    assert json.loads(result.text)["text"] == "Bells\n\nFrost & fire crack\u00ad bells."
    assert "none cannot be read (HTTP Error 404" in ended.requests[0].prompt
    assert "missing does not exist" in ended.requests[0].prompt
    assert f"- [1] Bells, {address} (not vetted; quotations checked)" in ended.output
    assert "- [2] https://elsewhere.example (not vetted; quotations not checked)" in ended.output


def test_without_sources_or_a_model_the_run_reports_what_is_missing(lab: Lab, tmp_path: Path) -> None:
    nothing = lab.run("deep-research", "Why?", here=tmp_path, sources="nowhere")
    assert nothing.output == (
        "There is nothing to search. nowhere does not exist. Name folders, files or addresses: --var sources=docs"
    )
    no_model = lab.run("deep-research", "Why?", says=[Reply(status=401)], here=tmp_path, sources="example")
    assert no_model.output.startswith("The research was not begun. LLM node failed: ")
