"""Why a visit is where it is, in words."""

from __future__ import annotations

from typing import get_args

import pytest

from sleipnir.cli.reasons import in_words
from sleipnir.views import Reason, ReasonCode

NOW_MS = 1_000_000

SAID = [
    (Reason("queued", queue="scripts", position=3, consumers=2), "queued on 'scripts', 3rd in line, 2 consumers"),
    (Reason("queued", queue="scripts", position=1, consumers=1), "queued on 'scripts', 1st in line, 1 consumer"),
    (Reason("queued", queue="scripts", position=112, consumers=9), "queued on 'scripts', 112th in line, 9 consumers"),
    (Reason("queued", queue="scripts", consumers=2), "queued on 'scripts', 2 consumers"),
    (Reason("queued", queue="rag", position=7, consumers=0), "queued on 'rag': no worker serves it"),
    (Reason("queued", queue="llm"), "queued on 'llm'"),
    (Reason("paused", queue="llm", by="ann@desk"), "paused by ann@desk"),
    (Reason("retry", until_ms=NOW_MS + 12_000, error="Boom\nat 1"), "tries again in 12 s after: Boom at 1"),
    (Reason("retry", until_ms=NOW_MS - 1), "tries again now"),
    (Reason("lease", worker="w1@host", until_ms=NOW_MS + 3_100), "runs on w1@host, lease expires in 4 s"),
    (Reason("lease", worker="w1@host", until_ms=NOW_MS - 3_000), "runs on w1@host, lease expired 3 s ago"),
    (Reason("lease", worker="w1@host"), "runs on w1@host"),
    (Reason("result", worker="w1@host"), "result of w1@host waits for the scheduler"),
    (Reason("lost", worker="w1@host"), "lost by w1@host; waits for the scheduler"),
    (Reason("person"), "waits for a person's answer"),
    (Reason("person", until_ms=NOW_MS + 7_200_000), "waits for a person's answer, expires in 2h00m"),
    (Reason("answered"), "answered; waits for the scheduler"),
    (Reason("slot", under_way=8), "waits for a slot, 8 visits under way"),
    (Reason("slot", under_way=1), "waits for a slot, 1 visit under way"),
    (Reason("siblings"), "has ended, waits for the others of its step"),
    (Reason("siblings", error="Boom\nat 1"), "has failed, the others of its step have not ended: Boom at 1"),
    (Reason("items", progress=(237, 500), failed=2, under_way=8), "237 of 500 items, 2 failed, 8 at once"),
    (Reason("items", progress=(0, 10_000), failed=0, under_way=1), "0 of 10,000 items, 1 at once"),
]


@pytest.mark.parametrize(("reason", "words"), SAID)
def test_a_reason_is_said_in_words(reason: Reason, words: str) -> None:
    assert in_words(reason, NOW_MS) == words


def test_every_code_has_words() -> None:
    assert {reason.code for reason, _ in SAID} == set(get_args(ReasonCode))
