"""The cause of a failure, where there is one line for it."""

from __future__ import annotations

import pytest

from sleipnir.runs.failure_text import cause_of, failure_of, in_one_line, without_output

TRACEBACK = """Graph execution failed for agent 'triage': at node 'parse': Script 'parse.py' failed with exit code 1:
Traceback (most recent call last):
  File "parse.py", line 3, in <module>
    main(1)
    ~~~~^^^
TypeError: main() takes 0 positional arguments but 1 was given"""

CAUSES = [
    ("", ""),
    ("boom", "boom"),
    ("boom\nTraceback", "boom"),
    ("failed with exit code 1:", "failed with exit code 1"),
    ("failed with exit code 1:\n\n", "failed with exit code 1"),
    ("failed with exit code 1:\nfirst\nlast\n", "last (failed with exit code 1)"),
    ("failed:\nx = (\n    ^\n", "x = ( (failed)"),
    ("failed:\nTypeError: no\n    at f (a.js:1:2)\n    at b.js:3\n\nNode.js v22.1.0", "TypeError: no (failed)"),
]


@pytest.mark.parametrize(("error", "cause"), CAUSES)
def test_the_cause_comes_before_what_introduces_it(error: str, cause: str) -> None:
    """Finding U12 of the second review."""
    assert cause_of(error) == cause


def test_rows_are_grouped_by_what_their_script_printed_last() -> None:
    """Finding U12 of the second review."""
    assert failure_of(TRACEBACK) == (
        "parse",
        "TypeError: main() takes 0 positional arguments but 1 was given (Script 'parse.py' failed with exit code 1)",
    )


def test_a_list_of_runs_spends_its_width_on_the_cause() -> None:
    """Finding U12 of the second review."""
    assert in_one_line(TRACEBACK).startswith("parse: TypeError: main() takes 0")


def test_the_failure_of_a_child_run_names_the_way_to_it() -> None:
    error = (
        "Graph execution failed for agent 'boss': at node 'call': Agent 'help' failed: "
        "Graph execution failed for agent 'help' (help): at node 'boom': no such file"
    )
    assert in_one_line(error) == "call/boom: no such file"
    assert failure_of(error) == ("call", "no such file")


def test_the_last_message_of_a_command_does_not_repeat_the_output_of_a_script() -> None:
    """Finding U16 of the second review: it was printed three times."""
    assert without_output(TRACEBACK) == (
        "Graph execution failed for agent 'triage': at node 'parse': TypeError: main() takes 0 positional arguments "
        "but 1 was given (Script 'parse.py' failed with exit code 1)"
    )
    for other in ("boom", "two\nlines", "Graph execution failed for agent 'a': at node 'b': no\nmore"):
        assert without_output(other) == other


def test_an_error_without_a_node_is_unchanged() -> None:
    assert in_one_line("Graph execution failed for agent 'a': over budget: 1 of 1") == "over budget: 1 of 1"
    assert failure_of("its bundle is gone") == (None, "its bundle is gone")
