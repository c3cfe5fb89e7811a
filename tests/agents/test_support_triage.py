"""The support-triage agent, run to its ends on its example tickets and on tickets that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sleipnir.testing import Reply
from tests.shipped import AGENTS, Lab

AGENT = AGENTS / "support-triage"


def sorted_as(category: str, urgency: str = "normal", sentiment: str = "calm", words: str = "") -> str:
    gist = "The customer wants something."
    found = {"category": category, "urgency": urgency, "sentiment": sentiment, "language": "English", "gist": gist}
    return json.dumps({**found, "words": words.split()})


def drafted(reply: str, *used: str, is_complete: bool = True) -> str:
    return json.dumps({"reply": reply, "used": used, "is_complete": is_complete})


EXPORT = sorted_as("how_to", words="export markdown pictures")
CHARGED = sorted_as("billing", "high", "angry", words="refund charged twice invoice")


def test_a_calm_ticket_is_answered_from_an_article_without_a_person(lab: Lab, tmp_path: Path) -> None:
    says = [EXPORT, drafted("Hello Jo, open Settings.", "export-notes.md", "made-up.md")]
    ended = lab.run("support-triage", "tickets/export.txt", says=says, here=tmp_path, product="Penpal")
    assert ended.output == (
        "Hello Jo, open Settings.\n\nYour support team\n\n--\nhow_to, normal, calm, English; from export-notes.md"
    )
    asked = ended.requests[1].prompt
    assert asked.startswith("Product: Penpal\n") and '<article name="export-notes.md">\n# Export your notes' in asked
    assert "reset-password.md" not in asked


def test_an_urgent_one_waits_and_is_changed_until_a_person_sends_it(lab: Lab, tmp_path: Path) -> None:
    says = [
        CHARGED,
        drafted("You get it back.", "refunds.md"),
        drafted("You get it back, and a month for free.", "refunds.md"),
        Reply(status=400, error="overloaded"),
    ]
    answers = [("approve", "Give her a month for free."), ("approve", "Shorter."), ("approve", "send")]
    ended = lab.run("support-triage", "tickets/double-charge.txt", says=says, answers=answers, here=tmp_path)
    assert "A person should look at it: it is high, the customer is angry." in ended.questions[0]
    assert ended.requests[2].prompt.endswith("What shall be different: Give her a month for free.\n")
    assert "and a month for free.\n\nYour support team\n\nSend this answer?" in ended.questions[1]
    assert "(It was not changed. LLM node failed: " in ended.questions[2]
    assert ended.output.startswith("You get it back, and a month for free.\n\nYour support team\n\n--\nbilling, high")


def test_what_no_article_answers_can_be_handed_over(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "help").mkdir()
    (tmp_path / "help" / "bells.md").write_text("# Bells\n\nHow to ring.")
    says = [sorted_as("wish", words="colour"), drafted("A colleague will write.", is_complete=False)]
    ended = lab.run(
        "support-triage", "Could it be blue?", says=says, answers=[("approve", "hand over")], here=tmp_path,
        articles="help", signature="",
    )  # fmt: skip
    assert "No article fits this ticket." in ended.requests[1].prompt
    assert ended.output == (
        "Handed over to a person. wish, normal, calm, English; from no article\n"
        "A person should look at it: the articles do not answer it.\n\n"
        "The draft was:\nA colleague will write."
    )


def test_spam_gets_no_answer(lab: Lab, tmp_path: Path) -> None:
    answers = [("ask_ticket", "Buy cheap watches!")]
    ended = lab.run("support-triage", "", says=[sorted_as("spam")], answers=answers, here=tmp_path)
    assert ended.output == "Spam: The customer wants something."


def test_without_a_model_the_ticket_goes_to_a_person_with_the_reason(lab: Lab, tmp_path: Path) -> None:
    ended = lab.run("support-triage", "My notes are gone.", says=[Reply(status=401)], here=tmp_path)
    assert ended.output.startswith("Somebody has to answer this one. LLM node failed: ")
    assert ended.output.endswith("\n\nMy notes are gone.")


def test_a_ticket_or_a_folder_that_is_not_there_is_named(lab: Lab, tmp_path: Path) -> None:
    missing = lab.run("support-triage", "tickets/none.txt", here=tmp_path)
    assert missing.output == "There is no ticket. tickets/none.txt does not exist here or in the agent's folder."
    (tmp_path / "empty.txt").touch()
    empty = lab.run("support-triage", "empty.txt", here=tmp_path)
    assert empty.output == "There is no ticket. empty.txt is empty or not a text file."
    no_articles = lab.run("support-triage", "tickets/export.txt", says=[EXPORT], here=tmp_path, articles="none")
    assert no_articles.info.status == "completed"
    assert no_articles.output.startswith("Somebody has to answer this one: the articles could not be read. ")
    assert f"{tmp_path}/none is no folder; name one: --var articles=DIR" in no_articles.output
    assert len(no_articles.requests) == 1


def find_articles(ticket: str, *words: str, folder: Path = AGENT) -> list[str]:
    """What scripts/find_articles.py finds."""
    state: dict[str, Any] = {"ticket": ticket, "gist": "", "words": words}
    env = {"PATH": os.environ["PATH"], "LLM_AGENT_DATA_DIR": str(folder), "GRAPH_STATE": json.dumps(state)}
    script = [sys.executable, str(AGENT / "scripts" / "find_articles.py")]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["articles"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("ticket", "words", "first"),
    [
        ("I forgot my password and the mail does not come", (), "reset-password.md"),
        ("Which buttons end my subscription?", ("cancel", "plan"), "cancel-plan.md"),
        ("Conflicts everywhere on my devices", (), "sync-problems.md"),
        ("Ich wurde doppelt belastet", ("refund", "double", "charge"), "refunds.md"),
    ],
)
def test_the_search_finds_the_article_by_its_words(ticket: str, words: tuple[str, ...], first: str) -> None:
    assert find_articles(ticket, *words)[0] == first


def test_the_search_finds_nothing_without_matching_words_or_articles() -> None:
    assert find_articles("xyzzy plugh") == []
