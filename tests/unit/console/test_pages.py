"""What pages are made of: numbers and texts, states, searches, the timeline, links that stay here."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError

from sleipnir.runs.execution_trace import TraceStep
from sleipnir.runs.state_differences import StateDifference
from sleipnir.runs.views import Reason, ReasonCode, RunInfo, VisitInfo
from sleipnir_console.pages import formats
from sleipnir_console.pages.login_page import path_here
from sleipnir_console.pages.rendering import templates
from sleipnir_console.pages.run_search import may_be_run, parameters_of
from sleipnir_console.pages.run_states import WORDS, state_of
from sleipnir_console.pages.static_files import FOLDER, files, url_of
from sleipnir_console.pages.text_difference import MOST_CHANGED_LINES, changed_lines
from sleipnir_console.pages.timeline import OPENED, Axis, timeline_of
from sleipnir_console.pages.value_summary import changes_of

NOW = 1_795_473_244_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"), (0, "0 ms"), (68, "68 ms"), (38_240, "38.2 s"), (170_000, "2 min 50 s"), (18_120_000, "5 h 2 min"),
        (273_600_000, "3 d 4 h"), (-5, "0 ms"),
    ],
)  # fmt: skip
def test_durations(ms: int | None, text: str) -> None:
    assert formats.duration(ms) == text


def test_costs_sizes_and_counts() -> None:
    assert [formats.cost(usd) for usd in (None, 0, 0.0123, 1.839)] == ["–", "$0.00", "$0.012", "$1.84"]
    assert [formats.size(number) for number in (12, 65_536, 10_522_669_875)] == ["12 B", "64.0 KiB", "9.8 GiB"]
    assert [formats.short_count(number) for number in (812, 14_382, 1_040_000)] == ["812", "14.4k", "1.04M"]
    assert (formats.clock(NOW, NOW), formats.clock(NOW - 86_400_000, NOW)) == ("22:34:04", "22 Nov 22:34")


def test_characters_that_hide_what_follows_are_spelt_out() -> None:
    assert formats.visible("a\u202egnp.exe\x00\x1b[0m\n") == "a\\u202egnp.exe\ufffd\ufffd[0m\n"


@pytest.mark.parametrize("text", ["/runs?status=failed", "/"])
def test_a_login_leads_back(text: str) -> None:
    assert path_here(text) == text


@pytest.mark.parametrize("text", ["", "//evil", "/\\evil", "https://evil", "javascript:x", "/a b", "/a\r\nb"])
def test_a_login_leads_nowhere_else(text: str) -> None:
    assert path_here(text) == "/"


def test_a_search_is_filters() -> None:
    assert parameters_of('agent:triage state:failed tag:customer="Acme Ltd" cost:>1.5 account closed') == [
        ("agent", "triage"), ("status", "failed"), ("tag", "customer=\"Acme"), ("cost_min", "1.5"),
        ("text", 'Ltd" account closed'),
    ]  # fmt: skip
    assert parameters_of('thread:"support/a b" is:person') == [("thread", "support/a b"), ("reason", "person")]
    assert parameters_of("nonsense:x state:person") == [("reason", "person"), ("text", "nonsense:x")]


def test_what_may_be_an_id() -> None:
    assert may_be_run(" 51c7vgn36j9a ")
    assert may_be_run("51c7vg")
    assert not may_be_run("refund")
    assert not may_be_run("ticket 51c7vg")


def test_every_reason_has_words() -> None:
    assert set(WORDS) == set(ReasonCode.__args__)  # type: ignore[attr-defined]


def visit(seq: int, code: ReasonCode, since_ms: int = NOW) -> VisitInfo:
    return VisitInfo(seq, f"n{seq}", "function", 1, "waiting", since_ms, Reason(code, queue="q", worker="w"))


def test_a_run_shows_a_visit_that_waits_for_a_person_first_then_the_oldest() -> None:
    visits = (visit(1, "lease", NOW - 9_000), visit(2, "person"), visit(3, "queued", NOW - 99_000))
    run = RunInfo("r", "agent", "waiting", NOW, step=3, visits=visits)
    assert state_of(run, NOW).word == "Waits for a person"
    without = RunInfo("r", "agent", "running", NOW, visits=(visits[0], visits[2]))
    assert (state_of(without, NOW).word, state_of(without, NOW).colour) == ("Waits for a worker", "waiting")
    assert state_of(without, NOW).reason.endswith("and 1 more")


def step(seq: int, opened_ms: int, started_ms: int | None, ended_ms: int | None, **more: object) -> TraceStep:
    status = "completed" if ended_ms else "started"
    fields = {"node": f"n{seq}", "path": f"n{seq}", "type": "function", "status": status, **more}
    return TraceStep(
        f"r/{seq}", "r", None, "agent", opened_ms=opened_ms, started_ms=started_ms, ended_ms=ended_ms, **fields
    )  # type: ignore[arg-type]


def test_the_axis_folds_long_idle_times_and_keeps_the_order() -> None:
    axis = Axis(0, 1_000_000, [(0, 50_000), (950_000, 1_000_000)])
    assert axis.folds == [(50_000, 950_000)]
    places = [axis.place(at) for at in range(0, 1_000_001, 10_000)]
    assert places == sorted(places)
    assert (places[0], round(places[-1], 6)) == (0, 100)
    assert round(axis.place(950_000) - axis.place(50_000), 6) == 8
    assert any(tick.text == "15 min, folded" for tick in axis.ticks())


def test_the_timeline_has_a_row_for_each_node_and_a_bar_for_each_visit() -> None:
    steps = [
        step(1, 0, 100, 1_000), step(2, 1_000, 1_100, 2_000, node="n1"),
        step(3, 2_000, None, None, type="approval", status="waiting"),
    ]  # fmt: skip
    timeline = timeline_of(steps, frozenset({3}), None, 3_000)
    assert [(row.label, row.visits, row.colour, len(row.bars)) for row in timeline.rows] == [
        ("n1", 2, "completed", 4), ("n3", 1, "person", 1),
    ]  # fmt: skip
    for row in timeline.rows:
        for bar in row.bars:
            assert bar.left >= 0
            assert bar.left + bar.width <= 100.01


def test_a_long_timeline_keeps_what_is_live_failed_or_selected() -> None:
    steps = [step(seq, seq, seq, seq + 1) for seq in range(500)]
    steps[450] = step(450, 450, 450, 451, status="failed")
    steps[470] = step(470, 470, 470, None)
    timeline = timeline_of(steps, frozenset(), 480, 1_000)
    assert [(row.label, row.rows, row.first) for row in timeline.rows] == [
        ("n0 to n449", 450, 0), ("n450", 1, 0), ("n451 to n469", 19, 451), ("n470", 1, 0), ("n471 to n479", 9, 471),
        ("n480", 1, 0), ("n481 to n499", 19, 481),
    ]  # fmt: skip
    assert timeline.left_out == 0
    opened = timeline_of(steps, frozenset(), None, 1_000, opened=40)
    assert {f"n{number}" for number in range(40, 40 + OPENED)} <= {row.label for row in opened.rows}
    assert timeline_of([], frozenset(), None, 0).rows == ()


def test_the_items_of_a_map_are_one_group_and_a_loop_is_few_bars() -> None:
    above = [step(0, 0, 0, 9_000, type="map")]
    items = [step(seq, seq, seq, seq + 1, node="work", parent="r/0", item=seq) for seq in range(1, 5_001)]
    timeline = timeline_of([*above, *items], frozenset(), None, 10_000)
    assert [(row.label, row.rows, row.depth) for row in timeline.rows] == [("n0", 1, 0), ("work 1 to 5000", 5_000, 1)]
    loop = [step(seq, seq, seq, seq + 1, node="n1") for seq in range(5_000)]
    [row] = timeline_of(loop, frozenset(), None, 10_000).rows
    assert row.visits == 5_000
    assert len(row.bars) < 500


def test_runs_that_a_visit_has_started_are_rows_below_it() -> None:
    steps = [step(1, 0, 0, 100, runs=("c1", "gone")), step(2, 100, 100, None)]
    child = RunInfo("c1", "helper", "failed", 10, started_ms=20, ended_ms=90, error="no")
    rows = timeline_of(steps, frozenset(), None, 200, children={"c1": child}).rows
    assert [(row.label, row.run, row.depth, row.colour) for row in rows] == [
        ("n1", None, 0, "completed"), ("helper", "c1", 1, "failed"), ("n2", None, 0, "running"),
    ]  # fmt: skip


def test_what_a_step_changed_is_lines_that_are_removed_and_added() -> None:
    before = "\n".join(f"line {number}" for number in range(40))
    lines = changed_lines(before.splitlines(), before.replace("line 20\n", "line twenty\n").splitlines())
    assert [(line.kind, line.text) for line in lines] == [
        ("cut", "18 equal lines"), ("same", "line 18"), ("same", "line 19"), ("del", "line 20"), ("add", "line twenty"),
        ("same", "line 21"), ("same", "line 22"),
    ]  # fmt: skip
    difference = StateDifference({"a": (1, 2)}, {"b": {"x": "<b>"}}, {"c": "old"})
    assert [(each.name, each.what, [line.kind for line in each.lines]) for each in changes_of(difference)] == [
        ("a", "changed", ["del", "add"]), ("b", "added", ["add", "add", "add"]), ("c", "removed", ["del"]),
    ]  # fmt: skip
    [long] = changes_of(StateDifference({}, {"big": "x\n" * 9_000}, {}))
    assert long.is_cut
    assert len(long.lines) <= MOST_CHANGED_LINES + 1


def test_templates_escape_and_refuse_what_is_not_given() -> None:
    environment = templates()
    assert environment.from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
    with pytest.raises(UndefinedError):
        environment.from_string("{{ y }}").render()


def test_no_template_has_what_the_policy_of_content_forbids() -> None:
    for name in templates().list_templates():
        text = (FOLDER.parent / "templates" / name).read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|<style|<script(?! src=)|\son[a-z]+=|hx-on|\|\s*safe|javascript:", text), name
        assert "https://" not in text, f"{name}: everything comes from the server itself"


def test_static_files_have_urls_and_licences() -> None:
    assert url_of("vendor/htmx.min.js").endswith("/vendor/htmx.min.js")
    with pytest.raises(KeyError):
        url_of("none.js")
    listed = (FOLDER / "vendor" / "README.md").read_text(encoding="utf-8")
    for name in files():
        if name.startswith("vendor/") and name != "vendor/README.md":
            assert name.removeprefix("vendor/") in listed, "make vendor writes the list"
