"""A pytest plugin that prints the conformance checklist: which test proves which row, and whether it passed.

Load it with `-p tests.conformance_report` (`make conformance` does). A test names the rows that it proves:

    @pytest.mark.conformance("T05", "V01")

A row in scope without a passed test, or with a failed one, makes the session fail: a skipped test proves nothing.
Works under pytest-xdist: the ids travel to the controller with each report.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest


def _ids(group: str, *numbers: int | range) -> list[str]:
    flat = [n for part in numbers for n in (part if isinstance(part, range) else (part,))]
    return [f"{group}{n:02}" for n in flat]


IN_SCOPE: tuple[str, ...] = (
    *_ids("L", range(1, 10)),
    *_ids("T", range(1, 9), range(10, 20)),
    *_ids("S", range(1, 11), 12, 13),
    *_ids("P", range(1, 14)),
    *_ids("U", range(1, 11)),
    *_ids("R", range(1, 16)),
    *_ids("A", range(1, 7)),
    *_ids("I", range(1, 7)),
    *_ids("E", 1, 2),
    *_ids("V", range(1, 9)),
    *_ids("B", range(1, 5)),
    *_ids("N", 1, 2),
    *_ids("O", range(1, 13)),
    *_ids("M", range(1, 18)),
    *_ids("X", range(1, 18)),
    *_ids("Q", 1, 2),
    *_ids("G", range(1, 7)),
    *_ids("K", range(1, 16)),
    *_ids("C", range(1, 12)),
    *_ids("D", range(1, 4)),
    *_ids("W", range(1, 15)),
    *_ids("H", 1),
    *_ids("Y", range(1, 7)),
    *_ids("BD-", range(1, 21)),
    *_ids("ST-", range(1, 15)),
    *_ids("RT-", range(1, 23)),
    *_ids("FO-", range(1, 13)),
    *_ids("JN-", range(1, 8)),
    *_ids("BS-", range(1, 4)),
    *_ids("IS-", 1, 2),
    *_ids("LM-", range(1, 12)),
    *_ids("DG-", range(1, 10)),
    *_ids("EX-", range(1, 52)),
    *_ids("IN-", range(1, 8), 10, 12, range(13, 19)),
    *_ids("NI-", range(1, 7)),
    *_ids("ER-", range(1, 9)),
    *_ids("AG-", range(1, 20), range(21, 27)),
    *_ids("SI-", range(1, 8)),
    *_ids("XI-", range(1, 10)),
    *_ids("DU-", range(1, 13)),
    *_ids("MS-", range(1, 9)),
    *_ids("LL-", range(1, 32)),
    *_ids("TL-", range(1, 31), 32),
    *_ids("LP-", 1, 2),
    *_ids("CK-", 1, 2, 4, 7, 8, range(11, 15)),
    *_ids("SV-", 1, 2, 6, 7, 9, range(11, 14)),
    *_ids("TT-", range(1, 8)),
    *_ids("RY-", range(1, 15)),
    *_ids("CA-", range(1, 14)),
    *_ids("CB-", range(1, 16)),
    *_ids("VZ-", range(1, 5)),
    *_ids("TR-", range(1, 8)),
    *_ids("SX-", range(1, 7)),
    *_ids("EM-", range(1, 9)),
    *_ids("EV-", range(1, 9), 10, 11, 12),
    *_ids("TM-", range(1, 5)),
    *_ids("SM-", range(1, 10)),
    *_ids("SH-", range(1, 5)),
    *_ids("CO-", range(1, 8)),
    *_ids("SP-", range(1, 4)),
    *_ids("SE-", range(1, 8)),
    *_ids("A2-", 2, 4),
    *_ids("CY", 1, 2, range(4, 15), range(16, 23), range(24, 27), range(30, 33), 35, range(37, 48), range(50, 57)),
    *_ids("CY", range(71, 74), 76, range(78, 81), range(83, 87), 89, 94, 96, 98),
)
"""Rows of the checklists that this release promises: of graph agents (section 11 of spec/graph-agents.md), with a
hyphen, of the graph package (section 5 of spec/graph-package.md), and, CY, of what Coyote has added (section 17 of
spec/coyote.md).

Of the first, these are left out. Later releases bring agents of a config.yaml (C), with their todo lists (D) and the
agents that they start (W, S11), agent nodes (G), knowledge bases (K, L07), built-in agents (L09) and lists of
conversation starters (T09). Of the groups M, O, X and Q every row holds for graph agents; Q02 in the sense that any llm
node may list the tools that ask people, which no file declares.

Of the second, these are left out. Events of checkpoints come to those who ask for the mode `checkpoints`, also
without the other events of the lifecycle, because they have asked (CK-03). Rows of an engine that is one process
(ST-10, FO-09, LM-06, LM-10, LM-11) are held in our sense of them; the docstrings of their tests say which that is. Some
rows of savers have no form here, as the journal is the only place of checkpoints, and a step that cannot be stored has
not happened (CK-05, CK-06, CK-10, IN-08, IN-11, SV-03 to SV-05, SV-08, SV-10); nor has a message that means a
resumption (IN-09). A limit of super-steps is that of one call (CK-09). Callbacks come from plugins, the graph and its
nodes, not from the state: CB-09 and TL-22 are held for those of the graph. Those of events of children (CB-11) see them
once the child is over, as a parent that waits holds no worker. Whether the text of a child is streamed is a matter of
who watches (AG-20). A list of the agents below one is read from its structure, not at run time (SE-08). No event
repeats a final text, as the end of a run has only its size, so none has a duplicate (EV-09). The mode `messages` gives
texts in pieces; whole texts come only if they are asked for, because who prints both has each text twice (SM-10). The
scheduler makes the events of tools, and does not read the responses of models, whose ids only workers know (TL-31).
Over A2A no events of the graph are sent, so there are none to filter or to let through (A2-01), a task is the place
where a run goes on, without coordinates of checkpoints (A2-03), and the message of a task that failed has the error as
text, without a code (A2-05).

Of the third, these are left out: of skills what the application's configuration, workspaces and MCP servers have to do
with them (CY33, CY34, CY36, CY48, CY49), memory (CY57 to CY66), workspaces with a configuration of their own (CY03,
CY67 to CY70, CY87), the guardrail for agents that still run (CY74, CY75), and what Sleipnir does where the
specification leaves a choice (docs/loki-compatibility.md).
"""

PROPERTY = "conformance"


@dataclass
class Checklist:
    """What the reports said so far: row id -> test id -> outcome, where a failure in any phase stays."""

    rows: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, ids: Iterable[str], test: str, outcome: str) -> None:
        for row in ids:
            seen = self.rows.setdefault(row, {})
            if seen.get(test) != "failed":
                seen[test] = outcome

    def result(self, row: str) -> str:
        """passed, failed, or missing: failed if any of its tests failed, missing if none passed."""
        outcomes = self.rows.get(row, {}).values()
        if "failed" in outcomes:
            return "failed"
        return "passed" if "passed" in outcomes else "missing"

    def unproven(self) -> list[str]:
        return [row for row in IN_SCOPE if self.result(row) != "passed"]

    def lines(self) -> list[str]:
        extra = sorted(row for row in self.rows if row not in IN_SCOPE)
        table = [line for row in (*IN_SCOPE, *extra) for line in self._lines_of(row)]
        proven = len(IN_SCOPE) - len(self.unproven())
        return [*table, "", f"{proven} of {len(IN_SCOPE)} rows in scope are proven."]

    def _lines_of(self, row: str) -> list[str]:
        tests = sorted(self.rows.get(row, {}))
        names = tests or ["(no test)"]
        return [f"{row if n == 0 else '':<5} {self.result(row) if n == 0 else '':<8} {t}" for n, t in enumerate(names)]


_checklist = pytest.StashKey[Checklist]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_checklist] = Checklist()
    config.pluginmanager.register(_Collector(config.stash[_checklist]), "conformance-collector")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    report = yield
    ids = [row for marker in item.iter_markers("conformance") for row in marker.args]
    if ids and report.when in ("setup", "call", "teardown"):
        report.user_properties.append((PROPERTY, ids))
    return report


class _Collector:
    """Listens to the reports, which in the controller of xdist arrive from all workers."""

    def __init__(self, checklist: Checklist) -> None:
        self.checklist = checklist

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        properties: list[tuple[str, Any]] = report.user_properties
        ids = [row for name, rows in properties if name == PROPERTY for row in rows]
        test = report.nodeid.partition("[")[0].rpartition("/")[2]
        self.checklist.add(ids, test, report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    if session.exitstatus == pytest.ExitCode.OK and session.config.stash[_checklist].unproven():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    checklist = config.stash[_checklist]
    terminalreporter.section("conformance")
    for line in checklist.lines():
        terminalreporter.write_line(line)
    if unproven := checklist.unproven():
        terminalreporter.write_line(f"Not proven: {', '.join(unproven)}", red=True)
