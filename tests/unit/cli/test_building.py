"""What people see while a base is built, and what they are asked."""

from __future__ import annotations

import io
from typing import Any

import pytest

from sleipnir.cli.knowledge import building
from sleipnir.cli.knowledge.building import BuildView, asker, summary
from sleipnir.cli.terminal import terminal
from sleipnir.knowledge.application import Application
from sleipnir.knowledge.order import BuildDone, BuildNotice, Progress
from sleipnir.knowledge.rules import BaseOptions

BUILT: dict[str, Any] = {
    "chunks": 1240,
    "sources": {"a.md": 1000, "b.md": 240},
    "embedding_model": "openai:small",
    "dimensions": 384,
    "spent": {"embedded": 1000, "reused": 240, "tokens": 98765, "cost_usd": 0.0021, "took_s": 3.25},
}
NOTHING_SPENT = {"embedded": 0, "reused": 0, "tokens": 0, "cost_usd": 0.0, "took_s": 0.2}
WORDS = {**BUILT, "chunks": 1, "sources": {"a.md": 1}, "embedding_model": None, "dimensions": None}


def test_away_from_a_terminal_each_stage_leaves_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildView() as view:
        for told in (
            Progress("wait", 0, None, "box:12 builds it"),
            Progress("wait", 1, None, "box:12 builds it"),
            Progress("load", 0, 2, "a.md"),
            BuildNotice("b.pdf: is encrypted\x1b[2J; left out"),
            Progress("load", 2, 2),
            Progress("embed", 500, 1240),
            Progress("embed", 1240, 1240),
            Progress("write", 3_000_000, 3_000_000),
            Progress("share", 0),
            BuildDone(BUILT),
        ):
            view.report("look", told)
        view.report("words", Progress("load", 1, 1))
    assert capsys.readouterr().err.splitlines() == [
        "▸ look: waiting: box:12 builds it",
        "▸ look: note: b.pdf: is encrypted\\x1b[2J; left out",
        "▸ look: 2 sources loaded",
        "▸ look: 1,240 chunks with vectors",
        "▸ look: 1,240 chunks of 2 sources; openai:small, 384 dimensions; 1,000 chunks embedded, 240 known, "
        "98,765 tokens, $0.0021, in 3.25s",
        "▸ words: 1 source loaded",
    ]


def test_a_long_stage_reports_where_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SAY_S", 0.0)
    with BuildView() as view:
        view.report("look", Progress("embed", 0, 1240))
        view.report("look", Progress("embed", 620, 1240))
    assert capsys.readouterr().err.splitlines() == [
        "▸ look: embedding 620 of 1,240",
        "▸ look: only 620 chunks with vectors",
    ]


def test_on_a_terminal_a_bar_goes_before_its_line_comes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "can_redraw", lambda: True)
    monkeypatch.setattr(building, "DRAW_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # T3 of the second review: rich draws nothing on a dumb one
    monkeypatch.setenv("COLUMNS", "80")
    with BuildView() as view:
        view.report("helper/look", Progress("load", 1, 2, "/a/very/long/path/that/is/cut/at/its/front/a.md"))
        view.hide()  # somebody is asked something
        view.report("helper/look", Progress("load", 2, 2))
        view.report("helper/look", Progress("write", 0, 1, "/a/look.yaml"))
    drawn = capsys.readouterr().err
    assert "helper/look loading" in drawn
    assert "1 of 2" in drawn
    assert "…h/that/is/cut/at/its/front/a.md" in drawn
    assert "helper/look writing" in drawn
    *_, last_line = [line for line in drawn.splitlines() if "▸" in line]
    assert last_line.endswith("▸ helper/look: 2 sources loaded")


def test_a_failed_build_is_not_reported_as_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), BuildView() as view:
        view.report("look", Progress("embed", 0, 1240))
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_a_base_without_a_model_is_marked_and_an_unknown_price_is_not_zero() -> None:
    without = summary({**WORDS, "spent": NOTHING_SPENT})
    assert without == "1 chunk of 1 source; keywords only, no embedding model"
    assert "cost unknown" in summary({**BUILT, "spent": {**BUILT["spent"], "cost_usd": None}})


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Any:
    def typed(text: str) -> Any:
        monkeypatch.setattr(terminal, "can_ask", lambda: True)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return asker(BuildView())

    return typed


def test_no_question_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "can_ask", lambda: False)
    assert asker(BuildView()) is None


@pytest.mark.parametrize(
    ("text", "default", "answer"),
    [("\n", True, True), ("\n", False, False), ("Y\n", False, True), ("perhaps\nno\n", True, False), ("", True, False)],
)
def test_a_question_is_answered_by_yes_no_or_the_default(typing: Any, text: str, default: bool, answer: bool) -> None:
    assert typing(text).confirm("Remove it?", default=default) is answer


LISTED = Application(chunk_sizes={"openai:small": 2000, "mine:e5": None})


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("\n\n\n", LISTED, ("openai:small", 2000, 100)),
        ("2\n0\n500\n500\n499\n", LISTED, ("mine:e5", 500, 499)),
        ("3\n", LISTED, ("none", None, None)),
        ("\n", Application(), ("none", None, None)),
        ("9\nada\nopenai:ada\n\nx\n\n", Application(), ("openai:ada", 1000, 50)),
    ],
)
def test_each_missing_value_is_asked_for(
    typing: Any, text: str, said: Application, expected: tuple[str, int | None, int | None]
) -> None:
    wanted = typing(text).complete(BaseOptions(("d",)), said)
    assert (wanted.embedding_model, wanted.chunk_size, wanted.chunk_overlap) == expected


@pytest.mark.conformance("K09")
def test_a_given_value_is_not_asked_for(typing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = typing("7\n").complete(BaseOptions(("d",), embedding_model="a:b", chunk_size=100), Application())
    assert (wanted.embedding_model, wanted.chunk_size, wanted.chunk_overlap) == ("a:b", 100, 7)
    assert capsys.readouterr().err == "Set chunk overlap [5]: "


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_the_end_of_the_input_answers_nothing(typing: Any, text: str) -> None:
    assert typing(text).complete(BaseOptions(("d",)), LISTED) is None


def test_yes_takes_every_default() -> None:
    always = asker(BuildView(), yes=True)
    assert always is not None
    assert always.confirm("Go on without?", default=False) is False
    wanted = always.complete(BaseOptions(("d",)), LISTED)
    assert wanted is not None
    assert (wanted.embedding_model, wanted.chunk_size, wanted.chunk_overlap) == ("openai:small", 2000, 100)
    alone = always.complete(BaseOptions(("d",)), Application())
    assert alone is not None
    assert alone.recipe().embedding_model is None
