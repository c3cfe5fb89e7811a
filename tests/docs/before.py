"""What pages presuppose: the files that their readers have, what their models say, and how commands end that do not end
with 0. A page without an entry presupposes nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sleipnir.testing import Reply, Rule
from tests.docs.pages import ROOT, blocks_of


@dataclass(frozen=True)
class Before:
    """`prepare` gets the folder in which the page is followed. `ends` has the exit codes that are not 0, by the command
    as it is written. `environment` is beside that of the machine, where
    a path begins with `{beside}`, and may name a SLEIPNIR_HOME, for a private stack of the page's own. `varies` has
    beginnings of lines that a page shows as printed and whose values depend on what happens meanwhile: of these a line
    must be printed that is the same up to the first digit. `passing` has beginnings of lines that are printed only
    while something goes on: what is over at once does not print them."""

    prepare: Callable[[Path], object] = lambda folder: None
    rules: Sequence[Rule] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    varies: Sequence[str] = ()
    passing: Sequence[str] = ()


WAITING = 3  # nobody is at a terminal to answer; docs/chat.md and `sleipnir run --help` say so


def write(folder: Path, **files: str) -> None:
    """Files by their names; `agents__helper__config_yaml` is `agents/helper/config.yaml`."""
    for name, text in files.items():
        stem, _, suffix = name.replace("__", "/").rpartition("_")
        file = folder / f"{stem}.{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def block(page: str, info: str, number: int = 0) -> str:
    """The text of a page's block of this class, as a page refers to another's."""
    return [block for block in blocks_of(ROOT / page) if block.info == info][number].text


def helper(folder: Path) -> None:
    write(folder, agents__helper__config_yaml=block("docs/config-agents.md", "yaml agent"))
    global_tools(folder)


def global_tools(folder: Path) -> None:
    """The two of Loki's that pages use, in the configuration directory of the machine."""
    tool = '#!/usr/bin/env bash\n# @describe A tool of Loki.\nmain() { echo "$PWD" >> "$LLM_OUTPUT"; }\n'
    tools = folder.parent / ".config" / "loki" / "functions" / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    for name in ("fs_cat", "fs_ls"):
        (tools / f"{name}.sh").write_text(tool)


def letters(folder: Path) -> None:
    write(folder, agents__letters__graph_yaml=block("docs/testing.md", "yaml"))


def letters_with_rows(folder: Path) -> None:
    letters(folder)
    rows = [f"{number},The bell is cracked\n" for number in range(20)]
    write(folder, letters_csv="id,prompt\n" + "".join(rows) + "x,one,two\n")


def repository(folder: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(folder / "your/repository"), *who, *words], check=True, capture_output=True)

    write(folder, your__repository__shop_py="print('closed')\n")
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "Begin")
    git("branch", "release-2")
    write(folder, your__repository__shop_py="print('open')\n")


def sources(folder: Path) -> None:
    write(folder, docs__backups_md="# Backups\n\nKept for a year.\n", contracts__2026__a_md="# A\n\nThirty days.\n")


def sql_example(folder: Path) -> None:
    shutil.copytree(ROOT / "agents" / "sql", folder / "agents" / "sql")  # the page is followed in a checkout


def tickets(folder: Path) -> None:
    write(folder, docs__help__bells_md="# Bells\n\nHow to ring.\n", mail_txt="How do I ring it?\n")


def answer(folder: Path) -> None:
    """The agent with three mistakes that docs/validation.md shows."""
    graph = (
        "name: answer\nstart: ask\nnodes:\n  ask:\n    type: llm\n    model: openai:gpt-5-mini\n"
        "    prompt: |\n      Answer:\n      {{ topic }}\n    next: check\n"
        '  check:\n    type: function\n    next: pubish\n    call: "check.py:check"\n'
        "  publish: {type: end, output: done}\n"
    )
    write(folder, agents__answer__graph_yaml=graph, agents__answer__check_py="def check():\n    return {}\n")


def limits(folder: Path) -> None:
    (folder.parent / f"{folder.name}.beside").mkdir(exist_ok=True)
    (folder.parent / f"{folder.name}.beside" / "limits.yaml").write_text(block("docs/limits.md", "yaml limits"))


def research(folder: Path) -> None:
    graph = (
        "name: research\nstart: ask\nnodes:\n"
        '  ask: {type: llm, prompt: "{{initial_prompt}}", next: sum_up}\n'
        "  sum_up: {type: llm, prompt: Sum up., next: done}\n"
        "  done: {type: end, output: done}\n"
    )
    write(folder, agents__research__graph_yaml=graph)


def ticket(category: str, urgency: str, words: str) -> str:
    found = {"category": category, "urgency": urgency, "sentiment": "calm", "language": "English", "gist": "A wish."}
    return json.dumps({**found, "words": words.split()})


def draft(reply: str, *used: str) -> str:
    return json.dumps({"reply": reply, "used": used, "is_complete": True})


def statement(sql: str) -> str:
    return json.dumps({"sql": sql, "is_write": False, "explanation": "It says so."})


LETTER = Rule('{"topic": "a cracked bell", "urgent": true}', match="bell is cracked")


def password(folder: Path) -> None:
    write(folder, password_txt="correct horse battery\n")


BEFORE: Mapping[str, Before] = {
    "docs/users.md": Before(password),
    "README.md": Before(environment={"SLEIPNIR_HOME": "{beside}/home", "SLEIPNIR_MODEL": ""}),
    "agents/README.md": Before(ends={"sleipnir run hello": WAITING, "sleipnir run log-triage server.log": WAITING}),
    "agents/code-review/README.md": Before(
        repository,
        ends={"sleipnir run code-review": WAITING, 'sleipnir run code-review "Is every error handled?"': WAITING},
    ),
    "agents/deep-research/README.md": Before(sources),
    "agents/log-triage/README.md": Before(ends={"sleipnir run log-triage server.log": WAITING}),
    "agents/sql/README.md": Before(
        sql_example,
        rules=[
            Rule(statement("UPDATE articles SET price_cents = price_cents * 1.03"), match="Raise all prices"),
            Rule(statement("SELECT name FROM customers"), match="Which customers"),
        ],
        ends={'sleipnir run sql "Raise all prices by 3 %" --var database=shop.db': WAITING},
    ),
    "agents/support-triage/README.md": Before(
        tickets,
        rules=[
            Rule(draft("You get it back.", "refunds.md"), match="^Product.*charged TWICE"),
            Rule(draft("Open Settings.", "export-notes.md"), match="^Product.*Markdown files"),
            Rule(draft("Pull the rope.", "bells.md"), match="^Product.*ring it"),
            Rule(ticket("billing", "high", "refund charged twice invoice"), match="charged TWICE"),
            Rule(ticket("how_to", "normal", "export markdown pictures"), match="Markdown files"),
            Rule(ticket("how_to", "normal", "bells ring"), match="ring it"),
        ],
        ends={"sleipnir run support-triage tickets/double-charge.txt": WAITING},
    ),
    "docs/batches.md": Before(
        letters_with_rows,
        rules=[LETTER],
        passing=["▸ running"],
        ends={"sleipnir batch submit letters letters.csv --key id --name monday": 1},  # the page: of a bad row
    ),
    "docs/chat.md": Before(helper),
    "docs/config-agents.md": Before(global_tools),
    "docs/limits.md": Before(
        limits, environment={"SLEIPNIR_LIMITS": "{beside}/limits.yaml"}, varies=["openai", "anthropic"]
    ),
    "docs/models.md": Before(
        research,
        rules=[Rule(Reply("They ring.", input_tokens=12_000, output_tokens=264_000))],
        ends={'sleipnir run research "bells of Ghent" --max-cost 0.50': WAITING},
    ),
    "docs/operations.md": Before(letters, rules=[LETTER]),
    "docs/testing.md": Before(letters, rules=[LETTER], environment={"SLEIPNIR_HOME": "{beside}/home"}),
    "docs/validation.md": Before(answer, ends={"sleipnir validate agents/answer": 1}),
}
