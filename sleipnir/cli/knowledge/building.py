"""The progress of building a knowledge base, and the questions before it.

Rules. All of it is on stderr. On a terminal each stage is a bar, which is replaced by a line when the stage ends;
otherwise there are only lines, one every SAY_S seconds of a long stage. rich is imported for the first bar.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import size
from sleipnir.cli.terminal.terminal import MARK, typed_line
from sleipnir.knowledge.order import BuildDone, BuildMessage, BuildNotice, Progress
from sleipnir.knowledge.recipe import CHUNK_SIZE, NO_MODEL
from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from sleipnir.knowledge.application import Application
    from sleipnir.knowledge.preparing import Asker
    from sleipnir.knowledge.rules import BaseOptions

SAY_S: Final = 10.0
DRAW_S: Final = 0.1
KEYWORDS_ONLY: Final = "keywords only, no embedding model"

_UNDER_WAY: Final = {"load": "loading", "embed": "embedding", "write": "writing", "share": "sharing"}


class BuildView:
    """A context manager; `report` is the callback for sleipnir/knowledge/preparing.py. One builder at a time."""

    def __init__(self) -> None:
        self._base = ""
        self._stage: Progress | None = None
        self._said_s = self._drawn_s = 0.0
        self._bars: Bars | None = None
        self._bar: TaskID | None = None

    def report(self, base: str, message: BuildMessage) -> None:
        """Show a report of a builder, or of its caller, on a base."""
        if base != self._base:
            self._end_stage()
            self._base = base
        match message:
            case Progress():
                self._progress(message)
            case BuildNotice(text):
                self._say(f"note: {one_line(text)}")
            case BuildDone(value):
                self._end_stage()
                self._say(summary(value))

    def hide(self) -> None:
        """Hide the bar during a question. The next progress shows it again."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._bar = None

    def _progress(self, now: Progress) -> None:
        if self._stage is not None and self._stage.stage != now.stage:
            self._end_stage()
        is_new, self._stage = self._stage is None, now
        if now.stage == "wait":
            if is_new:
                self._say(f"waiting: {one_line(now.what) or 'somebody else builds it'}")
        elif terminal.can_redraw():
            self._draw(now)
        elif is_new:
            self._said_s = time.monotonic()
        elif time.monotonic() - self._said_s >= SAY_S:
            self._said_s = time.monotonic()
            self._say(" ".join([_UNDER_WAY[now.stage], _amount(now)]).strip())

    def _end_stage(self) -> None:
        ended, self._stage = self._stage, None
        if self._bars is not None and self._bar is not None:
            self._bars.remove_task(self._bar)
            self._bars.refresh()  # or the line would be written above a bar that is over
            self._bar = None
        if ended is not None and (line := _ended(ended)):
            self._say(line)

    def _say(self, text: str) -> None:
        terminal.narrate_lines([f"{MARK}{one_line(self._base, 40)}: {text}"])

    def _draw(self, now: Progress) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        fields: dict[str, Any] = {"amount": _amount(now), "what": _end_of(one_line(now.what), 32)}
        if self._bar is None:
            title = f"{one_line(self._base, 24)} {_UNDER_WAY[now.stage]}"
            self._bar = self._bars.add_task(title, completed=now.done, total=now.total, **fields)
        self._bars.update(self._bar, completed=now.done, total=now.total, **fields)
        if time.monotonic() - self._drawn_s >= DRAW_S:
            self._drawn_s = time.monotonic()
            self._bars.refresh()

    def __enter__(self) -> BuildView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_stage()
        self.hide()


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
    name = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    amount = TextColumn("{task.fields[amount]}", markup=False, table_column=Column(no_wrap=True))
    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    what = TextColumn("{task.fields[what]}", markup=False, style="dim", table_column=cut)
    return Progress(name, BarColumn(20), amount, what, console=console, transient=True, auto_refresh=False, expand=True)


def _end_of(text: str, limit: int) -> str:
    """The end of a path, which is the most significant part."""
    return text if len(text) <= limit else f"…{text[1 - limit :]}"


def _amount(now: Progress) -> str:
    """The progress. Writing a base has no intermediate progress."""
    if now.stage == "write":
        return ""
    shown = size if now.stage == "share" else "{:,}".format
    return shown(now.done) if now.total is None else f"{shown(now.done)} of {shown(now.total)}"


def _ended(stage: Progress) -> str:
    """The line that a stage leaves; empty for none."""
    match stage.stage:
        case "load":
            return f"{_part_of(stage)}{counted(stage.done, 'source')} loaded"
        case "embed":
            return f"{_part_of(stage)}{counted(stage.done, 'chunk')} with vectors"
        case "share" if stage.done:
            return f"{size(stage.done)} shared"
    return ""


def _part_of(stage: Progress) -> str:
    return "" if stage.total in (None, stage.done) else "only "


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def dollars(cost_usd: float | None) -> str:
    return "cost unknown" if cost_usd is None else f"${cost_usd:.4f}"


def model_and_size(base: Mapping[str, Any]) -> str:
    """The kind of search, from the fields of a BaseInfo."""
    if base["embedding_model"] is None:
        return KEYWORDS_ONLY
    return f"{base['embedding_model']}, {base['dimensions']} dimensions" if base["chunks"] else base["embedding_model"]


def spent(base: Mapping[str, Any]) -> str:
    """The cost of the embeddings, from the fields of a BaseInfo; empty if there were none."""
    used = base["spent"]
    if not used["embedded"] and not used["reused"]:
        return ""
    embedded = f"{counted(used['embedded'], 'chunk')} embedded"
    reused = f", {used['reused']:,} known" if used["reused"] else ""
    took = duration(int(used["took_s"] * 1000))
    return f"{embedded}{reused}, {counted(used['tokens'], 'token')}, {dollars(used['cost_usd'])}, in {took}"


def summary(base: Mapping[str, Any]) -> str:
    """A finished build in one line."""
    parts = [
        f"{counted(base['chunks'], 'chunk')} of {counted(len(base['sources']), 'source')}",
        model_and_size(base),
        spent(base),
    ]
    return "; ".join(part for part in parts if part)


def asker(view: BuildView, *, yes: bool = False) -> Asker | None:
    """The prompter on the terminal, None without one. `yes`: no questions, every default is taken."""
    if yes:
        return _AlwaysYes()
    return _Person(view) if terminal.can_ask() else None


class _Person:
    def __init__(self, view: BuildView) -> None:
        self._view = view

    def confirm(self, question: str, *, default: bool) -> bool:
        """Ask a yes-or-no question. An empty line is the default; the end of the input is no."""
        self._view.hide()
        while True:
            typed = typed_line(f"{question} [{'Y/n' if default else 'y/N'}] ", sys.stdin.readline)
            if typed is None:
                return False
            answer = typed.strip().lower()
            if not answer:
                return default
            if answer in ("y", "yes", "n", "no"):
                return answer[0] == "y"
            terminal.note("Type y or n.")

    def complete(self, wanted: BaseOptions, application: Application) -> BaseOptions | None:
        """Ask for the missing values. None: the input has ended."""
        from sleipnir.knowledge.rules import completed, usual_overlap

        self._view.hide()
        if wanted.embedding_model is None:
            model = _ask_model(list(application.chunk_sizes))
            if model is None:
                return None
            wanted = completed(wanted, embedding_model=model)
        if wanted.is_keywords_only:
            return wanted
        if wanted.chunk_size is None:
            usual = application.chunk_sizes.get(wanted.embedding_model or "") or CHUNK_SIZE
            number = _ask_number("Set chunk size", usual, least=1)
            if number is None:
                return None
            wanted = completed(wanted, chunk_size=number)
        if wanted.chunk_overlap is None:
            chunk_size = wanted.chunk_size or CHUNK_SIZE
            number = _ask_number("Set chunk overlap", usual_overlap(chunk_size), most=chunk_size - 1)
            if number is None:
                return None
            wanted = completed(wanted, chunk_overlap=number)
        return wanted


class _AlwaysYes:
    def confirm(self, question: str, *, default: bool) -> bool:
        return default

    def complete(self, wanted: BaseOptions, application: Application) -> BaseOptions | None:
        from sleipnir.knowledge.rules import completed, usual_overlap

        model = wanted.embedding_model or next(iter(application.chunk_sizes), NO_MODEL)
        chunk_size = wanted.chunk_size or application.chunk_sizes.get(model) or CHUNK_SIZE
        overlap = usual_overlap(chunk_size) if wanted.chunk_overlap is None else wanted.chunk_overlap
        return completed(wanted, embedding_model=model, chunk_size=chunk_size, chunk_overlap=overlap)


def _ask_model(known: list[str]) -> str | None:
    """An id, or NO_MODEL; the first of `known`, the models that config.yaml lists, is the default."""
    choices = [*known, NO_MODEL]
    terminal.note("Select embedding model:")
    for number, choice in enumerate(choices, 1):
        free = " (keyword search only; needs no key)" if choice == NO_MODEL else ""
        terminal.note(f"  {number}. {one_line(choice)}{free}")
    while True:
        typed = typed_line("A number, or the id of another as client:model [1]: ", sys.stdin.readline)
        if typed is None:
            return None
        answer = typed.strip() or "1"
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(choices):
            return choices[int(answer) - 1]
        client, _, name = answer.partition(":")
        if answer == NO_MODEL or (client and name):
            return answer
        terminal.note(f"Type a number from 1 to {len(choices)}, or an id like openai:text-embedding-3-small.")


def _ask_number(question: str, default: int, *, least: int = 0, most: int | None = None) -> int | None:
    while True:
        typed = typed_line(f"{question} [{default}]: ", sys.stdin.readline)
        if typed is None:
            return None
        answer = typed.strip() or str(default)
        if answer.isascii() and answer.isdigit() and int(answer) >= least and (most is None or int(answer) <= most):
            return int(answer)
        limit = "" if most is None else f" to {most}"
        terminal.note(f"Type a whole number from {least}{limit}.")
