"""Answers: scripted on the command line, or typed at a terminal."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.runs.gate_answers import NoAnswer, ScriptedAnswers, answer_gate, ask, how_to_answer
from sleipnir.graph.model import Json
from sleipnir.runs.views import GateInfo

APPROVAL = GateInfo("r1run", 4, "approve", "approval", "Send the report?", ("yes", "no"), None, 0)
BUDGET = GateInfo("r1run", 7, "budget", "budget", "The run has cost 2 USD. Continue?", ("yes", "no"), None, 0)
INPUT = GateInfo("r1run", 2, "name", "input", "Who is it for? [default: me]", (), "me", 0)


def typed(*lines: str) -> Callable[[], str]:
    """A terminal at which these lines are typed, then the input is closed."""
    left = list(lines)
    return lambda: left.pop(0) + "\n" if left else ""


def test_a_choice_is_made_by_number() -> None:
    assert ask(APPROVAL, typed("2")) == "no"


def test_a_choice_is_made_by_its_text() -> None:
    assert ask(APPROVAL, typed(" yes ")) == "yes"


def test_an_option_that_reads_like_a_number_wins_over_the_number() -> None:
    assert ask(replace(APPROVAL, options=("3", "2", "1")), typed("1")) == "1"


def test_a_slip_of_the_pen_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(APPROVAL, typed("yess", "0", "4", "", "1")) == "yes"
    assert capsys.readouterr().err.count("Type a number from 1 to 3") == 4


def test_the_last_choice_is_for_free_text() -> None:
    assert ask(APPROVAL, typed("3", "only to Ann")) == "only to Ann"


def test_another_budget_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(BUDGET, typed("1")) == "yes"
    assert ask(BUDGET, typed("3", "much", "inf", "2.50")) == "2.50"
    told = capsys.readouterr().err
    assert "3. Another limit" in told
    assert told.count("the answer must be 'yes', 'no' or a number of more than 0") == 2
    assert how_to_answer(BUDGET, GlobalOptions()).endswith("sleipnir answer r1run budget 'a number'")


def test_the_question_shows_numbered_options_and_the_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    ask(APPROVAL, typed("1"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Send the report?\n  1. yes\n  2. no\n  3. Other (custom)\nChoose [1-3]: "


def test_an_approval_without_options_takes_free_text() -> None:
    assert ask(replace(APPROVAL, options=()), typed("as you like")) == "as you like"


def test_an_input_shows_its_default_once_and_keeps_the_empty_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(INPUT, typed("")) == ""
    assert capsys.readouterr().err == "Who is it for? [default: me]\nYour answer: "
    ask(replace(INPUT, question="Who is it for?"), typed("x"))
    assert "Who is it for? [default: me]" in capsys.readouterr().err


def test_a_closed_input_leaves_the_question_open() -> None:
    for gate in (APPROVAL, INPUT):
        with pytest.raises(NoAnswer) as unanswered:
            ask(gate, typed())
        assert unanswered.value.gate == gate


def test_control_sequences_in_a_question_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    ask(replace(APPROVAL, question="\x1b[31mred", options=("\x1b[2J",)), typed("1"))
    assert "\x1b" not in capsys.readouterr().err


def test_a_scripted_answer_holds_for_every_visit_of_its_node() -> None:
    answers = ScriptedAnswers([("approve", "yes")])
    assert [answers.next_for(replace(APPROVAL, seq=seq)) for seq in range(3)] == ["yes", "yes", "yes"]
    assert answers.next_for(replace(APPROVAL, node="other")) is None
    assert answers.unused == set()


def test_several_scripted_answers_are_used_in_order_and_the_last_one_stays() -> None:
    answers = ScriptedAnswers([("approve", "no"), ("name", "Ann"), ("approve", "yes")])
    assert [answers.next_for(replace(APPROVAL, seq=seq)) for seq in range(3)] == ["no", "yes", "yes"]
    assert answers.unused == {"name"}


def test_a_scripted_answer_that_was_not_understood_is_not_given_again() -> None:
    answers = ScriptedAnswers([("approve", "maybe"), ("approve", "perhaps")])
    assert [answers.next_for(APPROVAL) for _ in range(3)] == ["maybe", "perhaps", None]
    assert answers.next_for(replace(APPROVAL, attempt=2)) == "perhaps"


def test_the_way_to_answer_is_a_command_that_can_be_typed() -> None:
    options = GlobalOptions(redis_url="redis://:secret@host:6379/0")
    assert how_to_answer(replace(APPROVAL, options=("go on",)), options) == (
        "run r1run waits for an answer to 'approve': Send the report?\n"
        "  sleipnir --redis-url 'redis://:***@host:6379/0' answer r1run approve 'go on'\n"
        "  sleipnir --redis-url 'redis://:***@host:6379/0' answer r1run approve 'your own words'"
    )
    assert how_to_answer(INPUT, GlobalOptions()).splitlines()[1] == "  sleipnir answer r1run name 'your answer'"


def test_what_can_only_be_confirmed_takes_no_words_of_ones_own() -> None:
    lines = how_to_answer(replace(APPROVAL, kind="confirm", options=("yes", "no")), GlobalOptions()).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["yes", "no"]


def test_of_several_questions_of_one_node_each_is_answered_by_its_number() -> None:
    twin, other = replace(INPUT, seq=INPUT.seq + 1), replace(APPROVAL, seq=INPUT.seq + 2)
    assert how_to_answer(INPUT, GlobalOptions(), [INPUT, twin, other]).splitlines()[1] == (
        f"  sleipnir answer r1run {INPUT.seq} 'your answer'"
    )
    assert (
        how_to_answer(INPUT, GlobalOptions(), [INPUT, other])
        .splitlines()[1]
        .startswith("  sleipnir answer r1run name ")
    )


INTERRUPT = GateInfo(
    "r1run", 3, "pay", "interrupt", '{"pay":7}', (), None, 0, key="sure", payload={"pay": 7}, schema={"type": "boolean"}
)


def test_the_answer_to_an_interrupt_is_json_that_matches_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(INTERRUPT, typed("yes", "1", "true")) == "true"
    shown = capsys.readouterr().err
    assert shown.startswith('{"pay":7}\nYour answer (JSON or text): ')
    assert shown.count("does not match the schema of the question") == 2
    assert ask(replace(INTERRUPT, schema=None), typed("of course")) == "of course"


def test_the_command_for_an_interrupt_names_its_key_or_else_its_number() -> None:
    assert how_to_answer(INTERRUPT, GlobalOptions()).splitlines()[1] == "  sleipnir answer r1run sure 'JSON or text'"
    twin = replace(INTERRUPT, seq=4)
    assert how_to_answer(twin, GlobalOptions(), [INTERRUPT, twin]).endswith("answer r1run 4 'JSON or text'")


class Taken:
    """A run that remembers its answers."""

    def __init__(self) -> None:
        self.answers: list[Json] = []

    def answer(self, value: Json, gate: GateInfo) -> None:
        self.answers.append(value)


def test_a_scripted_answer_to_an_interrupt_is_json_and_to_an_input_text() -> None:
    run, answers = Taken(), ScriptedAnswers([("pay", "true"), ("name", "41")])
    answer_gate(run, INTERRUPT, answers)
    answer_gate(run, INPUT, answers)
    assert run.answers == [True, "41"]
