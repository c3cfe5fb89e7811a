"""Which visit a log record is about."""

from __future__ import annotations

import threading
from typing import Any

from sleipnir.logs import _say_visit, handling


def said(**event: Any) -> dict[str, Any]:
    return dict(_say_visit(None, "info", event))


def test_a_record_reports_which_visit_is_handled_and_none_outside() -> None:
    assert said(event="x") == {"event": "x"}
    with handling("r", "a", 3, 2):
        assert said(event="x") == {"event": "x", "run": "r", "node": "a", "visit": 3, "attempt": 2}
        with handling("other"):
            assert said(event="x") == {"event": "x", "run": "other"}
        assert said(event="x")["run"] == "r"
    assert said(event="x") == {"event": "x"}


def test_the_fields_of_a_record_take_precedence() -> None:
    with handling("r", "a", 3, 2):
        assert said(run="s")["run"] == "s"
        assert said(visit=4, node="b") == {"run": "r", "visit": 4, "node": "b"}, "the attempt is another visit's"
        assert said(visit=3) == {"run": "r", "visit": 3, "node": "a", "attempt": 2}


def test_threads_handle_visits_of_their_own() -> None:
    found: list[dict[str, Any]] = []
    with handling("r", "a", 3, 2):
        thread = threading.Thread(target=lambda: found.append(said()))
        thread.start()
        thread.join()
    assert found == [{}]
